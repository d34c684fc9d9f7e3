"""What deduplication decides about one entry."""

from __future__ import annotations

from typing import Any

from magnetar.broker.deduplication import Deduplication, Sequences, Verdict
from magnetar.broker.sequence_ids import stored_sequences, untold_sequences
from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.message import build_message, split_message
from magnetar.protocol.pulsar_pb2 import EncryptionKeys, MessageMetadata


def one(sequence_id: int) -> Sequences:
    return Sequences(sequence_id, sequence_id)


def stored(marks: Deduplication, sequences: Sequences) -> None:
    marks.stored(marks.push("p", sequences, 0.0))


def test_a_producer_never_heard_of_has_nothing_stored() -> None:
    marks = Deduplication()
    assert marks.last_sequence_id("p") == -1
    assert marks.judge("p", one(0)) is Verdict.NEW


def test_what_is_stored_is_a_duplicate() -> None:
    marks = Deduplication()
    stored(marks, one(5))
    assert marks.judge("p", one(5)) is Verdict.DUPLICATE
    assert marks.judge("p", one(3)) is Verdict.DUPLICATE
    assert marks.judge("p", one(6)) is Verdict.NEW
    assert marks.judge("other", one(5)) is Verdict.NEW


def test_what_is_under_way_cannot_be_told() -> None:
    marks = Deduplication()
    push = marks.push("p", one(5), 0.0)
    assert marks.judge("p", one(5)) is Verdict.UNKNOWN
    assert marks.judge("p", one(6)) is Verdict.NEW
    marks.stored(push)
    assert marks.judge("p", one(5)) is Verdict.DUPLICATE


def test_a_batch_that_straddles_is_cut() -> None:
    marks = Deduplication()
    stored(marks, one(5))
    assert marks.judge("p", Sequences(3, 8)) is Verdict.STRADDLES
    assert marks.judge("p", Sequences(3, 5)) is Verdict.DUPLICATE
    assert marks.judge("p", Sequences(6, 8)) is Verdict.NEW


def test_a_straddling_batch_waits_for_what_is_under_way() -> None:
    marks = Deduplication()
    stored(marks, one(5))
    marks.push("p", one(6), 0.0)
    assert marks.judge("p", Sequences(4, 9)) is Verdict.UNKNOWN


def test_a_failed_write_is_new_when_it_comes_again() -> None:
    marks = Deduplication()
    stored(marks, one(5))
    push = marks.push("p", one(6), 0.0)
    marks.failed(push)
    assert marks.judge("p", one(6)) is Verdict.NEW


def test_the_mark_does_not_pass_over_a_failed_write() -> None:
    """6 fails and 7, sent behind it, succeeds: 6 comes again, and must not be taken for stored."""
    marks = Deduplication()
    sixth, seventh = marks.push("p", one(6), 0.0), marks.push("p", one(7), 0.0)
    marks.failed(sixth)
    marks.stored(seventh)
    assert marks.judge("p", one(6)) is Verdict.NEW
    stored(marks, one(6))
    stored(marks, one(7))
    assert marks.last_sequence_id("p") == 7


def test_a_failed_chunk_keeps_the_mark_from_passing_its_message() -> None:
    marks = Deduplication()
    first = marks.push_chunk("p", 0.0)
    last = marks.push("p", Sequences(6, 6), 0.0)
    marks.failed(first)
    marks.stored(last)
    assert marks.last_sequence_id("p") == -1
    assert marks.judge_chunk("p", 6) is Verdict.NEW


def test_a_stored_chunk_alone_raises_no_mark() -> None:
    marks = Deduplication()
    marks.stored(marks.push_chunk("p", 0.0))
    assert marks.last_sequence_id("p") == -1
    assert marks.snapshot() == {}
    assert marks.judge_chunk("p", 0) is Verdict.NEW


def test_chunks_share_the_fate_of_their_message() -> None:
    marks = Deduplication()
    stored(marks, one(5))
    assert marks.judge_chunk("p", 5) is Verdict.DUPLICATE
    assert marks.judge_chunk("p", 6) is Verdict.NEW
    marks.push("p", one(6), 0.0)
    assert marks.judge_chunk("p", 6) is Verdict.UNKNOWN


def test_an_opaque_batch_is_a_duplicate_only_if_it_is_the_same() -> None:
    marks = Deduplication()
    stored(marks, Sequences(5, 5, opaque=10))
    assert marks.judge("p", Sequences(5, 5, opaque=10)) is Verdict.DUPLICATE
    assert marks.judge("p", Sequences(5, 5, opaque=12)) is Verdict.UNTELLABLE
    assert marks.judge("p", Sequences(2, 2, opaque=3)) is Verdict.DUPLICATE
    assert marks.judge("p", Sequences(2, 2, opaque=9)) is Verdict.UNTELLABLE
    assert marks.judge("p", Sequences(15, 15, opaque=10)) is Verdict.NEW


def test_a_snapshot_brings_everything_back() -> None:
    marks = Deduplication()
    stored(marks, one(5))
    marks.stored(marks.push("q", Sequences(7, 7, opaque=4), 0.0))
    marks.push("r", one(1), 0.0)  # Under way: no part of it.
    restored = Deduplication()
    restored.restore(marks.snapshot(), 0.0)
    assert restored.last_sequence_id("p") == 5
    assert restored.judge("q", Sequences(7, 7, opaque=4)) is Verdict.DUPLICATE
    assert restored.last_sequence_id("r") == -1


def test_the_long_idle_are_forgotten_unless_connected() -> None:
    marks = Deduplication()
    for number in range(5):
        marks.stored(marks.push(f"p{number}", one(1), float(number)))
    assert marks.forget({"p0"}, idle_since=2.0, keep=100) == ["p1"]
    assert marks.forget({"p0"}, idle_since=0.0, keep=2) == ["p2", "p3"]
    assert sorted(marks.snapshot()) == ["p0", "p4"]


def _batch(ids: list[int] | None, first: int, **fields: Any) -> bytes:
    builder = BatchBuilder()
    for index in range(3 if ids is None else len(ids)):
        if ids is None:
            builder.add_encoded(b"\x18\x01", b"x", 0)
        else:
            builder.add(b"x", ids[index])
    metadata = MessageMetadata(
        producer_name="p", sequence_id=first, publish_time=1, num_messages_in_batch=builder.count, **fields
    )
    metadata.uncompressed_size = len(builder.payload())
    return build_message(metadata, builder.payload())


def test_ids_are_read_from_the_members_where_the_batch_tells_one() -> None:
    """C++ and Go. Users choose ids with gaps, so that counting from the first would be wrong."""
    assert stored_sequences(split_message(_batch([10, 20, 40], 10))) == Sequences(10, 40)
    assert stored_sequences(split_message(_batch([10, 20, 40], 40))) == Sequences(10, 40)  # Older C++.


def test_ids_need_not_rise_within_a_batch() -> None:
    """The official Python client gives a message that asks for id 0 the next free one instead."""
    assert stored_sequences(split_message(_batch([10, 1, 2, 3], 10))) == Sequences(1, 10)


def test_a_batch_whose_members_are_not_numbered_is_one_unit() -> None:
    """Very old Go: one id for each batch. Counting members would run into the next batch's id."""
    assert stored_sequences(split_message(_batch(None, 7))) == Sequences(7, 7)


def test_what_the_metadata_tells_is_believed() -> None:
    assert stored_sequences(split_message(_batch([1, 2, 3], 1, highest_sequence_id=3))) == Sequences(1, 3)


def test_an_encrypted_or_corrupt_batch_is_opaque() -> None:
    keys = [EncryptionKeys(key="k", value=b"v")]
    assert untold_sequences(split_message(_batch([1, 2, 3], 1, encryption_keys=keys))) == Sequences(1, 1, 3)
    corrupt = MessageMetadata(producer_name="p", sequence_id=4, publish_time=1, num_messages_in_batch=5)
    assert untold_sequences(split_message(build_message(corrupt, b"\xff" * 40))) == Sequences(4, 4, 5)
