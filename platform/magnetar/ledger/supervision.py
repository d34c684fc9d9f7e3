"""What looks after all open ledgers of a client: who lags, who is to be told of a LAC, who waits for room.

One timer for all of them, and none while nothing is on its way. The shell around `replica_budget.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.counts import Counts
from magnetar.ledger.replica_budget import ReplicaBudget
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.slow_bookies import SlowBookies
from magnetar.protocol.bookie import BookieProvider

if TYPE_CHECKING:
    from magnetar.ledger.writer import LedgerWriter

log = get_logger("magnetar.ledger")

_TICK_S = 0.25
_LOOKS = 8
"""A lagging bookie is looked at this often before it is found to lag."""


class Supervision:
    """Belongs to one event loop, like all it looks after."""

    def __init__(
        self,
        bookies: BookieProvider,
        budget: ReplicaBudget,
        health: BookieHealth,
        counts: Counts,
        clock: Clock,
        settings: LedgerClientSettings,
    ) -> None:
        self._bookies = bookies
        self._budget = budget
        self._health = health
        self._counts = counts
        self._clock = clock
        self._settings = settings
        self._slow = SlowBookies(settings.slow_replica_s, settings.slow_replica_ratio)
        self._tick_s = min(_TICK_S, settings.replica_lag_s / _LOOKS)
        self._tell_lac_at = 0.0
        self._looked_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False
        self.waiting: list[asyncio.Future[None]] = []
        """For room: woken by `made_room`."""
        self.woken = 0
        """Those of them that were woken, and have not had their turn."""
        self._letting_in = False
        # Weak, so that a writer nobody has any more is not kept for ever.
        self._writers: WeakValueDictionary[int, LedgerWriter] = WeakValueDictionary()
        self.running = False
        """Whether the timer runs. Whoever sends something starts it."""

    def opened(self, writer: LedgerWriter) -> None:
        self._writers[writer.ledger_id] = writer

    def ended(self, writer: LedgerWriter) -> None:
        self._writers.pop(writer.ledger_id, None)

    @property
    def open_writers(self) -> int:
        return len(self._writers)

    def start(self) -> None:
        if not self.running and not self.closed:
            self.running = True
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def close(self) -> None:
        self.closed = True
        self.running = False
        if self._timer is not None:
            self._timer.cancel()
        self._wake()

    # Room.

    @property
    def refuses(self) -> bool:
        """Whether no append is taken now: there is no room, or others wait for it who were there before."""
        if self.closed:
            return False
        if self._budget.pending_bytes >= self._budget.pending_limit:
            return True
        return bool(self.waiting or self.woken) and not self._letting_in

    async def room(self) -> None:
        """Return once appends are taken. Whoever appends before he awaits anything else is before all newcomers."""
        budget, loop = self._budget, asyncio.get_running_loop()
        while self.refuses:
            turn: asyncio.Future[None] = loop.create_future()
            self.waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.woken -= 1
                    loop.call_soon(self._all_are_in)
                raise
            self.woken -= 1
            if budget.pending_bytes < budget.pending_limit and not self._letting_in:
                self._letting_in = True
                loop.call_soon(self._all_are_in)

    def _all_are_in(self) -> None:
        """Those that were woken together have had their turns, in one turn of the loop."""
        self._letting_in = False
        if self.waiting:  # Behind them; perhaps they have appended nothing, whose end would wake anybody.
            self.made_room()

    def made_room(self) -> None:
        """Something was confirmed while someone waits. They are woken at half the limit: room for many, not for one."""
        if self._budget.pending_bytes <= self._budget.pending_limit // 2:
            self._wake()

    def _wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
                self.woken += 1

    # The timer.

    def _tick(self) -> None:
        now = self._clock.monotonic()
        for laggard in self._budget.look(now):
            log.warning(
                "bookie.lagging",
                bookie=laggard.bookie,
                waiting_s=round(laggard.waiting_s, 3),
                lagging_bytes=laggard.lagging_bytes,
            )
            self._health.failed(laggard.bookie, now)
            for writer in list(self._writers.values()):
                writer.drop(laggard.bookie)
            # What was still waiting for the socket is given up, and its memory with it.
            self._bookies.reset(laggard.bookie)
        self._look_for_slow(now)
        told_all = self._tell_lacs(now)
        if self._budget.idle and told_all:
            self.running = False
            self._slow.start_anew()
        else:
            self._timer = asyncio.get_running_loop().call_later(self._tick_s, self._tick)

    def _look_for_slow(self, now: float) -> None:
        if now - self._looked_at > 2 * self._tick_s:
            self._slow.start_anew()  # This process stood still.
        self._looked_at = now
        counts = ((lag.bookie, lag.sent, lag.answered) for lag in self._budget.bookies())
        for slow in self._slow.look(counts, now):
            log.warning(
                "bookie.slow",
                bookie=slow.bookie,
                latency_ms=round(slow.latency_s * 1000),
                peers_ms=round(slow.peers_s * 1000, 1),
            )
            self._health.failed(slow.bookie, now)
            for writer in list(self._writers.values()):
                writer.drop(slow.bookie)

    def _tell_lacs(self, now: float) -> bool:
        """Have bookies told of LACs that no later entry has brought them. Whether none is left to be told."""
        if not self._settings.explicit_lac_s:
            return True
        untold = [writer for writer in self._writers.values() if writer.lac_untold]
        if now >= self._tell_lac_at:
            self._tell_lac_at = now + self._settings.explicit_lac_s
            for writer in untold:
                writer.tell_lac()
        return not untold
