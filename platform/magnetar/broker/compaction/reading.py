"""How a subscription reads compacted: what the compacted ledger covers from there, the rest from the log.

Stands in the place of the cursor in a subscription's reading. Of what it hands out it knows what is acknowledged:
of entries of ledgers that the log has let go the cursor knows nothing; after a restart of the broker they come
once more, unless their place was kept. What compaction has removed counts as acknowledged once all before it is:
otherwise the log would have to keep it for ever.
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
    from magnetar.broker.compaction.state import CompactedEntry
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
        """What was handed out, in order; with what is left of each."""
        self._again: set[Position] = set()
        """What of it should come again: what does not is gone, by a compaction since."""
        self._handed_out = EARLIEST
        """The last entry handed out of ledgers that the log has let go."""
        self._cut: dict[Position, Sequence[int]] = {}
        """Batches among them of which some messages are gone: which are left."""
        self._at: tuple[CompactedLedger, Position, int] | None = None
        """Which entry of the compacted ledger follows, when `_next` is there."""
        self._generation = 0
        self.tells_gone = True
        """Whether the client is told which messages of a batch are gone. Else it delivers an empty one for each."""
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
        self._again = set(self._unacknowledged)
        self._cursor.rewind()
        self._next = self._cursor.read_position if self._begins is None else self._begins

    def moved_to(self, position: Position) -> None:
        """The subscription was set to `position`, forward or back."""
        self._unacknowledged.clear()
        self._cut.clear()
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
                    for entry in entries:
                        self._unacknowledged.setdefault(entry.position)
                    self._next = entries[-1].position.following
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
            self._next = (found[-1].entry.position if found else compacted.horizon).following
            self._at = (compacted, self._next, number + len(found))
            if self._again:
                self._forget_gone(found)
            self._follow()
            if entries:
                return entries

    async def _number_of(self, compacted: CompactedLedger) -> int:
        if self._at is not None and self._at[:2] == (compacted, self._next):
            return self._at[2]
        return await compacted.find(self._next)

    def part_left(self, position: Position, left: Sequence[int] | None) -> Sequence[int] | None:
        """The messages to be delivered of an entry, where acknowledgements have `left` these."""
        stays = self._cut.get(position) if self.tells_gone else None
        if left is None or stays is None:
            return stays if left is None else left
        return ack_sets.and_(left, stays)

    def _fresh(self, found: list[CompactedEntry]) -> list[Entry]:
        """Those that are not acknowledged. They are handed out."""
        fresh = []
        first = self._ledger.first_position
        for each in found:
            entry = each.entry
            position = entry.position
            if position >= first:
                if self._cursor.is_acknowledged(position):
                    continue
            elif position > self._handed_out:
                self._handed_out = position
            elif position not in self._unacknowledged:
                continue
            self._unacknowledged.setdefault(position)
            if each.stays:
                self._cut[position] = each.stays
            fresh.append(entry)
        return fresh

    def _forget_gone(self, found: list[CompactedEntry]) -> None:
        """Of what should come again up to here, only `found` is still there."""
        passed = {position for position in self._again if position < self._next}
        self._again -= passed
        for position in passed.difference(each.entry.position for each in found):
            self._unacknowledged.pop(position, None)
            self._cut.pop(position, None)

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

    # Acknowledging.

    def without_gone(
        self, acknowledged: Sequence[tuple[Position, list[int] | None]]
    ) -> list[tuple[Position, list[int] | None]]:
        """What a client acknowledges of batches that were cut: nobody acknowledges messages that are gone."""
        return [
            (position, ack_sets.and_(ack_set, self._cut[position]) or None)
            if ack_set is not None and position in self._cut
            else (position, ack_set)
            for position, ack_set in acknowledged
        ]

    def acknowledged(self, acknowledged: Iterable[tuple[Position, Sequence[int] | None]]) -> None:
        """Entries, or parts of entries, were acknowledged one by one. Tell the cursor first."""
        for position, ack_set in acknowledged:
            if position not in self._unacknowledged:
                continue
            known = self._unacknowledged[position]
            left = ack_set if known is None or ack_set is None else ack_sets.and_(known, ack_set)
            if left is None or ack_sets.is_empty(left):
                del self._unacknowledged[position]
                self._cut.pop(position, None)
            else:
                self._unacknowledged[position] = left
        self._follow()

    def acknowledged_up_to(self, position: Position) -> None:
        """Everything up to `position` was acknowledged. Tell the cursor first."""
        while self._unacknowledged and next(iter(self._unacknowledged)) <= position:
            self._cut.pop(self._unacknowledged.popitem(last=False)[0], None)
        self._follow()

    def skipped_up_to(self, position: Position) -> None:
        """Nothing up to `position` is wanted any more."""
        if self._next <= position:
            self._generation += 1
            self._next = position.following
        self.acknowledged_up_to(position)

    def _follow(self) -> None:
        """Everything before the first entry that is not acknowledged is, or is gone."""
        first = next(iter(self._unacknowledged), self._next)
        while (
            self._unacknowledged
            and first >= self._ledger.first_position
            and self._cursor.is_acknowledged(first)
        ):  # By an administrator.
            del self._unacknowledged[first]
            self._cut.pop(first, None)
            first = next(iter(self._unacknowledged), self._next)
        self._begins = first if first < self._ledger.first_position else None
        if first > self._cursor.mark_delete.following:
            self._cursor.acknowledge_cumulative(first.preceding)
