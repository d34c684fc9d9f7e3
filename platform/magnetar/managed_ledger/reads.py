"""Reading a log: from the tail cache, else from the ledgers' bookies."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import LedgerError, NoSuchLedger
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.entry import Entry, stored_entry
from magnetar.managed_ledger.entry_cache import TailCache
from magnetar.managed_ledger.errors import EntryUnreadable, StorageUnavailable
from magnetar.managed_ledger.position import Position
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import split_message

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.managed_ledger")

READ_BYTES_MAX = 4 * 1024 * 1024
_READERS_MAX = 64


@dataclass(frozen=True, slots=True)
class UnreadableLedger:
    """A ledger of which a read failed on all replicas."""

    ledger_id: int
    entry_id: int
    since_ms: int
    reason: str


class ReadPath:
    """The read side of one log."""

    def __init__(self, owner: ManagedLedger, cache: TailCache) -> None:
        self._owner = owner
        self._cache = cache
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self.unreadable: dict[int, UnreadableLedger] = {}

    async def read_run(self, first: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `first` on, which exists, within its ledger: at least one.

        Raises:
            EntryUnreadable: no replica gives it, or what they give is no entry.
            StorageUnavailable: the ledger cannot be opened now.
        """
        ledger_id, entry_id = first
        span = self._owner.ledgers.span(ledger_id)
        last = min(entry_id + max(max_entries, 1), span.entries if span is not None else 0) - 1
        if span is None or entry_id > last:
            raise EntryUnreadable(self._owner.name, f"entry {first} does not exist")
        cached = self._cache.read(ledger_id, entry_id, last, max_bytes)
        if cached:
            return cached
        try:
            reader = await self._reader(ledger_id)
            found = await reader.read(entry_id, last, max_bytes=min(max_bytes, READ_BYTES_MAX))
            entries = [stored_entry(Position(ledger_id, each.entry_id), each.payload) for each in found]
        except (LedgerError, ProtocolError, EntryUnreadable) as error:
            self._readers.pop(ledger_id, None)  # Its replicas may have been moved.
            self._report(ledger_id, entry_id, str(error))
            if isinstance(error, EntryUnreadable):
                raise
            raise EntryUnreadable(self._owner.name, str(error)) from error
        if self.unreadable:
            self.unreadable.pop(ledger_id, None)
        return entries

    def _report(self, ledger_id: int, entry_id: int, reason: str) -> None:
        """Once for each ledger, until it is read again."""
        if ledger_id in self.unreadable:
            return
        self.unreadable[ledger_id] = UnreadableLedger(
            ledger_id, entry_id, self._owner.clock.time_ms(), reason
        )
        span = self._owner.ledgers.span(ledger_id)
        log.error(
            "ledger.unreadable",
            log=self._owner.name,
            ledger_id=ledger_id,
            entry_id=entry_id,
            entries=span.entries if span is not None else 0,
            reason=reason,
        )

    async def _reader(self, ledger_id: int) -> LedgerReader:
        writer = self._owner.writer
        if writer is not None and writer.ledger_id == ledger_id:
            return writer.reader()
        reader = self._readers.get(ledger_id)
        if reader is None:
            try:
                reader = await self._owner.client.open(ledger_id, recover=True)
            except NoSuchLedger as error:
                raise EntryUnreadable(self._owner.name, str(error)) from error
            except LedgerError as error:
                raise StorageUnavailable(self._owner.name, str(error)) from error
            self._readers[ledger_id] = reader
            if len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
        else:
            self._readers.move_to_end(ledger_id)
        return reader

    def forget(self, ledger_id: int) -> None:
        self._readers.pop(ledger_id, None)
        self.unreadable.pop(ledger_id, None)

    # Finding by time.

    async def position_at_time(self, timestamp_ms: int) -> Position | None:
        """The first entry not older than `timestamp_ms`; None if all are older.

        Broker timestamps never fall within a log, so that two binary searches find it: over ledgers, by their
        last entries, then over the entries of one.
        """
        spans = [span for span in self._owner.ledgers if span.entries]
        low, high = 0, len(spans)
        while low < high:
            middle = (low + high) // 2
            span = spans[middle]
            if await self._time_of(Position(span.ledger_id, span.entries - 1)) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low == len(spans):
            return None
        ledger_id = spans[low].ledger_id
        first, last = 0, spans[low].entries - 1
        while first < last:
            middle = (first + last) // 2
            if await self._time_of(Position(ledger_id, middle)) < timestamp_ms:
                first = middle + 1
            else:
                last = middle
        return Position(ledger_id, first)

    async def _time_of(self, position: Position) -> int:
        entry = (await self.read_run(position, 1, READ_BYTES_MAX))[0]
        if entry.broker_timestamp >= 0:
            return entry.broker_timestamp
        try:
            return int(split_message(entry.data, verify=False).metadata.publish_time)
        except ProtocolError:
            return 0  # No message at all: as old as can be, so that it is never searched for.
