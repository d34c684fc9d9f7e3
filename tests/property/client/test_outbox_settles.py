"""What a producer sends again after a connection: nothing the broker has, everything it has not, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.outbox import Outbox, ReceiptOutOfStep
from magnetar.client.outgoing import Envelope, batch_entry, pack_single, single_entry
from magnetar.protocol.batch import iterate_batch
from magnetar.protocol.message import split_message
from magnetar.protocol.pulsar_pb2 import LZ4, NONE

# Sequence ids that increase by gaps, and how many of them share each entry; 0: the message stands alone.
GAPS = st.lists(st.integers(1, 5), min_size=1, max_size=30)
SIZES = st.lists(st.integers(0, 6), min_size=30, max_size=30)


def filled(gaps: list[int], sizes: list[int], compression: int) -> tuple[Outbox, list[int]]:
    envelope = Envelope("p", LZ4 if compression else NONE, b"")
    ids: list[int] = []
    for gap in gaps:
        ids.append((ids[-1] if ids else 1000) + gap)
    outbox = Outbox()
    rest = list(ids)
    for size in sizes:
        some, rest = rest[: max(size, 1)], rest[max(size, 1) :]
        if not some:
            break
        if size == 0:
            outbox.push(single_entry(*pack_single(envelope, b"%d" % some[0], some[0], 1)))
        else:
            outbox.push(batch_entry(envelope, [b"%d" % each for each in some], some, 1))
    return outbox, ids


def sequence_ids(outbox: Outbox) -> list[int]:
    """What would be sent, by the payloads."""
    found: list[int] = []
    for entry in outbox:
        message = split_message(b"".join(entry.message))
        if entry.batched:
            found += [int(bytes(view)) for _, view in iterate_batch(message.metadata, message.payload)]
        else:
            single = split_message(b"".join(entry.message))
            found += [single.metadata.sequence_id]
    return found


@given(GAPS, SIZES, st.integers(0, 1), st.lists(st.integers(990, 1160), max_size=4))
def test_everything_above_the_mark_is_sent_and_nothing_else(
    gaps: list[int], sizes: list[int], compression: int, marks: list[int]
) -> None:
    outbox, ids = filled(gaps, sizes, compression)
    settled = 0
    highest = -1
    for mark in marks:
        highest = max(highest, mark)
        settled += sum(each.duplicates for each in outbox.settle(mark))
        left = [each for each in ids if each > highest]
        assert sequence_ids(outbox) == left
        assert outbox.messages == len(left)
        assert settled == len(ids) - len(left)
        for entry in outbox:
            metadata = split_message(b"".join(entry.message)).metadata  # Its checksum is right too.
            assert (metadata.sequence_id, entry.highest_id) == (entry.sequence_id, entry.highest_id)
            assert entry.sequence_id > highest


@given(GAPS, SIZES)
def test_receipts_are_taken_in_order_only(gaps: list[int], sizes: list[int]) -> None:
    outbox, _ = filled(gaps, sizes, 0)
    entries = list(outbox)
    assert outbox.take(5) is None  # Late: of something given up long ago.
    if len(entries) > 1:
        with pytest.raises(ReceiptOutOfStep, match=str(entries[0].sequence_id)):
            outbox.take(entries[1].sequence_id)
    for entry in entries:
        assert outbox.take(entry.sequence_id) is entry
    assert outbox.messages == 0
