"""The result of a compaction, to be read: entries in the order of the log, each with its place there."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.compaction.state import CompactedEntry, CompactedRecord, decode_entry, decode_position
from magnetar.managed_ledger import Entry, Position
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from magnetar.ledger.client import LedgerClient
    from magnetar.ledger.reader import LedgerReader

_BEGINNINGS_MAX: Final = 4096


class CompactedLedger:
    """One compacted ledger. Opened when it is first read."""

    def __init__(self, record: CompactedRecord, client: LedgerClient) -> None:
        self.record = record
        self._client = client
        self._reader: LedgerReader | None = None
        self._places: dict[int, Position] = {}
        """Where some of its entries lie, as searches have found."""

    @property
    def horizon(self) -> Position:
        return self.record.horizon

    @property
    def entries(self) -> int:
        return self.record.entries

    async def read(self, entry_id: int, max_entries: int, max_bytes: int) -> list[CompactedEntry]:
        """Entries from the `entry_id`-th on; none behind the last.

        Raises:
            LedgerError: it cannot be read, or is gone.
            MetadataFailed, ProtocolError: what it holds cannot be.
        """
        last = min(entry_id + max(1, max_entries), self.record.entries) - 1
        if entry_id > last:
            return []
        reader = await self._opened()
        return [decode_entry(each.payload) for each in await reader.read(entry_id, last, max_bytes=max_bytes)]

    async def find(self, position: Position) -> int:
        """The number of the first entry at or after `position` of the log. Raises LedgerError."""

        async def before(entry_id: int) -> bool:
            return await self._place(entry_id) < position

        return await self._first_not(before)

    async def find_time(self, timestamp_ms: int) -> Entry | None:
        """The first entry not older than `timestamp_ms`, by broker timestamp, else publish time."""

        async def before(entry_id: int) -> bool:
            return _time_of((await self.read(entry_id, 1, 1))[0].entry) < timestamp_ms

        found = await self.read(await self._first_not(before), 1, 1)
        return found[0].entry if found else None

    async def _first_not(self, before: Callable[[int], Coroutine[Any, Any, bool]]) -> int:
        low, high = 0, self.record.entries
        while low < high:
            middle = (low + high) // 2
            if await before(middle):
                low = middle + 1
            else:
                high = middle
        return low

    async def _place(self, entry_id: int) -> Position:
        known = self._places.get(entry_id)
        if known is None:
            reader = await self._opened()
            (found,) = await reader.read(entry_id, entry_id)
            known = decode_position(found.payload)
            if len(self._places) >= _BEGINNINGS_MAX:
                self._places.clear()
            self._places[entry_id] = known
        return known

    async def _opened(self) -> LedgerReader:
        if self._reader is None:
            self._reader = await self._client.open(self.record.ledger_id, recover=True)
        return self._reader


def _time_of(entry: Entry) -> int:
    if entry.broker_timestamp >= 0:
        return entry.broker_timestamp
    try:
        return int(read_metadata(entry.data).publish_time)
    except ProtocolError:
        return 0
