"""How a subscription reads compacted: what the compacted ledger covers from there, the rest from the log.

Stands in the place of the cursor in a subscription's reading, and leaves acknowledgements to the cursor, but for
entries of ledgers that the log has let go: of those it knows itself what is not acknowledged, and after a restart
of the broker they come once more. Nothing is lost by that; at worst something comes twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from magnetar.ledger.errors import LedgerError
from magnetar.managed_ledger import EARLIEST, Entry, Position
from magnetar.managed_ledger.errors import EntryUnreadable
from magnetar.protocol import ack_sets
from magnetar.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from magnetar.broker.compaction.compacted_ledger import CompactedLedger
    from magnetar.managed_ledger import Cursor, ManagedLedger


class EntrySource(Protocol):
    """Where a subscription reads from: its cursor, or a `CompactedReading` around it."""

    def has_more(self) -> bool: ...

    async def read(self, max_entries: int, max_bytes: int) -> list[Entry]: ...

    def rewind(self) -> None: ...


class Holder(Protocol):
    """Who knows which compacted ledger holds."""

    @property
    def current(self) -> CompactedLedger | None: ...


class CompactedReading:
    """One subscription's way through a topic's compacted view."""

    def __init__(
        self, holder: Holder, ledger: ManagedLedger, cursor: Cursor, begins: Position | None
    ) -> None:
        """`begins` is where the subscription begins, if that is before all the log still has."""
        self._holder = holder
        self._ledger = ledger
        self._cursor = cursor
        self._begins = begins
        self._next = EARLIEST
        self._unacknowledged: OrderedDict[Position, Sequence[int] | None] = OrderedDict()
        """What was handed out of ledgers that the log has let go, in order; with what is left of each."""
        self._handed_out = EARLIEST
        """The last of those handed out ever."""
        self._at: tuple[CompactedLedger, Position, int] | None = None
        """Which entry of the compacted ledger follows, when `_next` is there."""
        self._generation = 0
        self.rewind()

    @property
    def begins(self) -> Position | None:
        """The first place, before all the log still has, of which something is not acknowledged."""
        return self._begins

    def has_more(self) -> bool:
        compacted = self._holder.current
        return (compacted is not None and self._next <= compacted.horizon) or self._cursor.has_more()

    def rewind(self) -> None:
        """Let the next read begin at the first entry that is not acknowledged."""
        self._generation += 1
        self._cursor.rewind()
        if self._unacknowledged:
            self._next = next(iter(self._unacknowledged))
        elif self._begins is not None:
            self._next = self._begins
        else:
            self._next = self._cursor.read_position

    def moved_to(self, position: Position) -> None:
        """The subscription was set to `position`, forward or back."""
        self._unacknowledged.clear()
        self._handed_out = EARLIEST
        self._begins = position if position < self._ledger.first_position else None
        self.rewind()

    async def read(self, max_entries: int, max_bytes: int) -> list[Entry]:
        """As `Cursor.read`.

        Raises:
            EntryUnreadable, CursorClosed
        """
        generation = self._generation
        while True:
            compacted = self._holder.current
            if compacted is None or self._next > compacted.horizon:
                self._cursor.read_on_from(self._next)
                entries = await self._cursor.read(max_entries, max_bytes)
                if entries and generation == self._generation:
                    self._moved_on(entries[-1].position.following)
                return entries
            try:
                number = await self._number_of(compacted)
                found = await compacted.read(number, max_entries, max_bytes)
            except (LedgerError, ProtocolError) as error:
                if compacted is not self._holder.current:
                    continue  # Another has taken its place meanwhile, and it is deleted.
                raise EntryUnreadable(self._ledger.name, f"compacted: {error}") from error
            if generation != self._generation:
                return []
            entries = self._fresh(found)
            self._moved_on((found[-1].position if found else compacted.horizon).following)
            self._at = (compacted, self._next, number + len(found))
            if entries:
                return entries

    def _moved_on(self, following: Position) -> None:
        self._next = following
        if self._begins is not None:
            self._count_begun()

    async def _number_of(self, compacted: CompactedLedger) -> int:
        if self._at is not None and self._at[:2] == (compacted, self._next):
            return self._at[2]
        return await compacted.find(self._next)

    def _fresh(self, found: list[Entry]) -> list[Entry]:
        """Those that are not acknowledged. Of those whose ledgers are gone, notes which are handed out."""
        fresh = []
        first = self._ledger.first_position
        for entry in found:
            position = entry.position
            if position >= first:
                if not self._cursor.is_acknowledged(position):
                    fresh.append(entry)
            elif position > self._handed_out:
                self._handed_out = position
                self._unacknowledged[position] = None
                fresh.append(entry)
            elif position in self._unacknowledged:
                fresh.append(entry)
        return fresh

    async def position_at_time(self, timestamp_ms: int, found: Position | None) -> Position | None:
        """The first entry not older than `timestamp_ms`, where `found` is the first in the log.

        Raises:
            EntryUnreadable: the compacted ledger cannot be read.
        """
        while (compacted := self._holder.current) is not None:
            if found is not None and found > self._ledger.first_position:
                break  # An older one, which the log still has, is too old.
            try:
                first = await compacted.find_time(timestamp_ms)
            except (LedgerError, ProtocolError) as error:
                if compacted is not self._holder.current:
                    continue
                raise EntryUnreadable(self._ledger.name, f"compacted: {error}") from error
            return first.position if first is not None else found
        return found

    # Acknowledging what the log has no more.

    def acknowledged(self, acknowledged: Iterable[tuple[Position, Sequence[int] | None]]) -> None:
        """Entries, or parts of entries, were acknowledged one by one."""
        if not self._unacknowledged:
            return
        for position, ack_set in acknowledged:
            if position not in self._unacknowledged:
                continue
            known = self._unacknowledged[position]
            left = ack_set if known is None or ack_set is None else ack_sets.and_(known, ack_set)
            if left is None or ack_sets.is_empty(left):
                del self._unacknowledged[position]
            else:
                self._unacknowledged[position] = left
        self._count_begun()

    def acknowledged_up_to(self, position: Position) -> None:
        """Everything up to `position` was acknowledged."""
        if not self._unacknowledged:
            return
        while self._unacknowledged and next(iter(self._unacknowledged)) <= position:
            self._unacknowledged.popitem(last=False)
        self._count_begun()

    def skipped_up_to(self, position: Position) -> None:
        """Nothing up to `position` is wanted any more."""
        self.acknowledged_up_to(position)
        if self._begins is not None and self._begins <= position:
            self._begins = position.following if position < self._ledger.first_position else None
        if self._next <= position:
            self._generation += 1
            self._next = position.following

    def _count_begun(self) -> None:
        """The first place of which something is not acknowledged, before all that the cursor knows of."""
        if self._unacknowledged:
            self._begins = next(iter(self._unacknowledged))
        elif self._next < self._ledger.first_position:
            self._begins = max(self._begins or EARLIEST, self._handed_out.following)
        else:
            self._begins = None
