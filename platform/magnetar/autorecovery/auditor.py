"""The auditor: one of the candidates leads, watches the bookies, and has ledgers marked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from magnetar.autorecovery.audit import Audit
from magnetar.autorecovery.lost_bookies import LostBookies
from magnetar.autorecovery.records import (
    AUDIT_PATH,
    ELECTION_PATH,
    LEAVING_PATH,
    SETTINGS_PATH,
    RepairReports,
    audits_asked,
    leaving_bookies,
    lost_bookie_delay_s,
    read_audited,
    write_audited,
)
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.underreplicated import DISABLE_PATH, UnderreplicatedLedgers
from magnetar.metadata.election import LeaderElection
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.store import MetadataStore, Notification, Watch
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH, BookieProvider

log = get_logger("magnetar.autorecovery")

RETRY_S = 1.0
SETTLE_S = 1.0
"""News of one change reach several watches at different times: a second look so long after the first sees it all."""
LOOK_AGAIN_S = 30.0
"""News can be lost with a connection: the bookies are looked at anew at least so often."""


Look = Callable[[], Awaitable[float]]


class _Deposed(Exception):
    """Another leads, or autorecovery was paused or is to end."""


class Auditor:
    """A candidate. Two that believe to lead for a moment do no harm: marks merge."""

    def __init__(
        self,
        store: MetadataStore,
        ledgers: LedgerClient,
        bookies: BookieProvider,
        *,
        clock: Clock,
        settings: AutorecoverySettings,
        name: str,
    ) -> None:
        self._store = store
        self._bookies = bookies
        self._clock = clock
        self._settings = settings
        self._name = name
        self._marks = UnderreplicatedLedgers(store)
        self._audit = Audit(ledgers, bookies, self._marks, RepairReports(store))
        self._election = LeaderElection(store, ELECTION_PATH, name.encode(), self._on_election)
        self._lost = LostBookies(settings.lost_bookie_recovery_delay_s)
        self._emptied: frozenset[str] = frozenset()
        """Bookies to be emptied whose ledgers have been marked."""
        self._news = asyncio.Event()
        self._check_soon = asyncio.Event()
        self._stopping = False
        self._watches: list[Watch] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.away = 0
        self.marked = 0
        """Ledgers marked so far."""
        self.cancelled = 0
        self.sharing = 0

    @property
    def leading(self) -> bool:
        return self._election.leading

    def start(self) -> None:
        for path in (AVAILABLE_PATH, COOKIES_PATH, SETTINGS_PATH, AUDIT_PATH, LEAVING_PATH, DISABLE_PATH):
            self._watches.append(self._store.watch(path, self._on_change))
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep(self._look, self._news), name=f"auditor {self._name}"),
            loop.create_task(
                self._keep(self._check, self._check_soon), name=f"auditor's checks {self._name}"
            ),
        ]
        self._election.start()

    async def stop(self) -> None:
        self._stopping = True
        self._news.set()
        self._check_soon.set()
        for watch in self._watches:
            watch.cancel()
        await self._election.stop()
        await asyncio.gather(*self._tasks)

    def _on_change(self, notification: Notification) -> None:
        self._news.set()

    def _on_election(self, leading: bool) -> None:
        if leading:
            log.info("auditor.leads", name=self._name)
            self._lost = LostBookies(self._settings.lost_bookie_recovery_delay_s)
            self._emptied = frozenset()
        self._news.set()
        self._check_soon.set()

    async def _go_on(self) -> None:
        if self._stopping or not self.leading or await self._marks.paused():
            raise _Deposed

    async def _keep(self, work: Look, wake: asyncio.Event) -> None:
        """Do `work` again and again while this candidate leads; it says for how long it may rest."""
        while not self._stopping:
            told = wake.is_set()
            wake.clear()
            rest_s = LOOK_AGAIN_S
            if self.leading:
                try:
                    await self._go_on()
                    rest_s = await work()
                except _Deposed:
                    rest_s = LOOK_AGAIN_S
                except (LedgerError, MetadataError) as error:
                    log.warning("auditor.interrupted", name=self._name, reason=str(error))
                    rest_s = RETRY_S
                except Exception:
                    log.exception("auditor.failed", name=self._name)
                    rest_s = LOOK_AGAIN_S
            try:
                async with asyncio.timeout(min(rest_s, SETTLE_S) if told else rest_s):
                    await wake.wait()
            except TimeoutError:
                continue

    # Bookies that come and go.

    async def _look(self) -> float:
        """Look at the bookies, and act. Returns for how long to rest."""
        lost = self._lost
        delay_s = await lost_bookie_delay_s(self._store)
        lost.delay_s = self._settings.lost_bookie_recovery_delay_s if delay_s is None else delay_s
        asked = await audits_asked(self._store)
        audited = await read_audited(self._store)
        leaving = frozenset(await leaving_bookies(self._store))
        now = self._clock.monotonic()
        sighting = lost.seen(await self._bookies.known(), await self._bookies.readable(), now)
        self.away = len(lost.away)
        for bookie in sighting.left:
            log.warning("bookie.away", bookie=bookie, lost_in_s=lost.delay_s)
        for bookie in sighting.returned:
            log.info("bookie.back", bookie=bookie)
        if sighting.returned:
            self.cancelled += await self._audit.revalidate(sighting.returned, self._owner, self._go_on)
        due = lost.due(now)
        by_hand = asked > audited.asked
        if due or by_hand or leaving - self._emptied or self._bookie_check_due(audited.bookie_check_ms):
            # Asked for by hand, nothing is waited for.
            waited_for: set[str] = set() if by_hand else lost.away.keys() - {*due, *lost.audited}
            if not await self._bookies.readable():
                waited_for = set(lost.away)
            self.marked += await self._audit.mark_missing(self._go_on, waited_for=waited_for, leaving=leaving)
            lost.marked(lost.away.keys() - waited_for)
            self._emptied = leaving
            done = {"bookie_check_ms": self._clock.time_ms(), "asked": asked}
            await write_audited(self._store, done)
        self._emptied &= leaving
        next_due = lost.next_due()
        return LOOK_AGAIN_S if next_due is None else max(0.0, min(LOOK_AGAIN_S, next_due - now))

    @property
    def _owner(self) -> str:
        return f"auditor {self._name}"

    def _bookie_check_due(self, last_ms: int) -> bool:
        return self._is_due(last_ms, self._settings.bookie_check_interval_s)

    def _is_due(self, last_ms: int, interval_s: float) -> bool:
        now_ms = self._clock.time_ms()
        # A last time in the future: a clock was set back. Check, and begin to count anew.
        return interval_s > 0 and (now_ms - last_ms >= interval_s * 1000 or last_ms > now_ms)

    # Checks that take their time.

    async def _check(self) -> float:
        settings, audited = self._settings, await read_audited(self._store)
        if not audited.ledger_check_ms or not audited.placement_check_ms:
            # The first time is one interval from now: a cluster that was just made has nothing to check.
            now_ms = self._clock.time_ms()
            audited = replace(
                audited,
                ledger_check_ms=audited.ledger_check_ms or now_ms,
                placement_check_ms=audited.placement_check_ms or now_ms,
            )
            first = {
                "ledger_check_ms": audited.ledger_check_ms,
                "placement_check_ms": audited.placement_check_ms,
            }
            await write_audited(self._store, first)
        if self._is_due(audited.placement_check_ms, settings.placement_check_interval_s):
            sharing = await self._audit.find_sharing(self._go_on)
            self.sharing = sharing.count
            await write_audited(
                self._store,
                {
                    "placement_check_ms": self._clock.time_ms(),
                    "sharing_ledgers": list(sharing.some),
                    "sharing_count": sharing.count,
                },
            )
        if self._is_due(audited.ledger_check_ms, settings.ledger_check_interval_s):
            self.marked += await self._audit.check_all(
                self._go_on,
                share=settings.ledger_check_share,
                concurrency=settings.ledger_check_concurrency,
                leaving=await leaving_bookies(self._store),
            )
            await write_audited(self._store, {"ledger_check_ms": self._clock.time_ms()})
        intervals = (settings.placement_check_interval_s, settings.ledger_check_interval_s)
        return min(LOOK_AGAIN_S, *(interval for interval in intervals if interval > 0), LOOK_AGAIN_S)
