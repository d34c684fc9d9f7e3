"""Reading: write cache, read cache, then index and entry log in a thread."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import TypeVar

from magnetar.bookie.damage import DamagedEntries
from magnetar.bookie.entry_ranges import ranges_of
from magnetar.bookie.errors import EntryLogCorrupt
from magnetar.bookie.index import IndexUnusable
from magnetar.bookie.ledger_table import NO_ENTRY, LedgerState
from magnetar.bookie.read_cache import ReadCache
from magnetar.bookie.storage import Storage, StoredEntry
from magnetar.bookie.write_cache import WriteCache
from magnetar.environment.logs import get_logger
from magnetar.protocol.ledger_entry import ENTRY_HEADER

log = get_logger("magnetar.bookie.reads")
_T = TypeVar("_T")


class ReadFailed(Exception):
    """The disk could not answer: neither that the entry is there nor that it is not."""


class EntryDamaged(ReadFailed):
    """Another attempt would find no more."""


class Reader:
    """Belongs to the loop; only `Storage` is called in threads. Ledgers asked for are known to the table."""

    def __init__(
        self,
        cache: WriteCache,
        read_cache: ReadCache,
        storage: Storage,
        executor: Executor,
        on_index_unusable: Callable[[], None],
        damaged: DamagedEntries,
    ) -> None:
        self._damaged = damaged
        self._on_index_unusable = on_index_unusable
        self._cache = cache
        self._read_cache = read_cache
        self._storage = storage
        self._executor = executor
        self._loop = asyncio.get_running_loop()

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        parts = self._cache.get(ledger_id, entry_id)
        if parts is not None:
            return b"".join(parts)
        return self._read_cache.get(ledger_id, entry_id)

    async def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """An entry, or None: not held. Raises: ReadFailed."""
        entry = self.cached(ledger_id, entry_id)
        if entry is not None:
            return entry
        try:
            stored = await self._ask(ledger_id, entry_id)
        except EntryDamaged:
            self._damaged.note(ledger_id, entry_id)
            raise
        self._keep(stored[1:])
        return stored[0].entry if stored else None

    async def run(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        """Entries from `first` on without a gap; at least one if it is held. Raises: ReadFailed."""
        entries: list[bytes] = []
        total = 0
        more: deque[bytes] = deque()
        while len(entries) < count:
            entry_id = first + len(entries)
            entry = more.popleft() if more else self.cached(ledger_id, entry_id)
            if entry is None and (not entries or total < max_bytes):
                try:
                    run = await self._stored_run(ledger_id, entry_id, count - len(entries), max_bytes - total)
                except ReadFailed:
                    if entries:
                        break  # Those before it are whole; whoever asks for it will be told.
                    raise
                more.extend(run)
                entry = more.popleft() if more else None
            if entry is None or (entries and total + len(entry) > max_bytes):
                break
            entries.append(entry)
            total += len(entry)
        return entries

    async def learn_tail(self, state: LedgerState) -> None:
        """Find out what earlier processes stored last of a ledger. Raises: ReadFailed."""
        if state.tail_known:
            return
        last = await self._in_thread(self._storage.last, state.ledger_id)
        if last is not None:
            state.last_entry = max(state.last_entry, last.entry_id)
            state.lac = max(state.lac, ENTRY_HEADER.unpack_from(last.entry)[2])
        state.tail_known = True

    async def last(self, state: LedgerState) -> bytes | None:
        """The last entry held of a ledger. Raises: ReadFailed."""
        await self.learn_tail(state)
        if state.last_entry == NO_ENTRY:
            return None
        return await self.entry(state.ledger_id, state.last_entry)

    async def ranges(self, ledger_id: int) -> list[tuple[int, int]]:
        """Which entries are held of a ledger, and not known to be damaged. Raises: ReadFailed."""
        cached = self._cache.entry_ids(ledger_id)  # Before the index is asked: a flush moves them there.
        damaged = set(self._damaged.of(ledger_id))
        return await self._in_thread(self._ranges, ledger_id, cached, damaged)

    def _ranges(self, ledger_id: int, cached: set[int], damaged: set[int]) -> list[tuple[int, int]]:
        stored: Iterator[int] = self._storage.entry_ids(ledger_id)
        if damaged:
            stored = (entry_id for entry_id in stored if entry_id not in damaged)
        return ranges_of(heapq.merge(stored, sorted(cached)))

    async def _ask(self, ledger_id: int, entry_id: int) -> list[StoredEntry]:
        return await self._in_thread(self._storage.read, ledger_id, entry_id)

    async def _stored_run(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        run = await self._in_thread(self._storage.read_run, ledger_id, first, count, max_bytes)
        # What was asked for goes out and is not asked for again; the read cache is for what comes next.
        return [stored.entry for stored in run]

    def _keep(self, ahead: list[StoredEntry]) -> None:
        for stored in ahead:
            if self._cache.get(stored.ledger_id, stored.entry_id) is None:
                self._read_cache.put(stored.ledger_id, stored.entry_id, stored.entry)

    async def _in_thread(self, function: Callable[..., _T], *arguments: object) -> _T:
        try:
            return await self._loop.run_in_executor(self._executor, function, *arguments)
        except (OSError, EntryLogCorrupt, IndexUnusable) as error:
            asked = [each for each in arguments if isinstance(each, int)]  # Ledger, entry, count, bytes.
            log.error("read.failed", asked=asked, reason=str(error))
            if isinstance(error, IndexUnusable):
                self._on_index_unusable()
            raise (EntryDamaged if isinstance(error, EntryLogCorrupt) else ReadFailed)(str(error)) from error
