"""Getting space back: forgetting ledgers that are gone from metadata, removing and compacting entry logs.

A ledger is only forgotten if it was here before metadata was listed, is not in the listing, and is absent when asked for by
itself: a listing that is cut short must not cost anyone data (BookKeeper #870). And not at once: with a ledger its fence
is forgotten, and a writer that slept through its deposition would be acknowledged what nobody will ever read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import EntryLogCorrupt
from magnetar.bookie.index import IndexUnusable
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger

log = get_logger("magnetar.bookie.garbage")

LiveLedgers = Callable[[], Awaitable[set[int]]]
LedgerExists = Callable[[int], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collection has done."""

    ledgers: int
    removed_logs: int
    compacted_logs: int


class GarbageCollector:
    """Collects every `interval_s`, and on demand."""

    def __init__(
        self,
        bookie: Bookie,
        live_ledgers: LiveLedgers,
        *,
        exists: LedgerExists | None = None,
        interval_s: float | None = None,
        grace_s: float | None = None,
    ) -> None:
        """
        Args:
            live_ledgers: lists the ledgers in metadata.
            exists: asks metadata for one ledger. Without it the listing is asked for a second time instead.
            grace_s: how long a ledger must have been missing from metadata before it is forgotten.
        """
        self._bookie = bookie
        self._live_ledgers = live_ledgers
        self._exists = exists
        self._interval_s = bookie.settings.gc_interval_s if interval_s is None else interval_s
        self._grace_s = bookie.settings.gc_grace_s if grace_s is None else grace_s
        self._missing_since: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            waiting = self._missing_since
            await asyncio.sleep(min(self._interval_s, self._grace_s) if waiting else self._interval_s)
            try:
                await self.collect()
            except Exception:  # The next one may do better; nothing depends on this one.
                log.exception("garbage.collection_failed")

    async def collect(self) -> Collected:
        """One collection. May be stopped, or the process killed, at any moment."""
        bookie = self._bookie
        gone = self._gone_long_enough(await self._gone_ledgers())
        if gone:
            await bookie.delete_ledgers(gone)
            # Their entries are out of the index and the table, durably, before any file goes.
            await bookie.checkpoint()
            log.info("garbage.ledgers_forgotten", ledgers=len(gone))
        removed, compacted = await self._collect_logs()
        if removed or compacted:
            log.info("garbage.logs_collected", removed=removed, compacted=compacted)
        return Collected(len(gone), removed, compacted)

    async def _gone_ledgers(self) -> list[int]:
        here = self._bookie.ledgers()  # Before the listing: what is created after it is not ours to judge.
        if not here:
            return []
        candidates = sorted(here - await self._live_ledgers())
        if not candidates:
            return []
        if self._exists is None:
            again = await self._live_ledgers()
            return [ledger_id for ledger_id in candidates if ledger_id not in again]
        return [ledger_id for ledger_id in candidates if not await self._exists(ledger_id)]

    def _gone_long_enough(self, gone: list[int]) -> list[int]:
        now = asyncio.get_running_loop().time()
        known = self._missing_since
        since = {ledger_id: known.get(ledger_id, now) for ledger_id in gone}
        self._missing_since = {each: start for each, start in since.items() if now - start < self._grace_s}
        return [ledger_id for ledger_id in gone if ledger_id not in self._missing_since]

    async def _collect_logs(self) -> tuple[int, int]:
        storage = self._bookie.storage
        # In this order: a ledger that comes later writes to logs at or above the boundary.
        boundary = storage.log_boundary()
        live = self._bookie.ledgers()
        removed = compacted = 0
        for log_id in storage.complete_logs(boundary):
            try:
                verdict = await self._collect_log(log_id, live)
            except (EntryLogCorrupt, IndexUnusable, OSError) as error:
                log.error("garbage.log_kept", log=log_id, reason=str(error))
                continue
            removed += verdict == "removed"
            compacted += verdict == "compacted"
        return removed, compacted

    async def _collect_log(self, log_id: int, live: set[int]) -> str:
        bookie, storage = self._bookie, self._bookie.storage
        found = await asyncio.to_thread(storage.logs.read_map, log_id)
        if found is None:
            found = await bookie.in_storage_thread(storage.ledger_map, log_id)
        total = sum(found.bytes_by_ledger.values())
        alive = sum(size for ledger_id, size in found.bytes_by_ledger.items() if ledger_id in live)
        if alive:
            if alive >= total * bookie.settings.compaction_threshold:
                return "kept"
            position: int | None = 0
            while position is not None:
                position = await bookie.in_storage_thread(
                    storage.compact_step, log_id, position, found.data_end, live
                )
                crash_point("bookie.compaction.middle")
        await bookie.in_storage_thread(storage.remove_logs, {log_id})
        return "compacted" if alive else "removed"
