"""A producer that crashed sends its stream again, grouped otherwise: nothing is lost, nothing is stored twice.

The broker's part is played by the cores it uses: `Deduplication` judges, `sequence_ids` reads the ids,
`cut_batch` cuts. Each run stores a stream in one grouping, loses the receipts from some point on, perhaps
restarts the broker from its snapshot and log, and sends everything after the last receipt again in another.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.broker.deduplication import Deduplication, Sequences, Verdict
from magnetar.broker.sequence_ids import stored_sequences, told_range, untold_sequences
from magnetar.protocol.batch import BatchBuilder, cut_batch, iterate_batch
from magnetar.protocol.compression import compress, compression_type
from magnetar.protocol.message import build_message, read_metadata, split_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata


class Log:
    """What a topic with deduplication does with entries, without the waiting."""

    def __init__(self) -> None:
        self.marks = Deduplication()
        self.entries: list[bytes] = []
        self.snapshot: tuple[int, dict[str, int]] = (0, {})

    def publish(self, message: bytes, sequence_id: int, highest: int) -> Verdict:
        sequences = told_range(sequence_id, highest) or untold_sequences(split_message(message))
        verdict = self.marks.judge("p", sequences)
        if verdict is Verdict.STRADDLES:
            mark = self.marks.last_sequence_id("p")
            message = cut_batch(message, lambda _, member: member > mark)
        if verdict in (Verdict.NEW, Verdict.STRADDLES):
            push = self.marks.push("p", sequences, 0.0)
            self.entries.append(message)
            self.marks.stored(push)
        return verdict

    def take_snapshot(self) -> None:
        self.snapshot = (len(self.entries), self.marks.snapshot())

    def restart(self) -> None:
        covered, properties = self.snapshot
        self.marks = Deduplication()
        self.marks.restore(properties, 0.0)
        for entry in self.entries[covered:]:
            self.marks.replay("p", stored_sequences(split_message(entry)), 0.0)

    def payloads(self) -> list[bytes]:
        payloads: list[bytes] = []
        for entry in self.entries:
            split = split_message(entry)
            if split.metadata.HasField("num_messages_in_batch"):
                payloads += [bytes(payload) for _, payload in iterate_batch(split.metadata, split.payload)]
            else:
                payloads.append(bytes(split.payload))
        return payloads


def send(log: Log, ids: list[int], *, tell_highest: bool, compression: str = "none") -> Verdict:
    """One entry: a batch as Java (telling both ends) or as C++ and Go (telling the first) send it."""
    if len(ids) == 1 and not tell_highest:
        metadata = MessageMetadata(producer_name="p", sequence_id=ids[0], publish_time=1)
        return log.publish(build_message(metadata, b"%d" % ids[0]), ids[0], 0)
    builder = BatchBuilder()
    for sequence_id in ids:
        builder.add(b"%d" % sequence_id, sequence_id)
    kind = compression_type(compression)
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=ids[0],
        publish_time=1,
        num_messages_in_batch=len(ids),
        compression=kind,
        uncompressed_size=len(builder.payload()),
    )
    if tell_highest:
        metadata.highest_sequence_id = ids[-1]
    message = build_message(metadata, compress(kind, builder.payload()))
    return log.publish(message, ids[0], ids[-1] if tell_highest else 0)


def grouped(ids: list[int], cuts: set[int]) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    for index, sequence_id in enumerate(ids):
        if index in cuts and groups[-1]:
            groups.append([])
        groups[-1].append(sequence_id)
    return [group for group in groups if group]


@pytest.mark.parametrize("tell_highest", [True, False], ids=["java", "cpp"])
@pytest.mark.parametrize("restart", [False, True], ids=["alive", "restarted"])
def test_every_boundary_shifted(tell_highest: bool, restart: bool) -> None:
    """Batches of 4, 12 messages, sent again in batches of every size, from every message on."""
    ids = list(range(12))
    for stored in range(0, 13, 4):
        for resent_from in range(stored + 1):
            for size in range(1, 13):
                log = Log()
                for group in grouped(ids[:stored], {0, 4, 8}):
                    send(log, group, tell_highest=tell_highest)
                if restart:
                    log.restart()
                for group in grouped(ids[resent_from:], set(range(0, 13, size))):
                    send(log, group, tell_highest=tell_highest)
                assert log.payloads() == [b"%d" % number for number in ids], (stored, resent_from, size)


@st.composite
def gapped_ids(draw: st.DrawFn) -> list[int]:
    steps = draw(st.lists(st.integers(1, 5), min_size=1, max_size=25))
    ids, last = [], draw(st.integers(-1, 3))
    for step in steps:
        last += step
        ids.append(last)
    return ids


@given(
    ids=gapped_ids(),
    first_cuts=st.sets(st.integers(0, 25)),
    attempts=st.lists(
        st.tuples(
            st.integers(0, 25),
            st.sets(st.integers(0, 25)),
            st.booleans(),
            st.booleans(),
            st.sampled_from(("none", "zlib")),
        ),
        min_size=1,
        max_size=4,
    ),
    snapshots=st.booleans(),
)
def test_no_loss_and_no_duplicate(
    ids: list[int],
    first_cuts: set[int],
    attempts: list[tuple[int, set[int], bool, bool, str]],
    snapshots: bool,
) -> None:
    """Several crashes, each after a part was sent; each attempt begins anywhere at or before what is stored."""
    log = Log()
    sent = 0
    for index, (upto, cuts, tell_highest, restart, compression) in enumerate(attempts):
        last = index == len(attempts) - 1
        upto = len(ids) if last else min(len(ids), max(sent, upto))
        start = 0 if not sent else upto % (sent + 1)
        for group in grouped(ids[start:upto], cuts | (first_cuts if index == 0 else set())):
            assert send(log, group, tell_highest=tell_highest, compression=compression) is not Verdict.UNKNOWN
        sent = max(sent, upto)
        if snapshots:
            log.take_snapshot()
        if restart:
            log.restart()
    assert log.payloads() == [b"%d" % sequence_id for sequence_id in ids]
    assert log.marks.last_sequence_id("p") == ids[-1]


@given(ids=gapped_ids(), cuts=st.sets(st.integers(0, 25)))
def test_replaying_the_log_finds_the_marks_that_were(ids: list[int], cuts: set[int]) -> None:
    log = Log()
    for group in grouped(ids, cuts):
        send(log, group, tell_highest=len(group) % 2 == 0)
    before = log.marks.snapshot()
    log.restart()
    assert log.marks.snapshot() == before


def test_a_cut_batch_tells_its_own_ids() -> None:
    log = Log()
    send(log, [0, 1, 2], tell_highest=True)
    assert send(log, [1, 2, 3, 4], tell_highest=True) is Verdict.STRADDLES
    metadata = read_metadata(log.entries[-1])
    assert (metadata.sequence_id, metadata.highest_sequence_id, metadata.num_messages_in_batch) == (3, 4, 2)
    assert stored_sequences(split_message(log.entries[-1])) == Sequences(3, 4)
