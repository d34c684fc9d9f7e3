"""What a bookie answers to those who read: that it has it, that it never had it, or that it cannot tell.

A negative answer is a promise, which recoveries build on: it is given only where nothing can be missing (BookKeeper
BP-46). While there is any doubt of that, what is not found is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Callable

from magnetar.bookie.lac_waits import LacWaits
from magnetar.bookie.ledger_table import LedgerTable
from magnetar.bookie.reads import Reader, ReadFailed
from magnetar.protocol.bookie import (
    LAST_ENTRY,
    MAX_LIST_RANGES,
    MAX_RUN_BYTES,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.ledger_entry import ENTRY_HEADER

_OK = BookieStatus.OK


class Answers:
    """Belongs to the loop."""

    def __init__(
        self, table: LedgerTable, reader: Reader, waits: LacWaits, doubts: Callable[[int], bool]
    ) -> None:
        """`doubts`: whether there may be more of a ledger than is found."""
        self._table = table
        self._reader = reader
        self._waits = waits
        self._doubts = doubts

    def _vouched(self, ledger_id: int, status: BookieStatus) -> BookieStatus:
        return BookieStatus.UNKNOWN if self._doubts(ledger_id) else status

    async def entry(self, ledger_id: int, entry_id: int) -> EntryRead:
        state = self._table.get(ledger_id)
        if state is None:
            return EntryRead(self._vouched(ledger_id, BookieStatus.NO_SUCH_LEDGER))
        try:
            if entry_id == LAST_ENTRY:
                if self._doubts(ledger_id):  # There may be a later one.
                    return EntryRead(BookieStatus.UNKNOWN, lac=state.lac)
                entry = await self._reader.last(state)
            elif entry_id < 0:
                return EntryRead(BookieStatus.BAD_REQUEST)
            else:
                entry = await self._reader.entry(ledger_id, entry_id)
        except ReadFailed:
            return EntryRead(BookieStatus.IO_ERROR, lac=state.lac)
        if entry is None:
            return EntryRead(self._vouched(ledger_id, BookieStatus.NO_SUCH_ENTRY), lac=state.lac)
        return EntryRead(_OK, entry, state.lac)

    async def run(
        self, ledger_id: int, first: int, count: int, max_bytes: int
    ) -> tuple[BookieStatus, list[bytes]]:
        if first < 0 or count < 1:
            return BookieStatus.BAD_REQUEST, []
        if ledger_id not in self._table:
            return self._vouched(ledger_id, BookieStatus.NO_SUCH_LEDGER), []
        try:
            entries = await self._reader.run(ledger_id, first, count, min(max_bytes, MAX_RUN_BYTES))
        except ReadFailed:
            return BookieStatus.IO_ERROR, []
        return (_OK, entries) if entries else (self._vouched(ledger_id, BookieStatus.NO_SUCH_ENTRY), [])

    async def lac(self, ledger_id: int) -> LacRead:
        state = self._table.get(ledger_id)
        if state is None:
            return LacRead(self._vouched(ledger_id, BookieStatus.NO_SUCH_LEDGER))
        try:
            entry = await self._reader.last(state)
        except ReadFailed:
            return LacRead(BookieStatus.IO_ERROR)
        status = self._vouched(ledger_id, _OK)  # A tail in doubt might be longer, and its LAC higher.
        if entry is None:
            return LacRead(status, state.lac)
        return LacRead(status, state.lac, ENTRY_HEADER.unpack_from(entry)[1], entry)

    async def list(self, ledger_id: int) -> EntryList:
        if ledger_id not in self._table:
            return EntryList(self._vouched(ledger_id, BookieStatus.NO_SUCH_LEDGER))
        try:
            ranges = await self._reader.ranges(ledger_id)
        except ReadFailed:
            return EntryList(BookieStatus.IO_ERROR)
        if len(ranges) > MAX_LIST_RANGES:
            return EntryList(BookieStatus.UNKNOWN)
        return EntryList(self._vouched(ledger_id, _OK), tuple(ranges))

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        if ledger_id < 0:
            return LacRead(BookieStatus.BAD_REQUEST)
        state = self._table.get(ledger_id)
        if state is not None:
            try:
                await self._reader.learn_tail(state)
            except ReadFailed:
                return LacRead(BookieStatus.IO_ERROR)
        if state is None or not (state.lac > above or state.fenced):
            if self._waits.is_full:
                return LacRead(BookieStatus.TOO_MANY_REQUESTS)
            await self._waits.wait(ledger_id, above, timeout_s)
            state = self._table.get(ledger_id)
            if state is None:
                return LacRead(self._vouched(ledger_id, BookieStatus.NO_SUCH_LEDGER))
        risen = state.lac > above or state.fenced
        return LacRead(_OK if risen else self._vouched(ledger_id, _OK), state.lac)
