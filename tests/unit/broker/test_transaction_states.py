"""The pure parts of transactions: what they decide, and that they read themselves again as they were."""

from __future__ import annotations

import pytest

from magnetar.broker.errors import InvalidTransactionStatus, TransactionConflict, TransactionNotFound
from magnetar.broker.transactions.coordinator_state import CoordinatorState, Status, slow
from magnetar.broker.transactions.ended import EndedTransactions
from magnetar.broker.transactions.pending_ack_store import pending_ack_log
from magnetar.broker.transactions.pending_acks import Acked, PendingAcks, Settled
from magnetar.broker.transactions.txn_id import TxnId, named
from magnetar.broker.transactions.visibility import AbortedTransactions, Visibility
from magnetar.managed_ledger import Position
from magnetar.naming import TopicName

ONE, TWO, THREE = TxnId(4, 1), TxnId(4, 2), TxnId(4, 3)
NOW = 1_000_000


def at(entry_id: int, ledger_id: int = 7) -> Position:
    return Position(ledger_id, entry_id)


# A coordinator.


def test_a_transaction_ends_as_it_was_decided_first() -> None:
    state = CoordinatorState(4)
    txn, _ = state.begin(NOW, 1000, None)
    assert txn == ONE
    assert state.add_partitions(txn, ["a", "b"]) is not None
    assert state.add_partitions(txn, ["b", "a"]) is None
    assert state.end(txn, commit=True) is not None
    assert state.end(txn, commit=True) is None  # Asked for again.
    with pytest.raises(InvalidTransactionStatus, match="COMMITTING"):
        state.end(txn, commit=False)
    with pytest.raises(InvalidTransactionStatus):
        state.add_partitions(txn, ["c"])
    assert state.overdue(NOW + 5000) == []
    assert state.finish(txn) is not None
    assert state.finish(txn) is None
    assert (len(state), state.outcome(txn), state.committed) == (0, Status.COMMITTED, 1)
    with pytest.raises(InvalidTransactionStatus, match="COMMITTED"):
        state.add_partitions(txn, ["c"])
    with pytest.raises(TransactionNotFound):
        state.end(TxnId(5, 1), commit=True)
    with pytest.raises(TransactionNotFound):
        state.end(TWO, commit=True)


def test_time_is_over_once_for_each_and_only_for_what_is_open() -> None:
    state = CoordinatorState(4)
    for timeout_ms in (300, 100, 200):
        state.begin(NOW, timeout_ms, None)
    state.end(THREE, commit=True)
    assert state.next_deadline_ms == NOW + 100
    assert state.overdue(NOW + 99) == []
    assert state.overdue(NOW + 250) == [TWO]
    assert state.overdue(NOW + 300) == [ONE]
    assert state.overdue(NOW + 999) == []
    assert [each.txn for each in slow(list(state), NOW + 250, 249)] == [ONE, TWO, THREE]


def test_the_low_watermark_stops_below_what_has_not_ended_everywhere() -> None:
    state = CoordinatorState(4)
    assert state.low_watermark == 0
    for _ in range(3):
        state.begin(NOW, 1000, None)
    state.end(ONE, commit=True)
    assert state.low_watermark == 0
    state.finish(ONE)
    assert state.low_watermark == 1
    for each in (THREE, TWO):
        state.end(each, commit=False)
        state.finish(each)
    assert state.low_watermark == 3


def test_only_so_many_outcomes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.broker.transactions.coordinator_state.OUTCOMES_MAX", 2)
    state = CoordinatorState(4)
    for _ in range(3):
        txn, _ = state.begin(NOW, 1000, None)
        state.end(txn, commit=True)
        state.finish(txn)
    assert [state.outcome(each) for each in (ONE, TWO, THREE)] == [None, Status.COMMITTED, Status.COMMITTED]


# What may be seen.


def test_nothing_is_seen_from_the_first_entry_of_the_oldest_open_transaction_on() -> None:
    state = Visibility()
    assert state.limit is None
    assert state.entry(ONE, at(0))
    assert state.entry(TWO, at(1))
    assert not state.entry(ONE, at(2))
    assert state.limit == at(0)
    state.marker(ONE, at(3), commit=True)
    assert state.limit == at(1)
    assert not state.hides(ONE)
    state.marker(TWO, at(4), commit=False)
    assert state.limit is None
    assert state.hides(TWO)


def test_what_is_told_twice_changes_nothing() -> None:
    state = Visibility()
    for _ in range(2):
        state.entry(ONE, at(0))
        state.marker(ONE, at(1), commit=False)
        state.entry(TWO, at(2))
    assert list(state.open) == [TWO]
    assert len(state.aborted) == 1


def test_an_aborted_transaction_is_forgotten_with_the_ledger_of_its_marker() -> None:
    state = Visibility()
    state.entry(ONE, at(5, 7))
    state.marker(ONE, at(0, 8), commit=False)
    state.entry(TWO, at(1, 8))
    state.marker(TWO, at(0, 9), commit=False)
    assert state.aborted.forget_before(8) == 0
    assert state.hides(ONE)
    assert state.aborted.forget_before(9) == 1
    assert not state.hides(ONE)
    assert state.hides(TWO)


def test_a_million_aborted_transactions_take_little() -> None:
    aborted = AbortedTransactions()
    for least in range(1, 20_001):
        aborted.add(TxnId(0, least), least // 1000)
    aborted.add(TxnId(0, 77), 0)
    assert len(aborted) == 20_000
    assert TxnId(0, 20_000) in aborted
    assert TxnId(1, 5) not in aborted
    assert sum(array.itemsize * len(array) for array in aborted._ids.values()) == 8 * 20_000


def test_a_coordinators_word_makes_orphans_of_what_it_never_knew() -> None:
    state = Visibility()
    state.entry(ONE, at(0))
    state.entry(THREE, at(1))
    state.ended.raise_watermark(4, 2)
    assert state.orphans == [ONE]
    state.marker(ONE, at(2), commit=False)
    assert state.orphans == []
    assert state.hides(ONE)


def test_visibility_is_read_again_as_it_was_told() -> None:
    state = Visibility()
    for least in range(1, 6000):
        state.entry(TxnId(least % 3, least), at(2 * least))
        if least % 7:
            state.marker(TxnId(least % 3, least), at(2 * least + 1), commit=least % 2 == 0)
    state.ended.raise_watermark(1, 3000)
    again = Visibility.decode(state.encode())
    assert again.open == state.open
    assert list(again.open) == list(state.open)
    assert again.last_entry == state.last_entry
    assert again.through == state.through
    assert sorted(again.aborted) == sorted(state.aborted)
    assert sorted(again.ended) == sorted(state.ended)
    assert again.ended.watermarks == state.ended.watermarks
    assert all(len(name.encode()) < 1 << 16 for name in state.encode())  # As cursors keep them.
    with pytest.raises(ValueError, match="format 9"):
        Visibility.decode({"format": 9})


def test_ended_transactions_are_remembered_one_by_one_above_the_watermark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = EndedTransactions()
    ended.add(THREE)
    assert THREE in ended
    assert TWO not in ended
    assert len(ended) == 1
    assert ended.raise_watermark(4, 3)
    assert not ended.raise_watermark(4, 2)
    assert TWO in ended
    assert len(ended) == 0
    assert not ended.singly(THREE)
    monkeypatch.setattr("magnetar.broker.transactions.ended.REMEMBERED_MAX", 2)
    for least in (5, 6, 7):
        ended.add(TxnId(4, least))
    assert TxnId(4, 5) not in ended
    assert TxnId(4, 7) in ended


# Provisional acknowledgements.


class Cursor:
    """What a cursor says to `PendingAcks`."""

    def __init__(self) -> None:
        self.acknowledged: set[Position] = set()
        self.left: dict[Position, list[int]] = {}

    def hold(self, pending: PendingAcks, txn: TxnId, *acked: Acked) -> object:
        return pending.hold(txn, acked, is_acknowledged=self.acknowledged.__contains__, unacked=self.left.get)


def test_one_transaction_at_a_time_holds_a_message() -> None:
    pending, cursor = PendingAcks(), Cursor()
    cursor.acknowledged.add(at(9))
    assert cursor.hold(pending, ONE, Acked(at(0)), Acked(at(1))) is not None
    assert cursor.hold(pending, ONE, Acked(at(1))) is None  # Told again.
    with pytest.raises(TransactionConflict):
        cursor.hold(pending, TWO, Acked(at(2)), Acked(at(1)))
    with pytest.raises(TransactionConflict):
        cursor.hold(pending, TWO, Acked(at(9)))
    assert pending.left_of(at(2), None) is None  # Nothing was held of what failed.
    assert pending.left_of(at(1), None) == ()
    settled, _ = pending.end(ONE, commit=False, watermark=0)
    assert settled == Settled([(at(0), None), (at(1), None)])
    assert cursor.hold(pending, TWO, Acked(at(1))) is not None
    with pytest.raises(InvalidTransactionStatus):
        cursor.hold(pending, ONE, Acked(at(5)))


def test_messages_of_a_batch_may_be_held_by_different_transactions() -> None:
    pending, cursor = PendingAcks(), Cursor()
    cursor.left[at(0)] = [0b01111]  # Of five the last one is acknowledged.
    cursor.hold(pending, ONE, Acked(at(0), [0b11110], 5))
    cursor.hold(pending, TWO, Acked(at(0), [0b11101], 5))
    cursor.hold(pending, ONE, Acked(at(0), [0b11011], 5))
    for taken in (0b11110, 0b11101, 0b11011, 0b01111):
        with pytest.raises(TransactionConflict):
            cursor.hold(pending, THREE, Acked(at(0), [taken], 5))
    with pytest.raises(TransactionConflict):
        cursor.hold(pending, THREE, Acked(at(0)))
    assert pending.left_of(at(0), cursor.left[at(0)]) == [0b01000]
    settled, _ = pending.end(ONE, commit=True, watermark=0)
    assert settled.individual == [(at(0), [0b11010])]
    assert pending.left_of(at(0), None) == [0b11101]


def test_cumulative_acknowledgements_exclude_what_others_hold_before_them() -> None:
    pending, cursor = PendingAcks(), Cursor()
    cursor.hold(pending, ONE, Acked(at(2)))
    with pytest.raises(TransactionConflict):
        pending.hold_up_to(TWO, at(3), None, at(0))
    assert pending.hold_up_to(ONE, at(3), None, at(0)) is not None
    assert pending.hold_up_to(ONE, at(2), None, at(0)) is None
    with pytest.raises(TransactionConflict):
        pending.hold_up_to(TWO, at(8), None, at(0))
    with pytest.raises(TransactionConflict):
        cursor.hold(pending, TWO, Acked(at(3)))
    assert cursor.hold(pending, TWO, Acked(at(4))) is not None
    assert pending.left_of(at(1), None) == ()
    assert pending.left_of(at(5), None) is None
    assert pending.end(ONE, commit=True, watermark=0)[0] == Settled([(at(2), None)], (at(3), None))
    with pytest.raises(TransactionConflict):
        pending.hold_up_to(THREE, at(3), None, at(3))


def test_an_end_told_again_is_no_news() -> None:
    pending, cursor = PendingAcks(), Cursor()
    cursor.hold(pending, TWO, Acked(at(0)))
    settled, record = pending.end(TWO, commit=True, watermark=0)
    assert settled
    assert record is not None
    assert pending.end(TWO, commit=True, watermark=0) == (Settled(), None)
    assert pending.end(TWO, commit=True, watermark=2) == (
        Settled(),
        {"op": "watermark", "most": 4, "least": 2},
    )


@pytest.mark.parametrize("subscription", ["a/b", "a%2Fb", "\x00", "plain"])
def test_any_subscription_has_a_pending_ack_log_of_its_own(subscription: str) -> None:
    topic = TopicName.parse("t")
    names = [pending_ack_log(topic, each) for each in ("a/b", "a%2Fb", "\x00", "plain")]
    assert len(set(names)) == 4
    assert TopicName.parse(str(pending_ack_log(topic, subscription))) in names
    assert names[3].local_name == "t-plain__transaction_pending_ack"


@pytest.mark.parametrize("least", [1 << 63, (1 << 64) - 1])
def test_no_transaction_has_a_number_that_nobody_counts_to(least: int) -> None:
    """It would not fit where aborted transactions are kept."""
    with pytest.raises(TransactionNotFound):
        named(0, least)
    with pytest.raises(TransactionNotFound):
        named(least, 0)
    assert named(3, (1 << 63) - 1) == TxnId(3, (1 << 63) - 1)


def test_a_snapshot_of_which_the_rest_was_not_stored_forgets_nothing() -> None:
    state, again = CoordinatorState(4), CoordinatorState(4)
    for _ in range(1200):
        again.apply(state.begin(NOW, 1000, None)[1])
    again.apply(state.end(TxnId(4, 1100), commit=True) or {})
    first, *rest = state.snapshot()
    again.apply(first)  # And there a broker ended.
    assert len(rest) == 2
    assert len(again) == 1200
    assert [each.txn for each in again.unfinished] == [TxnId(4, 1100)]
    for part in rest:
        again.apply(part)
    assert again.snapshot() == state.snapshot()

    acks, read = PendingAcks(), PendingAcks()
    for entry_id in range(2500):
        record = acks.hold(
            ONE, [Acked(at(entry_id))], is_acknowledged=lambda _: False, unacked=lambda _: None
        )
        assert record is not None
        read.apply(record)
    first, *rest = acks.snapshot()
    read.apply(first)
    assert len(rest) == 2
    assert len(read) == 2500
    for part in rest:
        read.apply(part)
    assert read.snapshot() == acks.snapshot()
    read.apply(PendingAcks().snapshot()[0])  # What is told whole replaces all there was.
    assert len(read) == 0
