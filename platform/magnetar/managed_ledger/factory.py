"""Where logs are opened, found again and deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.managed_ledger.catch_up_pace import CatchUpPace
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.deletion import LogRemover
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import ManagedLedgerClosed, ManagedLedgerError, StorageUnavailable
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.opening import Opener
from magnetar.managed_ledger.reads import SharedReads
from magnetar.managed_ledger.records import LOGS_PATH
from magnetar.managed_ledger.sweeper import Sweeper, SweepReport, SweepSettings
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.managed_ledger")

_TICK_S = 0.5
_LOGS_PER_TURN = 500
_CATCH_UP_SHARE = 4
"""Beside the tails' memory, one part in so many of it is for readers that catch up together."""
_ROLLS_AT_ONCE = 32
"""Logs opened together grow old together: their new ledgers must not be a storm for the metadata store."""


class ManagedLedgerFactory:
    """All logs that this process owns. One for a process; belongs to its event loop."""

    def __init__(
        self,
        metadata: MetadataStore,
        ledgers: LedgerClient,
        *,
        clock: Clock,
        cache: EntryCache | None = None,
        random: random.Random | None = None,
        sweeps: SweepSettings | None = None,
        pace: CatchUpPace | None = None,
    ) -> None:
        """`pace`: of those who read behind the tails while others append; None: nothing holds them back."""
        self.cache = cache if cache is not None else EntryCache()
        self.ledger_client = ledgers
        self.shared_reads = SharedReads(self.cache.max_bytes // _CATCH_UP_SHARE, pace=pace)
        self._metadata = metadata
        self._clock = clock
        self._tasks = OwnedTasks(log)
        dice = random if random is not None else _dice()
        self._remover = LogRemover(metadata, ledgers, clock, dice)
        self._opener = Opener(
            metadata,
            ledgers,
            clock,
            dice,
            self._tasks,
            self.cache,
            self._remover,
            asyncio.Semaphore(_ROLLS_AT_ONCE),
            self.shared_reads,
        )
        self._open: dict[str, ManagedLedger] = {}
        self._opening: dict[str, asyncio.Task[ManagedLedger]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._sweeper = Sweeper(self._remover, sweeps or SweepSettings())
        self._sweeping: asyncio.Task[None] | None = None
        self._sweep_lock = asyncio.Lock()
        self._closed = False

    async def open(
        self,
        name: str,
        config: ManagedLedgerConfig,
        *,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> ManagedLedger:
        """The log `name`, taken over from whoever had it; the same object while it is open here.

        Raises:
            NoSuchManagedLedger: there is none, and `create` is false.
            StorageUnavailable: retry. ManagedLedgerFenced: somebody else takes it over as well.
            EntryUnreadable, RecordUnreadable
        """
        if self._closed:
            raise ManagedLedgerClosed(name)
        opened = self._open.get(name)
        if opened is not None and opened.state in ("open", "terminated"):
            return opened
        opening = self._opening.get(name)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(
                self._open_once(name, config, create=create, properties=properties)
            )
            self._opening[name] = opening
            opening.add_done_callback(lambda task: self._opened(name, task))
        return await asyncio.shield(opening)

    async def _open_once(
        self, name: str, config: ManagedLedgerConfig, *, create: bool, properties: Mapping[str, str] | None
    ) -> ManagedLedger:
        previous = self._open.get(name)
        if previous is not None:
            await previous.close()  # Fenced, or just being closed.
        opened = await self._opener.open(name, config, create=create, properties=properties)
        self._open[name] = opened
        opened.on_close(lambda: self._forget(opened))
        if self._ticking is None:
            self._ticking = asyncio.get_running_loop().create_task(self._tick())
        if self._sweeping is None and self._sweeper.settings.interval_s:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_now_and_then())
        return opened

    def _opened(self, name: str, task: asyncio.Task[ManagedLedger]) -> None:
        del self._opening[name]
        if not task.cancelled():
            task.exception()  # Whoever still waits raises it; all may have been cancelled.

    def _forget(self, closed: ManagedLedger) -> None:
        if self._open.get(closed.name) is closed:
            del self._open[closed.name]

    async def exists(self, name: str) -> bool:
        """Whether there is a log of that name, open or not."""
        record, _ = await self._remover.read_head(name)
        return record is not None and not record.deleted

    async def delete(self, name: str) -> None:
        """Delete a log with everything that belongs to it. One that is open here is let go first.

        Raises:
            NoSuchManagedLedger, StorageUnavailable, ManagedLedgerFenced
        """
        opened = self._open.get(name)
        if opened is not None:
            await opened.close()
        await self._tasks.shielded(self._remover.delete(name))

    async def finish_deletion(self, name: str) -> None:
        """Delete what a deletion that was cut short has left. Nothing happens where there is no such thing.

        Raises:
            StorageUnavailable, ManagedLedgerFenced
        """
        record, _ = await self._remover.read_head(name)
        if record is not None and record.deleted:
            await self._tasks.shielded(self._remover.delete(name))

    async def list(self, prefix: str) -> list[str]:
        """The names of the logs right below `prefix`, e.g. `tenant/namespace/persistent`."""
        folder = prefix.strip("/")
        try:
            names = await self._metadata.children(f"{LOGS_PATH}/{folder}" if folder else LOGS_PATH)
        except MetadataError as error:
            raise StorageUnavailable(prefix, str(error) or type(error).__name__) from error
        logs = [f"{folder}/{name}" if folder else name for name in names]
        found: list[str] = []
        for start in range(0, len(logs), _LOGS_PER_TURN):
            some = logs[start : start + _LOGS_PER_TURN]
            # What a deletion that was cut short has left, or a folder, has a name here and is no log.
            there = await asyncio.gather(*map(self.exists, some))
            found += [name for name, is_there in zip(some, there, strict=True) if is_there]
        return found

    async def close(self) -> None:
        """Close all logs, then wait for what is still under way."""
        self._closed = True
        for task in (self._ticking, self._sweeping):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._opening:
            await asyncio.wait(self._opening.values())
        if self._open:
            await asyncio.gather(*(opened.close() for opened in list(self._open.values())))
        await self._tasks.drain()

    # What is lost.

    async def skip_lost_ledger(self, name: str, ledger_id: int) -> str:
        """Let the log `name` go on without a ledger that is lost for good: by an operator's consent only.

        Also for a log that cannot be opened because of it, and for a ledger that holds a cursor's state: that
        cursor goes on from where its record in metadata stands, and delivers again what was acknowledged since.

        Returns what was given up, for people.

        Raises:
            NoSuchManagedLedger, NoSuchLedgerInLog, StorageUnavailable, ManagedLedgerFenced
        """
        opened = self._open.get(name)
        if opened is not None and opened.state in ("open", "terminated") and ledger_id in opened.ledgers:
            lost = await opened.skip_lost_ledger(ledger_id)
            return f"{lost.entries} entries, {lost.size} bytes"
        return await self._tasks.shielded(self._remover.give_up(name, ledger_id))

    # Leftovers.

    async def sweep(self) -> SweepReport:
        """Look for what cut-short deletions have left, and finish it; also while other processes do.

        What is found for the first time is only remembered: see `sweeper.py`.

        Raises:
            StorageUnavailable
        """
        async with self._sweep_lock:
            return await self._sweeper.sweep()

    async def leftovers(self) -> SweepReport:
        """What a sweep would find now: orphans, and pending deletions. Nothing is changed.

        Raises:
            StorageUnavailable
        """
        return await self._sweeper.sweep(delete=False)

    async def _sweep_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(self._sweeper.settings.interval_s)
            try:
                if await self._sweeper.is_our_turn():
                    await self.sweep()
            except ManagedLedgerError as error:
                log.warning("sweep.cut_short", reason=str(error))
            except Exception:
                log.exception("sweep.failed")

    async def _tick(self) -> None:
        """One clock for all logs: a timer for each would cost more than the work they do."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = self._clock.monotonic()
            for number, opened in enumerate(list(self._open.values()), 1):
                try:
                    opened.tick(now)
                except Exception:
                    log.exception("log.tick_failed", log=opened.name)
                if number % _LOGS_PER_TURN == 0:
                    await asyncio.sleep(0)


def _dice() -> random.Random:
    return random.Random()
