"""Getting space back: forgetting ledgers that are gone from metadata, removing and compacting entry logs.

A ledger is only forgotten if it was here before metadata was listed, is not in the listing, and is absent when asked for by
itself: a listing that is cut short must not cost anyone data (BookKeeper #870). And not at once: with a ledger its fence
is forgotten, and a writer that slept through its deposition would be acknowledged what nobody will ever read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.entry_log import LedgerMap
from magnetar.bookie.errors import EntryLogCorrupt
from magnetar.bookie.index import IndexUnusable
from magnetar.bookie.several import AnyBookie
from magnetar.bookie.space import Fullness
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.metrics.sample import Sample, counter, gauge

_EAGER_THRESHOLD = 0.9
_FULL_PAUSE_S = 30.0
_RESCUE_STEP = 200

log = get_logger("magnetar.bookie.garbage")

LiveLedgers = Callable[[], Awaitable[set[int]]]
LedgerExists = Callable[[int], Awaitable[bool]]


class Surplus(Protocol):
    """What has to be known of a copy that its ledger's metadata does not name."""

    async def is_unnamed(self, ledger_id: int) -> bool:
        """Whether the ledger is closed, and no fragment of it names this bookie. Raises if that could not be found out."""
        ...

    def kept_unnamed(self, ledger_id: int) -> AbstractAsyncContextManager[bool]:
        """The same, and meanwhile nobody copies anything of the ledger; False where somebody does."""
        ...


@dataclass(frozen=True, slots=True)
class Collected:
    """What one collection has done."""

    ledgers: int
    removed_logs: int
    compacted_logs: int
    surplus_ledgers: int = 0


class GarbageCollector:
    """Collects every `interval_s`, and on demand."""

    def __init__(
        self,
        bookie: AnyBookie,
        live_ledgers: LiveLedgers,
        *,
        exists: LedgerExists | None = None,
        surplus: Surplus | None = None,
        interval_s: float | None = None,
        grace_s: float | None = None,
    ) -> None:
        """
        Args:
            live_ledgers: lists the ledgers in metadata.
            exists: asks metadata for one ledger. Without it the listing is asked for a second time instead.
            surplus: asks metadata which copies are not named. Without it they are kept.
            grace_s: how long a ledger must have been missing from metadata before it is forgotten.
        """
        self._bookie = bookie
        self._live_ledgers = live_ledgers
        self._exists = exists
        self._interval_s = bookie.settings.gc_interval_s if interval_s is None else interval_s
        self._grace_s = bookie.settings.gc_grace_s if grace_s is None else grace_s
        self._missing_since: dict[int, float] = {}
        self._surplus = surplus
        self._surplus_since: dict[int, float] = {}
        self._surplus_look = 0.0
        self._wake = asyncio.Event()
        self.collections = 0
        self.surplus_ledgers = 0
        self.troubled_logs: dict[Path, str] = {}
        """Entry logs that cannot be read through, and why. Everything else is collected around them."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._bookie.on_disk_filling = self._wake.set
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            waiting = self._missing_since or self._surplus_since
            pause = min(self._interval_s, self._grace_s) if waiting else self._interval_s
            if self._bookie.fullness >= Fullness.FULL:
                pause = min(pause, _FULL_PAUSE_S)
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                log.debug("garbage.time_has_come")
            self._wake.clear()
            try:
                await self.collect()
            except Exception:  # The next one may do better; nothing depends on this one.
                log.exception("garbage.collection_failed")

    async def collect(self) -> Collected:
        """One collection. May be stopped, or the process killed, at any moment."""
        bookie = self._bookie
        self.collections += 1
        gone = self._gone_long_enough(await self._gone_ledgers())
        if gone:
            await bookie.delete_ledgers(gone)
            # Their entries are out of the index and the table, durably, before any file goes.
            await bookie.checkpoint()
            log.info("garbage.ledgers_forgotten", ledgers=len(gone))
        try:
            dropped = await self._drop_surplus()
        except Exception:  # It needs metadata; what follows may need nothing but space.
            log.exception("garbage.surplus_not_found_out")
            dropped = 0
        removed = compacted = 0
        for share in bookie.shares:
            removed_here, compacted_here = await self._collect_logs(share)
            removed, compacted = removed + removed_here, compacted + compacted_here
        if removed or compacted:
            log.info("garbage.logs_collected", removed=removed, compacted=compacted)
        return Collected(len(gone), removed, compacted, dropped)

    async def _drop_surplus(self) -> int:
        """Forget whole copies that nobody will ask for: their ledgers were copied elsewhere while this bookie was away.

        Only of closed ledgers, seen unnamed twice and long enough apart, and the second time with the right to repair
        them in hand: who repairs a ledger copies entries here first, and names this bookie then.
        """
        bookie, surplus = self._bookie, self._surplus
        now = asyncio.get_running_loop().time()
        if surplus is None or bookie.limbo or bookie.in_doubt is not None:
            return 0
        if not self._surplus_since and now < self._surplus_look:
            return 0
        self._surplus_look = now + bookie.settings.gc_over_replicated_interval_s
        here, known = bookie.ledgers(), self._surplus_since
        looked_at = sorted(here & set(known)) if known else sorted(here)
        since = {
            ledger_id: known.get(ledger_id, now)
            for ledger_id in looked_at
            if await surplus.is_unnamed(ledger_id)
        }
        self._surplus_since = {each: start for each, start in since.items() if now - start < self._grace_s}
        dropped = 0
        for ledger_id in since.keys() - self._surplus_since.keys():
            async with surplus.kept_unnamed(ledger_id) as unnamed:
                if unnamed:
                    await bookie.delete_ledger(ledger_id)
                    crash_point("bookie.surplus.dropped")
                    dropped += 1
        if dropped:
            await bookie.checkpoint()
            self.surplus_ledgers += dropped
            log.info("garbage.surplus_copies_dropped", ledgers=dropped)
        return dropped

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

    async def _collect_logs(self, bookie: Bookie) -> tuple[int, int]:
        """Remove what is dead first, which takes no space, then rewrite the emptiest: on a full disk that is the way out."""
        storage = bookie.storage
        # In this order: a ledger that comes later writes to logs at or above the boundary.
        boundary = storage.log_boundary()
        live = bookie.ledgers()
        if bookie.limbo.reason is not None:  # It may have forgotten some that it holds.
            live |= await self._live_ledgers()
        removed = compacted = 0
        to_compact: list[tuple[float, int, int, int]] = []
        damaged: list[int] = []
        for log_id in storage.complete_logs(boundary):
            try:
                found = await self._map_of(bookie, log_id)
                total = sum(found.bytes_by_ledger.values())
                alive = sum(size for ledger_id, size in found.bytes_by_ledger.items() if ledger_id in live)
                if not alive:
                    await bookie.in_storage_thread(storage.remove_logs, {log_id})
                    removed += 1
                elif alive < total * _threshold(bookie):
                    to_compact.append((alive / total, log_id, alive, found.data_end))
            except EntryLogCorrupt as error:
                self._report(bookie, log_id, error)
                damaged.append(log_id)
            except (IndexUnusable, OSError) as error:
                self._report(bookie, log_id, error)
        for _, log_id, alive, data_end in sorted(to_compact):
            if not await self._has_room_for(bookie, alive):
                log.warning("garbage.no_room_to_compact", log=log_id, bytes=alive)
                continue  # A smaller one may fit.
            try:
                await self._compact(bookie, log_id, data_end, live)
                compacted += 1
            except EntryLogCorrupt as error:
                self._report(bookie, log_id, error)
                damaged.append(log_id)
            except (IndexUnusable, OSError) as error:
                self._report(bookie, log_id, error)
        for log_id in damaged:
            compacted += await self._rescue(bookie, log_id, live)
        return removed, compacted

    def _report(self, bookie: Bookie, log_id: int, error: Exception) -> None:
        path = bookie.storage.logs.path(log_id)
        self.troubled_logs[path] = str(error)
        log.error(
            "garbage.log_kept",
            file=str(path),
            log=log_id,
            reason=str(error),
        )

    async def _has_room_for(self, bookie: Bookie, size: int) -> bool:
        """Whether the copies fit, with as much again to be safe: what is reserved may be used for this."""
        free = (await bookie.info()).free_bytes
        return free > size + min(size, bookie.settings.entry_log_bytes // 8)

    async def _map_of(self, bookie: Bookie, log_id: int) -> LedgerMap:
        storage = bookie.storage
        found = await asyncio.to_thread(storage.logs.read_map, log_id)
        if found is None:
            found = await bookie.in_storage_thread(storage.ledger_map, log_id)
        return found

    async def _compact(self, bookie: Bookie, log_id: int, data_end: int, live: set[int]) -> None:
        storage = bookie.storage
        position: int | None = 0
        while position is not None:
            position = await bookie.in_storage_thread(storage.compact_step, log_id, position, data_end, live)
            crash_point("bookie.compaction.middle")
        await bookie.in_storage_thread(storage.remove_logs, {log_id})

    async def _rescue(self, bookie: Bookie, log_id: int, live: set[int]) -> bool:
        """Take what is whole out of a damaged log. It goes once nothing that lives is left in it: when the rest is mended."""
        storage = bookie.storage
        try:
            clean = True
            ledgers = sorted(await self._ledgers_in(bookie, log_id, live))
            for start in range(0, len(ledgers), _RESCUE_STEP):  # A flush may come between two steps.
                some = ledgers[start : start + _RESCUE_STEP]
                clean &= await bookie.in_storage_thread(storage.rescue, log_id, some)
            if (
                clean and storage.doubt is None and not bookie.limbo
            ):  # What is missed may be behind the damage.
                await bookie.in_storage_thread(storage.remove_logs, {log_id})
                self.troubled_logs.pop(storage.logs.path(log_id), None)
                log.info("garbage.damaged_log_removed", log=log_id)
                return True
        except (EntryLogCorrupt, IndexUnusable, OSError) as error:
            self._report(bookie, log_id, error)
        return False

    async def _ledgers_in(self, bookie: Bookie, log_id: int, live: set[int]) -> set[int]:
        """The ledgers that may have something in a log: by its map, or, without one, all."""
        found = await asyncio.to_thread(bookie.storage.logs.read_map, log_id)
        return live if found is None else live & set(found.bytes_by_ledger)

    def metrics(self) -> Iterator[Sample]:
        labels = {"bookie": self._bookie.bookie_id}
        yield counter("bookie_gc_collections_count", self.collections, labels)
        yield counter("bookie_surplus_ledgers_dropped_count", self.surplus_ledgers, labels)
        yield gauge("bookie_damaged_entry_logs", len(self.troubled_logs), labels)


def _threshold(bookie: Bookie) -> float:
    """On a disk that fills every log is rewritten that gives a tenth of its space back."""
    usual = bookie.settings.compaction_threshold
    return usual if bookie.fullness is Fullness.FINE else max(usual, _EAGER_THRESHOLD)
