"""What one subscription has acknowledged: everything up to a mark, and single entries or parts of entries
above it. Pure.

`mark_delete` is the last entry of the acknowledged prefix. It advances over entries acknowledged one by one
as soon as they touch it, across the ends of ledgers too. Source: Pulsar `ManagedCursorImpl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.managed_ledger.entry_ranges import EntryRanges
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import Position
from magnetar.protocol import ack_sets


@dataclass(frozen=True, slots=True)
class CursorSnapshot:
    """A cursor's state as it is stored."""

    mark_delete: Position
    ranges: tuple[tuple[int, int, int], ...] = ()
    """Acknowledged above the mark: (ledger, first entry, last entry)."""
    ack_sets: tuple[tuple[Position, tuple[int, ...]], ...] = ()
    """Entries acknowledged in part; a 1 is a message not acknowledged yet."""
    properties: Mapping[str, int] = field(default_factory=dict)
    """What was given with the last mark-delete, e.g. a deduplication snapshot."""


class CursorState:
    """Positions given to it need not exist; only what exists counts as backlog."""

    __slots__ = (
        "_ack_sets",
        "_individual",
        "_ledgers",
        "_ranges",
        "mark_delete",
        "properties",
        "read_position",
    )

    def __init__(self, ledgers: LedgerList, mark_delete: Position) -> None:
        self._ledgers = ledgers
        self._ranges: dict[int, EntryRanges] = {}
        self._ack_sets: dict[Position, list[int]] = {}
        self._individual = 0
        """How many entries lie in ranges."""
        self.mark_delete = mark_delete
        self.read_position = mark_delete.following
        """Where the next read begins. What does not exist, or is acknowledged, is skipped."""
        self.properties: dict[str, int] = {}

    # What is known.

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        ledgers = self._ledgers
        return ledgers.end_ordinal - ledgers.ordinal(self.mark_delete) - self._individual

    def is_acknowledged(self, position: Position) -> bool:
        if position <= self.mark_delete:
            return True
        ranges = self._ranges.get(position.ledger_id)
        return ranges is not None and position.entry_id in ranges

    def ack_set(self, position: Position) -> list[int] | None:
        """What is left of an entry acknowledged in part; None where it is all or nothing."""
        found = self._ack_sets.get(position)
        return None if found is None else list(found)

    @property
    def range_count(self) -> int:
        return sum(map(len, self._ranges.values()))

    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """What is acknowledged above the mark, in order: (ledger, first entry, last entry)."""
        for ledger_id in sorted(self._ranges):
            for start, end in self._ranges[ledger_id]:
                yield ledger_id, start, end

    def unacknowledged_from(self, position: Position) -> Position | None:
        """The first entry at or after `position` that is not acknowledged; None if there is none yet."""
        position = max(position, self.mark_delete.following)
        while True:
            existing = self._ledgers.existing_from(position)
            if existing is None:
                return None
            ranges = self._ranges.get(existing.ledger_id)
            if ranges is None:
                return existing
            free = ranges.next_outside(existing.entry_id)
            if free == existing.entry_id:
                return existing
            position = Position(existing.ledger_id, free)

    # Acknowledging.

    def acknowledge(self, position: Position) -> bool:
        """Acknowledge one entry. False if it was already, or does not exist."""
        ledger_id, entry_id = position
        if position <= self.mark_delete:
            return False
        span = self._ledgers.span(ledger_id)
        if span is None or not 0 <= entry_id < span.entries:
            return False
        if self._ack_sets:
            self._ack_sets.pop(position, None)
        if not self._ranges and self.mark_delete == (ledger_id, entry_id - 1):
            # The usual case: in order, and nothing to keep.
            self.mark_delete = position
            if self.read_position <= position:
                self.read_position = position.following
            return True
        ranges = self._ranges.get(ledger_id)
        if ranges is None:
            ranges = self._ranges[ledger_id] = EntryRanges()
        new = ranges.add(entry_id, entry_id)
        if not new:
            return False
        self._individual += 1
        self._absorb()
        return True

    def acknowledge_part(self, position: Position, ack_set: Sequence[int]) -> bool:
        """Acknowledge some messages of an entry: those whose bit is 0. True if that was the last of it."""
        if self.is_acknowledged(position):
            return False
        known = self._ack_sets.get(position)
        left = list(ack_set) if known is None else ack_sets.and_(known, ack_set)
        if ack_sets.is_empty(left):
            return self.acknowledge(position)
        span = self._ledgers.span(position.ledger_id)
        if span is not None and 0 <= position.entry_id < span.entries:
            self._ack_sets[position] = left
        return False

    def acknowledge_cumulative(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Acknowledge everything up to `position`; with `ack_set`, that entry only in part."""
        if ack_set is not None and not ack_sets.is_empty(ack_set):
            self._advance(self._ledgers.before(position))
            self.acknowledge_part(position, ack_set)
        else:
            self._advance(min(position, self._ledgers.last_position))

    def _advance(self, position: Position) -> None:
        if position <= self.mark_delete:
            return
        self.mark_delete = position
        self._forget_through(position)
        self._absorb()

    def _forget_through(self, position: Position) -> None:
        for ledger_id in [each for each in self._ranges if each <= position.ledger_id]:
            ranges = self._ranges[ledger_id]
            if ledger_id < position.ledger_id:
                self._individual -= ranges.count()
                del self._ranges[ledger_id]
            else:
                self._individual -= ranges.drop_through(position.entry_id)
                if not ranges:
                    del self._ranges[ledger_id]
        if self._ack_sets:
            for each in [each for each in self._ack_sets if each <= position]:
                del self._ack_sets[each]

    def _absorb(self) -> None:
        """Move the mark over whatever is acknowledged right behind it."""
        mark = self.mark_delete
        while self._ranges:
            span = self._ledgers.span(mark.ledger_id)
            if span is None or mark.entry_id + 1 >= span.entries:
                # At the end of its ledger: the next that holds something goes on.
                following = self._ledgers.existing_from(mark.following)
                if following is None:
                    break
            else:
                following = mark.following
            ranges = self._ranges.get(following.ledger_id)
            if ranges is None or ranges.first[0] > following.entry_id:
                break
            start, end = ranges.pop_first()
            self._individual -= end - start + 1
            if not ranges:
                del self._ranges[following.ledger_id]
            mark = Position(following.ledger_id, end)
        self.mark_delete = mark
        if self.read_position <= mark:
            self.read_position = mark.following

    # Moving.

    def rewind(self) -> None:
        """Let the next read begin at the first entry not acknowledged."""
        self.read_position = self.mark_delete.following

    def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Let `position`, or what exists after it, be the first entry not acknowledged, forward or back."""
        existing = self._ledgers.existing_from(position)
        self._ranges.clear()
        self._ack_sets.clear()
        self._individual = 0
        self.mark_delete = self._ledgers.last_position if existing is None else self._ledgers.before(existing)
        if existing == position and ack_set is not None and not ack_sets.is_empty(ack_set):
            self._ack_sets[position] = list(ack_set)
        self.rewind()

    def ledgers_dropped(self) -> None:
        """Ledgers were dropped at the front of the log: what is known of them is of no use any more."""
        first = self._ledgers.first_position.preceding
        if self.mark_delete < first and self._ledgers.span(self.mark_delete.ledger_id) is None:
            self._advance(first)
        if self.read_position <= self.mark_delete:
            self.rewind()

    # Storing.

    def snapshot(self, *, max_ranges: int, max_ack_sets: int) -> CursorSnapshot:
        """The state to be stored; of too many ranges, or parts of entries, the first are kept."""
        kept: list[tuple[int, int, int]] = []
        for each in self.ranges():
            if len(kept) == max_ranges:
                break
            kept.append(each)
        parts = sorted(self._ack_sets)[:max_ack_sets]
        return CursorSnapshot(
            self.mark_delete,
            tuple(kept),
            tuple((position, tuple(self._ack_sets[position])) for position in parts),
            dict(self.properties),
        )

    @classmethod
    def restored(cls, ledgers: LedgerList, snapshot: CursorSnapshot) -> CursorState:
        """The state of a snapshot, fitted to the ledgers there are now.

        A mark in a ledger that is gone moves to before the first one there is; one past the end, to the end.
        """
        mark = min(snapshot.mark_delete, ledgers.last_position)
        if ledgers.span(mark.ledger_id) is None:
            existing = ledgers.existing_from(mark)
            mark = ledgers.last_position if existing is None else ledgers.before(existing)
        state = cls(ledgers, mark)
        state.properties = dict(snapshot.properties)
        for ledger_id, start, end in snapshot.ranges:
            span = ledgers.span(ledger_id)
            if span is None:
                continue
            end = min(end, span.entries - 1)
            start = max(start, mark.entry_id + 1) if ledger_id == mark.ledger_id else start
            if ledger_id >= mark.ledger_id and start <= end:
                ranges = state._ranges.setdefault(ledger_id, EntryRanges())
                state._individual += ranges.add(start, end)
        for position, ack_set in snapshot.ack_sets:
            span = ledgers.span(position.ledger_id)
            if span is not None and position.entry_id < span.entries and not state.is_acknowledged(position):
                state._ack_sets[position] = list(ack_set)
        state._absorb()
        return state
