"""Batches: what is written is read, by our reader and by protobuf; corrupt ones are refused, not believed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol.batch import (
    BatchBuilder,
    batch_payloads,
    cut_batch,
    index_batch,
    iterate_batch,
)
from magnetar.protocol.compression import compress, decompress
from magnetar.protocol.errors import BatchCorrupt, BatchUnopenable, ChecksumMismatch, ProtocolError
from magnetar.protocol.message import build_message, split_message, take_message, verify_checksum
from magnetar.protocol.pulsar_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    CompressionType,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)

COMPRESSIONS = (NONE, LZ4, ZLIB, ZSTD, SNAPPY)
SEQUENCE_IDS = st.integers(0, 2**20) | st.integers(0, 2**63 - 100)
PAYLOADS = st.lists(
    st.binary(max_size=200) | st.integers(120, 130).map(bytes) | st.integers(16380, 16390).map(bytes),
    min_size=1,
    max_size=9,
)
FULL = st.fixed_dictionaries(
    {},
    optional={
        "key": st.text(max_size=8),
        "ordering_key": st.binary(max_size=8),
        "properties": st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=3),
        "event_time": st.integers(0, 2**63 - 1),
    },
)


def by_protobuf(payloads: list[bytes], first_id: int) -> bytes:
    data = b""
    for index, payload in enumerate(payloads):
        single = SingleMessageMetadata(payload_size=len(payload), sequence_id=first_id + index)
        metadata = single.SerializeToString()
        data += len(metadata).to_bytes(4, "big") + metadata + payload
    return data


def metadata_of(batch: BatchBuilder, compression: CompressionType.ValueType) -> MessageMetadata:
    return MessageMetadata(
        producer_name="p",
        sequence_id=batch.first_sequence_id,
        highest_sequence_id=batch.last_sequence_id,
        publish_time=1,
        num_messages_in_batch=batch.count,
        compression=compression,
        uncompressed_size=len(batch.payload()),
    )


@given(PAYLOADS, SEQUENCE_IDS)
def test_plain_members_are_what_protobuf_makes_of_them(payloads: list[bytes], first_id: int) -> None:
    one_by_one, at_once = BatchBuilder(), BatchBuilder()
    for index, payload in enumerate(payloads):
        one_by_one.add(payload, first_id + index)
    at_once.add_many(payloads, range(first_id, first_id + len(payloads)))
    assert one_by_one.payload() == at_once.payload() == by_protobuf(payloads, first_id)
    assert (at_once.count, at_once.first_sequence_id) == (len(payloads), first_id)
    assert at_once.last_sequence_id == one_by_one.last_sequence_id == first_id + len(payloads) - 1
    assert at_once.size >= len(at_once.payload())


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=20, unique=True).map(sorted), st.data())
def test_ids_with_gaps(ids: list[int], data: st.DataObject) -> None:
    payloads = [data.draw(st.binary(max_size=5)) for _ in ids]
    one_by_one, at_once = BatchBuilder(), BatchBuilder()
    for payload, sequence_id in zip(payloads, ids, strict=True):
        one_by_one.add(payload, sequence_id)
    at_once.add_many(payloads, ids)
    assert at_once.payload() == one_by_one.payload()
    assert (at_once.first_sequence_id, at_once.last_sequence_id) == (ids[0], ids[-1])


@pytest.mark.parametrize("first_id", [0, 126, 0x3FFE, 0x4000, 0x7FFE, 2**21 - 2, 2**35 - 3])
def test_a_run_across_a_change_of_width(first_id: int) -> None:
    payloads = [bytes([number]) for number in range(9)]
    batch = BatchBuilder()
    batch.add_many(payloads, range(first_id, first_id + len(payloads)))
    assert batch.payload() == by_protobuf(payloads, first_id)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=50), FULL), min_size=1, max_size=6),
    st.sampled_from(COMPRESSIONS),
)
def test_full_members_are_read_as_written(
    messages: list[tuple[bytes | None, dict[str, Any]]], compression: CompressionType.ValueType
) -> None:
    batch = BatchBuilder()
    for sequence_id, (payload, fields) in enumerate(messages):
        batch.add_full(payload, sequence_id, **fields)
    metadata = metadata_of(batch, compression)
    read = list(iterate_batch(metadata, compress(compression, batch.payload())))
    assert len(read) == len(messages)
    for index, ((single, view), (payload, fields)) in enumerate(zip(read, messages, strict=True)):
        assert bytes(view) == (payload or b"")
        assert single.null_value == (payload is None)
        assert single.sequence_id == index
        assert single.HasField("partition_key") == ("key" in fields)
        assert single.partition_key == fields.get("key", "")
        assert single.ordering_key == fields.get("ordering_key", b"")
        assert single.event_time == fields.get("event_time", 0)
        assert {pair.key: pair.value for pair in single.properties} == fields.get("properties", {})


@given(PAYLOADS)
def test_members_without_sequence_ids_and_with_fields_in_any_order(payloads: list[bytes]) -> None:
    """As other clients write them: the index must not depend on our own way."""
    data = b""
    for payload in payloads:
        size = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        key = SingleMessageMetadata(partition_key="k", properties=[KeyValue(key="a", value="b")])
        metadata = key.SerializePartialToString() + size
        data += len(metadata).to_bytes(4, "big") + metadata + payload
    assert batch_payloads(data, len(payloads)) == payloads


@given(PAYLOADS, SEQUENCE_IDS, st.data())
def test_a_damaged_batch_is_refused_or_stays_within_itself(
    payloads: list[bytes], first_id: int, data: st.DataObject
) -> None:
    batch = BatchBuilder()
    fields: dict[str, Any] = data.draw(FULL)
    for index, payload in enumerate(payloads):
        batch.add_full(payload, first_id + index, **fields)
    damaged = bytearray(batch.payload())
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, min(len(damaged) - 1, 40)))] = data.draw(st.integers(0, 255))
    try:
        members = index_batch(bytes(damaged), len(payloads) + data.draw(st.integers(-1, 1)))
    except BatchCorrupt:
        return
    for metadata_start, payload_start, end in members:
        assert 0 <= metadata_start <= payload_start <= end <= len(damaged)


@given(st.sampled_from(COMPRESSIONS), st.binary(max_size=3000), st.integers(-3, 3))
def test_compression_returns_exactly_what_went_in_or_refuses(
    kind: CompressionType.ValueType, data: bytes, error: int
) -> None:
    packed = compress(kind, data)
    assert decompress(kind, packed, len(data)) == data
    if error and kind != NONE:
        with pytest.raises(ProtocolError):
            decompress(kind, packed, max(0, len(data) + error) if data else 5)


@given(st.sampled_from(COMPRESSIONS[1:]), st.binary(max_size=200), st.integers(0, 5000))
def test_random_bytes_are_never_decompressed_beyond_their_claim(
    kind: CompressionType.ValueType, data: bytes, claim: int
) -> None:
    try:
        assert len(decompress(kind, data, claim)) == claim
    except ProtocolError:
        return


@given(PAYLOADS, SEQUENCE_IDS, st.sampled_from(COMPRESSIONS), st.data())
def test_a_cut_batch_holds_the_later_messages_only(
    payloads: list[bytes], first_id: int, compression: CompressionType.ValueType, data: st.DataObject
) -> None:
    batch = BatchBuilder()
    batch.add_many(payloads, range(first_id, first_id + len(payloads)))
    metadata = metadata_of(batch, compression)
    metadata.partition_key = "kept"
    whole = build_message(metadata, compress(compression, batch.payload()))
    mark = first_id + data.draw(st.integers(-1, len(payloads) - 2))
    cut = split_message(cut_batch(whole, lambda _, sequence_id: sequence_id > mark))
    members = list(iterate_batch(cut.metadata, cut.payload))
    kept = payloads[mark - first_id + 1 :]
    assert [bytes(view) for _, view in members] == kept
    assert [single.sequence_id for single, _ in members] == list(range(mark + 1, first_id + len(payloads)))
    assert cut.metadata.sequence_id == mark + 1
    assert cut.metadata.highest_sequence_id == batch.last_sequence_id
    assert cut.metadata.num_messages_in_batch == len(kept)
    assert cut.metadata.partition_key == "kept"


def test_what_cannot_be_cut_says_why() -> None:
    single = build_message(MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x")
    with pytest.raises(BatchUnopenable, match="single message"):
        cut_batch(single, lambda *_: True)
    locked = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=1)
    locked.encryption_keys.add(key="k", value=b"v")
    with pytest.raises(BatchUnopenable, match="encrypted"):
        cut_batch(build_message(locked, b"x"), lambda *_: True)
    broken = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=3)
    with pytest.raises(BatchUnopenable, match="ends before"):
        cut_batch(build_message(broken, b"x"), lambda *_: True)
    members = SingleMessageMetadata(payload_size=0).SerializeToString()
    anonymous = (len(members).to_bytes(4, "big") + members) * 3
    with pytest.raises(BatchUnopenable, match="sequence ids"):
        cut_batch(build_message(broken, anonymous), lambda *_: True)


@given(st.binary(max_size=300), st.data())
def test_a_flipped_bit_of_a_message_shows(payload: bytes, data: st.DataObject) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    whole = build_message(metadata, payload)
    verify_checksum(whole)
    assert b"".join(take_message(whole)) == whole
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(2, len(whole) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    for read in (verify_checksum, take_message, split_message):
        with pytest.raises(ChecksumMismatch):
            read(bytes(damaged))


@given(st.binary(max_size=64))
def test_random_bytes_are_no_message(data: bytes) -> None:
    for read in (split_message, take_message):
        try:
            read(data)
        except ProtocolError:
            continue
