"""Message ids in every form, and the algebra of ack sets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.protocol import ack_sets
from magnetar.protocol.errors import InvalidMessageId
from magnetar.protocol.ids import EARLIEST, LATEST, MessageId

SIGNED = st.integers(-1, 2**63 - 1)
IDS = st.builds(
    MessageId,
    SIGNED,
    SIGNED,
    st.integers(-1, 2**31 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**31 - 1),
)
SETS = st.integers(1, 300).flatmap(
    lambda size: st.tuples(
        st.just(size), st.sets(st.integers(0, size - 1)), st.sets(st.integers(0, size - 1))
    )
)


@given(IDS)
def test_an_id_survives_bytes_and_text(message_id: MessageId) -> None:
    read = MessageId.from_bytes(message_id.to_bytes())
    assert read == message_id
    assert read.batch_size == message_id.batch_size
    assert MessageId.parse(str(message_id)) == message_id
    assert hash(MessageId.parse(str(message_id))) == hash(message_id)


@given(st.lists(IDS, max_size=8))
def test_ids_have_one_order(ids: list[MessageId]) -> None:
    assert sorted(ids) == sorted(ids, key=lambda i: (i.ledger_id, i.entry_id, i.partition, i.batch_index))
    assert all(message_id >= EARLIEST or message_id.ledger_id == -1 for message_id in ids)
    assert all(message_id <= LATEST or message_id.ledger_id == LATEST.ledger_id for message_id in ids)


@given(st.binary(max_size=30))
def test_random_bytes_are_an_id_or_refused(data: bytes) -> None:
    try:
        message_id = MessageId.from_bytes(data)
    except InvalidMessageId:
        return
    assert -(2**63) <= message_id.ledger_id < 2**63


@pytest.mark.parametrize("text", ["", "1", "a:b", "1:2:3:4:5", "1:", "1:2:", " 1:2", "1:2\n", "١:٢"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessageId, match="write ledger:entry"):
        MessageId.parse(text)


@given(SETS)
def test_acknowledging_in_two_steps_is_acknowledging_both(sets: tuple[int, set[int], set[int]]) -> None:
    size, first, second = sets
    everything = ack_sets.all_unacked(size)
    both = ack_sets.and_(ack_sets.without(everything, first), ack_sets.without(everything, second))
    assert both == ack_sets.without(everything, first | second)
    left = sorted(set(range(size)) - first - second)
    assert ack_sets.indexes(both) == left
    assert ack_sets.count(both) == len(left)
    assert ack_sets.is_empty(both) == (not left)
    assert all(ack_sets.is_unacked(both, index) == (index in left) for index in range(size + 70))
    assert all(-(2**63) <= word < 2**63 for word in both)
    assert ack_sets.from_bits(ack_sets.to_bits(both)) == both


@given(st.integers(1, 200), st.integers(0, 210))
def test_acknowledged_up_to_a_member(size: int, index: int) -> None:
    assert ack_sets.indexes(ack_sets.unacked_from(index, size)) == list(range(index, size))


def test_words_are_as_clients_write_them() -> None:
    """1 = unacknowledged, least significant bit first, signed words, none of 0 at the end."""
    assert ack_sets.all_unacked(3) == [0b111]
    assert ack_sets.all_unacked(64) == [-1]
    assert ack_sets.all_unacked(65) == [-1, 1]
    assert ack_sets.without(ack_sets.all_unacked(65), [64]) == [-1]
    assert ack_sets.unacked_from(2, 3) == [0b100]
