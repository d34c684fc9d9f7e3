"""The ledgers of one log, oldest first, and arithmetic over its positions. Pure.

Every entry has an ordinal: how many entries of the log, counted since this list was made, lie at or before
it. Ordinals never change, also when ledgers are dropped at the front, so that distances are subtractions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.managed_ledger.position import Position


@dataclass(slots=True)
class LedgerSpan:
    """One ledger of the list. Only the last one may grow."""

    ledger_id: int
    entries: int
    size: int
    closed_ms: int
    """When it was closed; 0 while it is open."""
    entries_before: int
    bytes_before: int


class LedgerList:
    """Knows every entry there is. At least one ledger is in it once a log is open."""

    __slots__ = ("_ids", "_spans")

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._spans: list[LedgerSpan] = []

    def __len__(self) -> int:
        return len(self._spans)

    def __iter__(self) -> Iterator[LedgerSpan]:
        return iter(self._spans)

    def __contains__(self, ledger_id: int) -> bool:
        return self.span(ledger_id) is not None

    # Changes.

    def add(self, ledger_id: int, entries: int = 0, size: int = 0, closed_ms: int = 0) -> LedgerSpan:
        """Put a ledger at the end. Ids must rise."""
        assert not self._ids or ledger_id > self._ids[-1]
        last = self._spans[-1] if self._spans else None
        span = LedgerSpan(
            ledger_id,
            entries,
            size,
            closed_ms,
            last.entries_before + last.entries if last else 0,
            last.bytes_before + last.size if last else 0,
        )
        self._ids.append(ledger_id)
        self._spans.append(span)
        return span

    def drop_first(self, number: int) -> None:
        del self._ids[:number]
        del self._spans[:number]

    def take_out(self, ledger_id: int) -> None:
        """Go on without a ledger, wherever it stands. Ordinals of what lies behind it change."""
        at = bisect_left(self._ids, ledger_id)
        gone = self._spans.pop(at)
        del self._ids[at]
        for span in self._spans[at:]:
            span.entries_before -= gone.entries
            span.bytes_before -= gone.size

    def drop_last(self) -> None:
        """Take away the last ledger, which holds nothing."""
        assert self._spans[-1].entries == 0
        del self._ids[-1]
        del self._spans[-1]

    # What there is.

    @property
    def last(self) -> LedgerSpan:
        return self._spans[-1]

    def span(self, ledger_id: int) -> LedgerSpan | None:
        at = bisect_left(self._ids, ledger_id)
        return self._spans[at] if at < len(self._ids) and self._ids[at] == ledger_id else None

    @property
    def entries(self) -> int:
        """How many entries there are."""
        return self.end_ordinal - self._spans[0].entries_before if self._spans else 0

    @property
    def size(self) -> int:
        """How many bytes they have."""
        if not self._spans:
            return 0
        first, last = self._spans[0], self._spans[-1]
        return last.bytes_before + last.size - first.bytes_before

    @property
    def end_ordinal(self) -> int:
        """The ordinal of the last entry."""
        last = self._spans[-1] if self._spans else None
        return last.entries_before + last.entries if last else 0

    @property
    def first_position(self) -> Position:
        """Of the first entry, or where it will be."""
        for span in self._spans:
            if span.entries:
                return Position(span.ledger_id, 0)
        return Position(self._ids[-1], 0) if self._ids else Position(-1, 0)

    @property
    def last_position(self) -> Position:
        """Of the last entry; just before the first ledger's first entry if there is none."""
        for span in reversed(self._spans):
            if span.entries:
                return Position(span.ledger_id, span.entries - 1)
        return Position(self._ids[0], -1) if self._ids else Position(-1, -1)

    # Arithmetic.

    def ordinal(self, position: Position) -> int:
        """How many entries lie at or before `position`, which need not exist."""
        at = bisect_left(self._ids, position.ledger_id)
        if at == len(self._ids):
            return self.end_ordinal
        span = self._spans[at]
        if span.ledger_id != position.ledger_id:
            return span.entries_before
        return span.entries_before + min(max(position.entry_id + 1, 0), span.entries)

    def at_ordinal(self, ordinal: int) -> Position:
        """The entry of that ordinal; the last one where there are not so many."""
        for span in self._spans:
            if span.entries and ordinal <= span.entries_before + span.entries:
                return Position(span.ledger_id, max(0, ordinal - span.entries_before - 1))
        return self.last_position

    def bytes_through(self, position: Position) -> int:
        """About how many bytes lie at or before `position`."""
        at = bisect_left(self._ids, position.ledger_id)
        if at == len(self._ids):
            last = self._spans[-1] if self._spans else None
            return last.bytes_before + last.size if last else 0
        span = self._spans[at]
        if span.ledger_id != position.ledger_id or not span.entries:
            return span.bytes_before
        return (
            span.bytes_before + span.size * min(max(position.entry_id + 1, 0), span.entries) // span.entries
        )

    def existing_from(self, position: Position) -> Position | None:
        """The first entry at or after `position`; None if there is none yet."""
        at = bisect_left(self._ids, position.ledger_id)
        for span in self._spans[at:]:
            first = max(position.entry_id, 0) if span.ledger_id == position.ledger_id else 0
            if first < span.entries:
                return Position(span.ledger_id, first)
        return None

    def before(self, position: Position) -> Position:
        """The entry before `position`, or else the place just before the first ledger's first entry.

        So a cursor that stands there would read `position`, or what exists after it, next.
        """
        at = bisect_left(self._ids, position.ledger_id)
        if at < len(self._ids) and self._ids[at] == position.ledger_id and position.entry_id > 0:
            span = self._spans[at]
            if span.entries:
                return Position(span.ledger_id, min(position.entry_id, span.entries) - 1)
        for span in reversed(self._spans[:at]):
            if span.entries:
                return Position(span.ledger_id, span.entries - 1)
        return Position(self._ids[0], -1) if self._ids else Position(-1, -1)
