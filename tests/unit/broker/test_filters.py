"""What passes the filters, and as what."""

from __future__ import annotations

from typing import Any

from magnetar.broker.filters import FilterChain, Verdict, reject_markers
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position
from magnetar.protocol import ack_sets
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from magnetar.protocol.routing import key_slot


def entry(number: int, **fields: Any) -> Entry:
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, **fields)
    return Entry(Position(1, number), build_message(metadata, b"x"), number, 1)


def no_ack_set(_: Position) -> None:
    return None


def test_markers_are_never_delivered() -> None:
    sifted = FilterChain().sift([entry(0), entry(1, marker_type=0), entry(2)], no_ack_set)
    assert [each.position.entry_id for each in sifted.candidates] == [0, 2]
    assert sifted.never == [Position(1, 1)]


def test_the_presence_of_a_count_makes_a_batch() -> None:
    sifted = FilterChain().sift(
        [entry(0), entry(1, num_messages_in_batch=1), entry(2, num_messages_in_batch=7)], no_ack_set
    )
    assert [each.messages for each in sifted.candidates] == [1, 1, 7]


def test_acknowledged_members_cost_nothing() -> None:
    chain = FilterChain()
    sifted = chain.sift([entry(0, num_messages_in_batch=4)], lambda _: [0b0101])
    assert (sifted.candidates[0].messages, sifted.candidates[0].ack_set) == (2, [0b0101])
    assert chain.sift([entry(0, num_messages_in_batch=4)], lambda _: [0]).never == [Position(1, 0)]
    assert ack_sets.count([0b0101]) == 2


def test_the_first_filter_that_objects_decides() -> None:
    def later(_: Entry, metadata: MessageMetadata) -> Verdict:
        return Verdict.LATER if metadata.deliver_at_time > 100 else Verdict.DELIVER

    chain = FilterChain((reject_markers, later))
    sifted = chain.sift(
        [entry(0, deliver_at_time=200), entry(1, deliver_at_time=200, marker_type=1), entry(2)], no_ack_set
    )
    assert (sifted.later, sifted.never) == ([Position(1, 0)], [Position(1, 1)])
    assert (chain.delivered, chain.later, chain.never) == (1, 1, 1)


def test_keys_are_hashed_only_where_they_matter() -> None:
    keyed = entry(0, partition_key="a2V5", partition_key_b64_encoded=True)
    assert FilterChain().sift([keyed], no_ack_set).candidates[0].key_hash == 0
    assert FilterChain(keyed=True).sift([keyed], no_ack_set).candidates[0].key_hash == key_slot(b"key")


def test_chunks_are_told_apart() -> None:
    chunks = [entry(n, uuid="u", num_chunks_from_msg=2, chunk_id=n, total_chunk_msg_size=2) for n in range(2)]
    first, last = FilterChain().sift(chunks, no_ack_set).candidates
    assert (first.chunk_of, first.chunk_last, last.chunk_last) == ("u", False, True)
    assert FilterChain().sift([entry(0)], no_ack_set).candidates[0].chunk_of is None


def test_what_cannot_be_read_is_never_delivered() -> None:
    broken = Entry(Position(1, 0), b"\x0e\x01garbage", 0, 1)
    assert FilterChain().sift([broken], no_ack_set).never == [Position(1, 0)]
