"""Recovery, told as stories; the traps are those of the storage fact sheet, section 1.12."""

from __future__ import annotations

from magnetar.ledger.metadata import LedgerMetadata, LedgerState, Segment
from magnetar.ledger.recovery import (
    CloseLedger,
    FenceAndReadLac,
    GiveUp,
    LedgerRecovery,
    ReadReplica,
    ReplaceBookies,
    Request,
    StoredCopy,
    WriteBack,
)
from magnetar.protocol.bookie import BookieStatus

OK, NO, LOST = BookieStatus.OK, BookieStatus.NO_SUCH_ENTRY, BookieStatus.TIMEOUT


def ledger(*segments: Segment, write: int = 3, ack: int = 2) -> LedgerMetadata:
    size = len(segments[0].ensemble)
    return LedgerMetadata(7, size, write, ack, segments, "token", 0, LedgerState.IN_RECOVERY)


ABC = ledger(Segment(0, ("a", "b", "c")))


def copy_of(entry_id: int) -> StoredCopy:
    """Entry `entry_id` of a ledger whose entries have ten bytes each."""
    return StoredCopy(b"stored %d" % entry_id, 10 * (entry_id + 1), 10)


def reads(entry_id: int, requests: list[Request]) -> list[int]:
    return [each.slot for each in requests if isinstance(each, ReadReplica) and each.entry_id == entry_id]


def written(recovery: LedgerRecovery, requests: list[Request]) -> list[Request]:
    """Let all write-backs among `requests` succeed."""
    more: list[Request] = []
    for each in requests:
        if isinstance(each, WriteBack):
            more += recovery.written(each.add, each.slot, each.bookie, OK)
    return more


def fenced(metadata: LedgerMetadata, lac: int, *, window: int = 1) -> tuple[LedgerRecovery, list[Request]]:
    """A recovery that has its coverage, and what it asks next."""
    recovery = LedgerRecovery(metadata, window=window)
    requests: list[Request] = []
    for each in recovery.start():
        assert isinstance(each, FenceAndReadLac)
        requests += recovery.fenced(each.slot, OK, lac)
    return recovery, requests


def test_it_keeps_an_entry_that_may_have_been_acknowledged_and_ends_behind_it() -> None:
    """Two of three bookies answer. Entry 7 is past both LACs, yet its writer may hold an ack."""
    recovery = LedgerRecovery(ABC, window=1)
    assert [each.bookie for each in recovery.start() if isinstance(each, FenceAndReadLac)] == ["a", "b", "c"]
    assert recovery.fenced(0, OK, 5) == []
    requests = recovery.fenced(1, OK, 6)
    assert reads(7, requests) == [1, 2, 0]
    requests = recovery.read(7, 1, OK, copy_of(7))
    assert sorted(each.bookie for each in requests if isinstance(each, WriteBack)) == ["a", "b", "c"]
    assert reads(8, requests) == [2, 0, 1]
    assert written(recovery, requests) == []
    assert recovery.read(8, 2, NO, None) == []
    assert recovery.read(8, 0, NO, None) == [CloseLedger(7, 80, ())]


def test_nothing_is_read_before_an_ack_quorum_is_fenced_everywhere() -> None:
    """E=4, Qw=3, Qa=2: two fenced neighbours leave a write set with two bookies that are not."""
    metadata = ledger(Segment(0, ("a", "b", "c", "d")))
    recovery = LedgerRecovery(metadata)
    recovery.start()
    assert recovery.fenced(0, OK, 3) == []
    assert recovery.fenced(1, OK, 3) == []
    assert recovery.fenced(2, OK, 3) != []


def test_it_gives_up_where_an_ack_quorum_may_hide() -> None:
    recovery = LedgerRecovery(ABC)
    recovery.start()
    assert recovery.fenced(0, OK, 3) == []
    assert recovery.fenced(1, LOST, -1) == []
    (given_up,) = recovery.fenced(2, BookieStatus.IO_ERROR, -1)
    assert isinstance(given_up, GiveUp)


def test_a_bookie_that_never_heard_of_the_ledger_counts_as_fenced() -> None:
    recovery = LedgerRecovery(ABC)
    recovery.start()
    recovery.fenced(0, BookieStatus.NO_SUCH_LEDGER, -1)
    assert reads(0, recovery.fenced(1, OK, -1))


def test_denials_and_silence_together_never_truncate() -> None:
    """T18: one bookie denies, two are silent: the entry may be acknowledged on those two."""
    recovery, _ = fenced(ABC, 4)
    assert recovery.read(5, 2, NO, None) == []
    assert recovery.read(5, 0, LOST, None) == []
    (given_up,) = recovery.read(5, 1, LOST, None)
    assert isinstance(given_up, GiveUp)


def test_corrupt_bytes_are_silence() -> None:
    """T17: a replica whose checksum fails is reported as unknown, and may not help to truncate."""
    recovery, _ = fenced(ABC, 4)
    assert recovery.read(5, 2, BookieStatus.UNKNOWN, None) == []
    assert recovery.read(5, 0, NO, None) == []
    assert reads(6, recovery.read(5, 1, OK, copy_of(5)))


def test_one_silent_bookie_does_not_hold_it_up() -> None:
    """T7: enough denials end the ledger, whatever the third bookie does."""
    recovery, _ = fenced(ABC, -1)
    assert recovery.read(0, 0, NO, None) == []
    assert recovery.read(0, 1, NO, None) == [CloseLedger(-1, 0, ())]
    assert recovery.read(0, 2, OK, copy_of(0)) == [], "a late answer changed the end"


def test_an_empty_last_segment_is_not_walked_backwards_through() -> None:
    """T2: its bookies know no LAC, but all before its first entry is confirmed."""
    metadata = ledger(Segment(0, ("a", "b", "c")), Segment(20, ("a", "b", "d")))
    recovery, requests = fenced(metadata, -1)
    assert reads(20, requests)
    recovery.read(20, 2, NO, None)
    requests = recovery.read(20, 0, NO, None)
    # Nothing was replayed, so the length is asked of the last entry, where the old segment has it.
    assert {each.bookie for each in requests if isinstance(each, ReadReplica)} == {"a", "b", "c"}
    assert reads(19, requests)
    assert recovery.read(19, 0, OK, copy_of(19)) == [CloseLedger(19, 200, ())]


def test_the_length_must_be_known_to_close() -> None:
    recovery, _ = fenced(ABC, 4)
    recovery.read(5, 2, NO, None)
    assert reads(4, recovery.read(5, 0, NO, None))
    for slot in (0, 1):
        assert recovery.read(4, slot, LOST, None) == []
    (given_up,) = recovery.read(4, 2, LOST, None)
    assert isinstance(given_up, GiveUp)


def test_a_bookie_that_fails_a_write_back_is_replaced_in_private() -> None:
    recovery, _ = fenced(ABC, 4)
    requests = recovery.read(5, 0, OK, copy_of(5))
    backs = [each for each in requests if isinstance(each, WriteBack)]
    assert recovery.written(backs[0].add, backs[0].slot, backs[0].bookie, OK) == []
    (asked,) = recovery.written(backs[1].add, backs[1].slot, backs[1].bookie, LOST)
    assert asked == ReplaceBookies(("a", "b", "c"), (backs[1].slot,))
    (again,) = recovery.replaced(asked, {backs[1].slot: "d"})
    assert isinstance(again, WriteBack)
    assert again.bookie == "d"
    recovery.written(again.add, again.slot, "d", OK)
    recovery.read(6, 0, NO, None)
    (closed,) = recovery.read(6, 1, NO, None)
    assert isinstance(closed, CloseLedger)
    assert closed.last_entry == 5
    assert [(each.first_entry, "d" in each.ensemble) for each in closed.added] == [(5, True)]


def test_without_a_replacement_an_ack_quorum_is_enough() -> None:
    recovery, _ = fenced(ABC, 4)
    requests = recovery.read(5, 0, OK, copy_of(5))
    backs = [each for each in requests if isinstance(each, WriteBack)]
    (asked,) = recovery.written(backs[0].add, backs[0].slot, backs[0].bookie, LOST)
    assert isinstance(asked, ReplaceBookies)
    assert recovery.replaced(asked, {}) == []
    recovery.read(6, 0, NO, None)
    assert recovery.read(6, 1, NO, None) == []
    recovery.written(backs[1].add, backs[1].slot, backs[1].bookie, OK)
    assert recovery.written(backs[2].add, backs[2].slot, backs[2].bookie, OK) == [CloseLedger(5, 60, ())]


def test_it_gives_up_where_the_tail_cannot_be_written_back() -> None:
    recovery, _ = fenced(ABC, 4)
    backs = [each for each in recovery.read(5, 0, OK, copy_of(5)) if isinstance(each, WriteBack)]
    (asked,) = recovery.written(backs[0].add, backs[0].slot, backs[0].bookie, LOST)
    assert isinstance(asked, ReplaceBookies)
    assert recovery.replaced(asked, {}) == []
    (asked,) = recovery.written(backs[1].add, backs[1].slot, backs[1].bookie, LOST)
    assert isinstance(asked, ReplaceBookies)
    (given_up,) = recovery.replaced(asked, {})
    assert isinstance(given_up, GiveUp)


def test_it_reads_ahead_but_decides_in_order() -> None:
    recovery, requests = fenced(ABC, -1, window=4)
    assert {each.entry_id for each in requests if isinstance(each, ReadReplica)} == {0}
    requests = recovery.read(0, 0, OK, copy_of(0))
    assert {each.entry_id for each in requests if isinstance(each, ReadReplica)} == {1, 2}
    written(recovery, requests)
    # Entry 2 cannot have been acknowledged; but 1 may.
    for slot in (0, 1):
        assert recovery.read(2, slot, NO, None) == []
    requests = recovery.read(1, 2, OK, copy_of(1))
    assert not [each for each in requests if isinstance(each, CloseLedger)]
    assert written(recovery, requests) == [CloseLedger(1, 20, ())]


def test_neither_reads_nor_unwritten_entries_pile_up() -> None:
    recovery, requests = fenced(ABC, -1, window=2)
    asked = {each.entry_id for each in requests if isinstance(each, ReadReplica)}
    entry_id = 0
    while entry_id in asked:
        for each in recovery.read(entry_id, 0, OK, copy_of(entry_id)):
            if isinstance(each, ReadReplica):
                asked.add(each.entry_id)
        entry_id += 1
    assert asked == {0, 1, 2, 3}, "it reads on although nothing has been written back"


def test_it_says_which_bookies_are_missing() -> None:
    """P16: an operator must learn whom to bring back."""
    recovery = LedgerRecovery(ABC)
    recovery.start()
    recovery.fenced(0, LOST, -1)
    recovery.fenced(1, BookieStatus.UNKNOWN, -1)
    (given_up,) = recovery.fenced(2, OK, 4)
    assert isinstance(given_up, GiveUp)
    assert given_up.missing == ("a", "b")
    assert given_up.reason.endswith(f"missing: a ({LOST.name}), b (UNKNOWN)")

    recovery, _ = fenced(ABC, 4)
    recovery.read(5, 2, NO, None)
    recovery.read(5, 0, LOST, None)
    (given_up,) = recovery.read(5, 1, LOST, None)
    assert isinstance(given_up, GiveUp)
    assert given_up.missing == ("a", "b") or given_up.missing == ("b", "a")
