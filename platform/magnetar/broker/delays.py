"""Entries that are held back until their time. Pure: the time comes in from outside.

One per subscription whose consumers share: elsewhere order comes first, and a delay is not heeded. Nothing of
this is stored. A held entry is an unacknowledged one, and who reads it again holds it back again; so it is exact
after a restart whatever was lost, and the log is the only truth (docs/decisions/0065).

Millions are held in sixteen bytes each: what comes is heaped, and every so many are sorted into a run of plain
numbers that is only read from its front. Which entries are held at all is known by one bit each; what was let go
meanwhile is passed over when its time comes, and runs that are mostly such entries are written anew, a few at a time.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from magnetar.broker.filters import Verdict
from magnetar.broker.held_positions import HeldPositions
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger import Entry
    from magnetar.protocol.pulsar_pb2 import MessageMetadata

RUN_ENTRIES: Final = 4096
_SWEPT_AT_ONCE: Final = 2
_PASSED_AT_ONCE: Final = 4096
"""Entries that were let go already and are passed over in one call: the loop has other work."""

_ENTRY_BITS: Final = 40
_ENTRY_MASK: Final = (1 << _ENTRY_BITS) - 1
_HEAPED_BYTES: Final = 160
_RUN_BYTES: Final = 16


class _Run:
    """Entries in the order of their times, read from the front."""

    __slots__ = ("at", "dues", "places")

    def __init__(self, entries: list[tuple[int, int]]) -> None:
        self.dues = array("q", [due for due, _ in entries])
        self.places = array("Q", [place for _, place in entries])
        self.at = 0


class Delays:
    """A filter that says later, and knows when. Source: Pulsar PIP-26, `deliver_at_time`."""

    __slots__ = (
        "_fresh",
        "_heads",
        "_held",
        "_ledger_ids",
        "_limit",
        "_ordered",
        "_runs",
        "_slots",
        "_swept",
        "active",
        "now_ms",
    )

    def __init__(self, limit: int) -> None:
        self.now_ms = 0
        """The time at which entries are judged; whoever asks sets it first."""
        self.active = True
        """Whether delays are heeded; if not, everything is due."""
        self._limit = limit
        self._held = HeldPositions()
        self._fresh: list[tuple[int, int]] = []
        self._runs: dict[int, _Run] = {}
        self._heads: list[tuple[int, int]] = []
        """Of each run, the time of its first entry and its number."""
        self._ordered = 0
        """Entries still to be read from runs, those included that were let go."""
        self._swept = 0
        self._slots: dict[int, int] = {}
        self._ledger_ids: list[int] = []

    def __len__(self) -> int:
        return self._held.count

    @property
    def full(self) -> bool:
        """Whether so many are held that nothing further should be read."""
        return self._held.count >= self._limit

    @property
    def size_bytes(self) -> int:
        """The memory it takes, about."""
        return self._ordered * _RUN_BYTES + len(self._fresh) * _HEAPED_BYTES + self._held.size_bytes

    @property
    def next_due_ms(self) -> int | None:
        """When the soonest is due, or was before it was let go; None where nothing is held."""
        if not self._held.count:
            return None
        if not self.active:
            return 0
        fresh, heads = self._fresh, self._heads
        if not heads:
            return fresh[0][0]
        return min(fresh[0][0], heads[0][0]) if fresh else heads[0][0]

    @property
    def any_due(self) -> bool:
        due_ms = self.next_due_ms
        return due_ms is not None and due_ms <= self.now_ms

    def judge(self, entry: Entry, metadata: MessageMetadata) -> Verdict:
        """Deliver what is due; hold back the rest."""
        if metadata.deliver_at_time <= self.now_ms or not self.active:
            return Verdict.DELIVER
        self.hold(entry.position, metadata.deliver_at_time)
        return Verdict.LATER

    def hold(self, position: Position, due_ms: int) -> None:
        """Hold an entry back until `due_ms`, unless it is held already.

        An entry's time is written in it and never changes: one that was let go may come again at the same time only.
        """
        if not self._held.add(position):
            return
        slot = self._slots.get(position.ledger_id)
        if slot is None:
            slot = self._slots[position.ledger_id] = len(self._ledger_ids)
            self._ledger_ids.append(position.ledger_id)
        heappush(self._fresh, (due_ms, slot << _ENTRY_BITS | position.entry_id))
        if len(self._fresh) >= RUN_ENTRIES:
            self._seal()

    def _seal(self) -> None:
        """Sort what is heaped into a run."""
        fresh, self._fresh = self._fresh, []
        fresh.sort()
        self._add_run(_Run(fresh))
        self._sweep()

    def _add_run(self, run: _Run) -> None:
        number = next(reversed(self._runs)) + 1 if self._runs else 0
        self._runs[number] = run
        heappush(self._heads, (run.dues[0], number))
        self._ordered += len(run.dues)

    def take_due(self, limit: int) -> list[Position]:
        """Let go of up to `limit` that are due, in the order of the log."""
        taken: list[Position] = []
        for _ in range(limit + _PASSED_AT_ONCE):
            if len(taken) >= limit or not self._held.count:
                break
            place = self._pop_due()
            if place is None:
                break
            position = Position(self._ledger_ids[place >> _ENTRY_BITS], place & _ENTRY_MASK)
            if self._held.remove(position):
                taken.append(position)
        self._sweep()
        return sorted(taken)

    def _pop_due(self) -> int | None:
        fresh, heads = self._fresh, self._heads
        latest = self.now_ms if self.active else 1 << 62
        if fresh and (not heads or fresh[0] < heads[0]):
            return heappop(fresh)[1] if fresh[0][0] <= latest else None
        if not heads or heads[0][0] > latest:
            return None
        number = heappop(heads)[1]
        run = self._runs[number]
        place: int = run.places[run.at]
        run.at += 1
        self._ordered -= 1
        if run.at < len(run.dues):
            heappush(heads, (run.dues[run.at], number))
        else:
            del self._runs[number]
        return place

    def forget(self, positions: Iterable[Position]) -> None:
        """Let go of what was acknowledged without having been delivered."""
        for position in positions:
            self._held.remove(position)
        self._sweep()

    def forget_through(self, position: Position) -> None:
        """Let go of everything up to and with `position`: it was skipped, or expired."""
        self._held.remove_through(position)
        self._sweep()

    def _sweep(self) -> None:
        """Give memory back that entries take which are held no more."""
        if not self._held.count:
            self.clear()
            return
        for _ in range(_SWEPT_AT_ONCE):
            if self._ordered + len(self._fresh) <= 2 * self._held.count + RUN_ENTRIES:
                return
            number = next((each for each in self._runs if each >= self._swept), None)
            self._swept = 0 if number is None else number + 1
            if number is not None:
                self._rewrite(number)

    def _rewrite(self, number: int) -> None:
        run = self._runs[number]
        left = [
            (run.dues[at], place)
            for at in range(run.at, len(run.dues))
            if Position(self._ledger_ids[(place := run.places[at]) >> _ENTRY_BITS], place & _ENTRY_MASK)
            in self._held
        ]
        self._heads.remove((run.dues[run.at], number))
        heapify(self._heads)
        del self._runs[number]
        self._ordered -= len(run.dues) - run.at
        if len(left) + len(self._fresh) < RUN_ENTRIES:
            for each in left:
                heappush(self._fresh, each)
        elif left:
            self._add_run(_Run(left))

    def clear(self) -> None:
        """Everything will be read again."""
        self._held.clear()
        self._fresh.clear()
        self._runs.clear()
        self._heads.clear()
        self._ordered = 0
        self._swept = 0
        self._slots.clear()
        self._ledger_ids.clear()
