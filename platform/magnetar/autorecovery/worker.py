"""The replication worker: takes a marked ledger, locks it, has it repaired, and takes the mark away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from magnetar.autorecovery.checker import NO_DOUBTS
from magnetar.autorecovery.copier import CopyCounts
from magnetar.autorecovery.errors import AutorecoveryError
from magnetar.autorecovery.records import WORKERS_PATH, RepairReports, leaving_bookies
from magnetar.autorecovery.repair import Outcome, Repairer
from magnetar.autorecovery.repair_schedule import RepairSchedule
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.underreplicated import LedgerLock, UnderreplicatedLedger, UnderreplicatedLedgers
from magnetar.metadata.errors import AlreadyExists, MetadataError
from magnetar.metadata.store import MUST_NOT_EXIST, MetadataStore, Notification, SessionState, Watch
from magnetar.protocol.bookie import AVAILABLE_PATH, BookieProvider

log = get_logger("magnetar.autorecovery")


class _Stopped(Exception):
    """The worker is to end; the repair under way is left for another one."""


class ReplicationWorker:
    """A few ledgers at a time; as many workers as there are processes."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        bookies: BookieProvider,
        *,
        clock: Clock,
        dice: random.Random,
        settings: AutorecoverySettings,
        name: str,
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._bookies_changed = True
        self._there: set[tuple[str, str, bool]] = set()
        """Bookies as they were registered at the last look."""
        self._clock = clock
        self._dice = dice
        self._settings = settings
        self._name = name
        self._marks = UnderreplicatedLedgers(store)
        self._reports = RepairReports(store)
        self._repairer = Repairer(ledgers, bookies, settings, self._pause)
        self._schedule = RepairSchedule(
            retry_s=settings.retry_s, retry_max_s=settings.retry_max_s, grace_s=settings.open_ledger_grace_s
        )
        self._held: dict[int, LedgerLock] = {}
        """Locks kept while the writers of open ledgers have their time."""
        self._wake = asyncio.Event()
        self._stop = asyncio.Event()
        self._registered_as = ""
        self._task: asyncio.Task[None] | None = None
        self._trying: dict[asyncio.Task[None], int] = {}
        """Repairs under way, and of which ledgers."""
        self._watches: list[Watch] = []
        self._paused = False
        """Whether nothing was to be done at the last look; the end of that is told."""
        self.repaired = 0
        self.failed = 0
        self._with_lost: set[int] = set()
        self.waiting = 0
        """Marked ledgers at the last look."""

    @property
    def counts(self) -> CopyCounts:
        return self._repairer.counts

    @property
    def with_lost(self) -> int:
        """Ledgers this worker found to miss entries that nobody has."""
        return len(self._with_lost)

    def start(self) -> None:
        self._watches = [
            self._marks.watch(self._on_change),
            self._store.watch(AVAILABLE_PATH, self._on_bookies),
            self._store.on_session(self._on_session),
        ]
        self._task = asyncio.get_running_loop().create_task(
            self._work(), name=f"replication worker {self._name}"
        )

    async def stop(self) -> None:
        """End after the requests under way. What is half copied will be copied again by another worker."""
        self._stop.set()
        self._wake.set()
        for watch in self._watches:
            watch.cancel()
        if self._task is not None:
            await self._task
        locks, self._held = list(self._held.values()), {}
        try:
            for lock in locks:
                await lock.release()
            if self._registered_as == self._store.session_id:
                await self._store.delete(f"{WORKERS_PATH}/{self._name}")
        except (LedgerError, MetadataError) as error:  # The session's end does the same.
            log.info("worker.left_in_silence", worker=self._name, reason=str(error))

    def _on_change(self, notification: Notification) -> None:
        self._wake.set()

    def _on_bookies(self, notification: Notification) -> None:
        self._bookies_changed = True
        self._wake.set()

    def _on_session(self, state: SessionState) -> None:
        self._wake.set()

    async def _pause(self, seconds: float) -> None:
        """Between pieces of work."""
        if seconds > 0 and not self._stop.is_set():
            await _wait(self._stop, seconds)
        if self._stop.is_set():
            raise _Stopped

    async def _work(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            await self._guarded(self._begin())
            await _wait(self._wake, self._idle_s())
        if self._trying:
            await asyncio.wait(self._trying)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except _Stopped:
            return
        except (LedgerError, MetadataError, AutorecoveryError) as error:
            log.warning("worker.interrupted", worker=self._name, reason=str(error))
        except Exception:
            log.exception("worker.failed", worker=self._name)

    def _idle_s(self) -> float:
        turn = self._schedule.next_turn(excluding=self._trying.values())
        if self._paused or turn is None or len(self._trying) >= self._settings.repairs_at_once:
            return self._settings.workers_idle_s
        return min(self._settings.workers_idle_s, max(0.05, turn - self._clock.monotonic()))

    async def _begin(self) -> None:
        """Begin to repair as many ledgers as are to be tried now, and there is room for."""
        await self._register()
        self._paused = await self._marks.paused()
        if self._paused:
            return
        marked = await self._marks.ids()
        self.waiting = len(marked)
        self._with_lost.intersection_update(marked)
        for ledger_id in [each for each in self._held if each not in marked]:
            await self._held.pop(ledger_id).release()
        await self._look_at_bookies()
        trying = set(self._trying.values())
        ready = [each for each in self._schedule.ready(marked, self._clock.monotonic()) if each not in trying]
        room = max(0, self._settings.repairs_at_once - len(trying))
        for ledger_id in self._dice.sample(ready, min(room, len(ready))):
            task = asyncio.get_running_loop().create_task(
                self._guarded(self._try(ledger_id)), name=f"repair of ledger {ledger_id}"
            )
            self._trying[task] = ledger_id
            task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        del self._trying[task]
        self._wake.set()  # There is room for another.

    async def _look_at_bookies(self) -> None:
        """A bookie has come, or is writable again: what could not be done may be possible now. That one tells how much
        space it has is no such news."""
        if not self._bookies_changed:
            return
        self._bookies_changed = False
        there = {
            (bookie, address.incarnation, address.read_only)
            for bookie, address in (await self._bookies.readable()).items()
        }
        if there - self._there:
            self._schedule.hurry()
        self._there = there

    async def _register(self) -> None:
        """Be known as one who repairs, for people who look."""
        session = self._store.session_id
        if self._registered_as == session:
            return
        path = f"{WORKERS_PATH}/{self._name}"
        try:
            await self._store.put(path, b'{"version":1}', expected_version=MUST_NOT_EXIST, ephemeral=True)
        except AlreadyExists:
            record = await self._store.get(path)
            if record is None or record.session != session:
                return  # Of a session that ended a moment ago: next time.
        self._registered_as = session

    async def _try(self, ledger_id: int) -> None:
        lock = self._held.pop(ledger_id, None)
        if lock is None or not lock.held:
            lock = None
            try:
                lock = await self._marks.lock(ledger_id, self._name)
            finally:
                if lock is None:  # Another worker has it, or nobody knows.
                    self._schedule.taken(ledger_id, self._clock.monotonic())
        if lock is None:
            return
        keep = False
        try:
            mark = await self._marks.get(ledger_id)
            if mark is None:
                self._schedule.succeeded(ledger_id)
                return
            keep = await self._repair(mark, lock)
        except _Stopped:
            raise
        except Exception:
            self.failed += 1
            self._schedule.failed(ledger_id, self._clock.monotonic())
            raise
        finally:
            if keep:
                self._held[ledger_id] = lock
            else:
                await lock.release()

    async def _repair(self, mark: UnderreplicatedLedger, lock: LedgerLock) -> bool:
        """Repair a ledger of which the lock is held. Whether to keep the lock until its next turn."""
        ledger_id = mark.ledger_id
        fence = self._schedule.grace_is_over(ledger_id, self._clock.monotonic())
        report = await self._reports.get(ledger_id)
        repair = await self._repairer.repair(
            ledger_id,
            lock,
            doubts=NO_DOUBTS if report is None else report.doubts(),
            leaving=await leaving_bookies(self._store),
            suspects=mark.missing,
            fence_open=fence,
        )
        now = self._clock.monotonic()
        if not repair.open_bad:
            self._schedule.end_grace(ledger_id)
        match repair.outcome:
            case Outcome.WHOLE | Outcome.DELETED:
                crash_point("autorecovery.before_clear")
                self._with_lost.discard(ledger_id)
                await self._reports.drop(ledger_id)
                # Marked again since it was read: whatever that was about, look once more.
                if lock.held and await self._marks.clear(mark):
                    self._schedule.succeeded(ledger_id)
                    self.repaired += repair.outcome is Outcome.WHOLE
                    log.info("ledger.repaired", ledger_id=ledger_id, slots=repair.substitutions)
                return False
            case Outcome.OPEN:
                self._schedule.again_at(ledger_id, self._schedule.grace_ends(ledger_id, now))
                return True
            case Outcome.SUSPECTED:
                self._schedule.again_at(ledger_id, now + self._settings.workers_idle_s)
            case Outcome.LEFT:
                assert repair.report is not None
                self.failed += 1
                pause_s = self._schedule.failed(ledger_id, now)
                await self._reports.put(repair.report)
                if repair.report.lost:
                    self._with_lost.add(ledger_id)
                level = log.error if repair.report.lost else log.warning
                level("ledger.not_repaired", reason=str(repair.report), again_in_s=pause_s)
        return False


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
