"""What one subscription has acknowledged: everything up to a mark, and single entries or parts of entries
above it. Pure.

`mark_delete` is the last entry of the acknowledged prefix. It advances over entries acknowledged one by one
as soon as they touch it, across the ends of ledgers too. Source: Pulsar `ManagedCursorImpl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from magnetar.managed_ledger.entry_ranges import EntryRanges
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import Position
from magnetar.protocol import ack_sets

_NEW_ENTRIES_MAX = 50_000
"""So many acknowledgements are kept as they came, until they are gathered into bitmaps."""


@dataclass(frozen=True, slots=True)
class CursorSnapshot:
    """A small state, as it lies in metadata."""

    mark_delete: Position
    ranges: tuple[tuple[int, int, int], ...] = ()
    """Acknowledged above the mark: (ledger, first entry, last entry)."""
    ack_sets: tuple[tuple[Position, tuple[int, ...]], ...] = ()
    """Entries acknowledged in part; a 1 is a message not acknowledged yet."""
    properties: Mapping[str, int] = field(default_factory=dict)
    """What was given with the last mark-delete, e.g. a deduplication snapshot."""


@dataclass(slots=True)
class CursorImage:
    """A state of any size, or a change of one."""

    mark_delete: Position
    ranges: dict[int, EntryRanges] = field(default_factory=dict)
    """Acknowledged above the mark, by ledger."""
    ack_sets: dict[Position, tuple[int, ...]] = field(default_factory=dict)
    properties: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, snapshot: CursorSnapshot) -> CursorImage:
        image = cls(
            snapshot.mark_delete, ack_sets=dict(snapshot.ack_sets), properties=dict(snapshot.properties)
        )
        for ledger_id, start, end in snapshot.ranges:
            if 0 <= start <= end:
                image.ranges.setdefault(ledger_id, EntryRanges()).add(start, end)
        return image

    def small(self, *, max_ranges: int, max_ack_sets: int) -> CursorSnapshot | None:
        """The same, if there is little of it: never a part."""
        if len(self.ack_sets) > max_ack_sets:
            return None
        found = ((each, *both) for each in sorted(self.ranges) for both in self.ranges[each])
        kept = tuple(islice(found, max_ranges + 1))
        if len(kept) > max_ranges:
            return None
        parts = tuple((position, self.ack_sets[position]) for position in sorted(self.ack_sets))
        return CursorSnapshot(self.mark_delete, kept, parts, dict(self.properties))

    def fit(self) -> None:
        """Leave out what the mark, or a whole acknowledgement, says already."""
        mark = self.mark_delete
        for ledger_id in [each for each in self.ranges if each <= mark.ledger_id]:
            if ledger_id < mark.ledger_id or not _dropped_through(self.ranges[ledger_id], mark.entry_id):
                del self.ranges[ledger_id]
        for position in list(self.ack_sets):
            ranges = self.ranges.get(position.ledger_id)
            if position <= mark or (ranges is not None and position.entry_id in ranges):
                del self.ack_sets[position]


@dataclass(frozen=True, slots=True)
class CursorChange:
    """What has changed since the state was written last."""

    image: CursorImage
    """Its ranges and ack sets are those that are new."""
    anew: bool
    """Whether what was written before is void: the cursor was moved."""
    properties_changed: bool


def _dropped_through(ranges: EntryRanges, entry_id: int) -> bool:
    """Whether anything is left behind `entry_id`."""
    ranges.drop_through(entry_id)
    return bool(ranges)


class CursorState:
    """Positions given to it need not exist; only what exists counts as backlog."""

    __slots__ = (
        "_ack_sets",
        "_individual",
        "_ledgers",
        "_new_entries",
        "_new_parts",
        "_new_properties",
        "_new_ranges",
        "_ranges",
        "_voided",
        "mark_delete",
        "properties",
        "read_position",
        "tracked",
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
        self.tracked = True
        """Whether anybody will ask for what has changed since it was written last."""
        self._new_entries: list[Position] = []
        self._new_ranges: dict[int, EntryRanges] = {}
        self._new_parts: dict[Position, None] = {}
        self._new_properties = False
        self._voided = False

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
    def has_ranges(self) -> bool:
        """Whether anything above the mark is acknowledged."""
        return bool(self._ranges)

    @property
    def range_count(self) -> int:
        """How many ranges it is. Looks at them all."""
        return sum(each.range_count for each in self._ranges.values())

    @property
    def part_count(self) -> int:
        """How many entries are acknowledged in part."""
        return len(self._ack_sets)

    @property
    def voided(self) -> bool:
        """Whether it was moved since it was written last."""
        return self._voided

    @property
    def weight(self) -> int:
        """About how much there is to be written: the pieces of some hundred bytes."""
        chunks = sum(each.chunk_count for each in self._ranges.values())
        return chunks + len(self._ack_sets) + len(self.properties) // 8

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
        if not ranges.add_one(entry_id):
            return False
        self._individual += 1
        if self.tracked:
            self._new_entries.append(position)
        if len(self._new_entries) >= _NEW_ENTRIES_MAX:
            self._gather_new()
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
            if self.tracked:
                self._new_parts[position] = None
        return False

    def set_properties(self, properties: Mapping[str, int]) -> None:
        self.properties = dict(properties)
        self._new_properties = True

    def acknowledge_cumulative(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Acknowledge everything up to `position`; with `ack_set`, that entry only in part."""
        if ack_set is not None and not ack_sets.is_empty(ack_set):
            self._advance(self._ledgers.before(position))
            self.acknowledge_part(position, ack_set)
        else:
            self._advance(min(position, self._ledgers.last_position))

    def _advance(self, position: Position) -> None:
        before = self.mark_delete
        if position <= before:
            return
        self.mark_delete = position
        self._forget_through(before, position)
        self._absorb()

    def _forget_through(self, before: Position, position: Position) -> None:
        for ledger_id in [each for each in self._ranges if each <= position.ledger_id]:
            ranges = self._ranges[ledger_id]
            if ledger_id < position.ledger_id:
                self._individual -= ranges.count()
                del self._ranges[ledger_id]
            else:
                self._individual -= ranges.drop_through(position.entry_id)
                if not ranges:
                    del self._ranges[ledger_id]
        if not self._ack_sets:
            return
        if before.ledger_id == position.ledger_id and position.entry_id - before.entry_id < len(
            self._ack_sets
        ):
            for entry_id in range(before.entry_id + 1, position.entry_id + 1):
                self._ack_sets.pop(Position(position.ledger_id, entry_id), None)
        else:
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
            if ranges is None or following.entry_id not in ranges:
                break
            end = ranges.next_outside(following.entry_id) - 1
            self._individual -= ranges.drop_through(end)
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
        self._forget_new()
        self._voided = True
        self.mark_delete = self._ledgers.last_position if existing is None else self._ledgers.before(existing)
        if existing == position and ack_set is not None and not ack_sets.is_empty(ack_set):
            self._ack_sets[position] = list(ack_set)
            self._new_parts[position] = None
        self.rewind()

    def ledgers_dropped(self) -> None:
        """Ledgers were dropped at the front of the log: what is known of them is of no use any more."""
        first = self._ledgers.first_position.preceding
        if self.mark_delete < first and self._ledgers.span(self.mark_delete.ledger_id) is None:
            self._advance(first)
        if self.read_position <= self.mark_delete:
            self.rewind()

    def ledger_lost(self, ledger_id: int) -> None:
        """A ledger was taken out of the log: there is nothing in it to be acknowledged or read."""
        ranges = self._ranges.pop(ledger_id, None)
        if ranges is not None:
            self._individual -= ranges.count()
        for position in [each for each in self._ack_sets if each.ledger_id == ledger_id]:
            del self._ack_sets[position]
        if self.mark_delete.ledger_id == ledger_id:
            existing = self._ledgers.existing_from(self.mark_delete)
            self.mark_delete = (
                self._ledgers.last_position if existing is None else self._ledgers.before(existing)
            )
        if self.read_position.ledger_id == ledger_id:
            existing = self._ledgers.existing_from(self.read_position)
            self.read_position = self.mark_delete.following if existing is None else existing
        self._forget_new()
        self._voided = True  # What is written speaks of it: it is written anew.
        self._absorb()

    # Storing.

    def image(self) -> CursorImage:
        """The whole state, to be looked at before it changes: the ranges are the cursor's own."""
        parts = {position: tuple(words) for position, words in self._ack_sets.items()}
        return CursorImage(self.mark_delete, self._ranges, parts, self.properties)

    def whole(self) -> CursorImage:
        """The whole state, to be written. Changes are counted from here on."""
        self._forget_new()
        return self.image()

    def change(self) -> CursorChange:
        """What has changed since `whole` or `change` was asked for last."""
        self._gather_new()
        parts = {position: tuple(self._ack_sets[position]) for position in self._new_parts}
        image = CursorImage(self.mark_delete, self._new_ranges, parts, self.properties)
        change = CursorChange(image, self._voided, self._new_properties or self._voided)
        self._forget_new()
        image.fit()
        return change

    def _gather_new(self) -> None:
        for ledger_id, entry_id in self._new_entries:
            ranges = self._new_ranges.get(ledger_id)
            if ranges is None:
                ranges = self._new_ranges[ledger_id] = EntryRanges()
            ranges.add_one(entry_id)
        self._new_entries = []
        self._new_parts = {position: None for position in self._new_parts if position in self._ack_sets}

    def _forget_new(self) -> None:
        self._new_entries, self._new_ranges, self._new_parts = [], {}, {}
        self._new_properties = self._voided = False

    @classmethod
    def restored(cls, ledgers: LedgerList, image: CursorImage) -> CursorState:
        """The state of an image, which it takes over, fitted to the ledgers there are now.

        A mark in a ledger that is gone moves to before the first one there is; one past the end, to the end.
        """
        mark = min(image.mark_delete, ledgers.last_position)
        if ledgers.span(mark.ledger_id) is None:
            existing = ledgers.existing_from(mark)
            mark = ledgers.last_position if existing is None else ledgers.before(existing)
        state = cls(ledgers, mark)
        state.properties = dict(image.properties)
        for ledger_id, kept in image.ranges.items():
            span = ledgers.span(ledger_id)
            if span is None or ledger_id < mark.ledger_id:
                continue
            kept.drop_from(span.entries)
            if ledger_id == mark.ledger_id:
                kept.drop_through(mark.entry_id)
            if kept:
                state._ranges[ledger_id] = kept
                state._individual += kept.count()
        for position, ack_set in image.ack_sets.items():
            span = ledgers.span(position.ledger_id)
            if span is not None and position.entry_id < span.entries and not state.is_acknowledged(position):
                state._ack_sets[position] = list(ack_set)
        state._absorb()
        return state
