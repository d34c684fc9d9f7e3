"""Keeps a user process running: starts it, watches it, starts it again after a while when it is gone."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.functions.process.job import Job
from magnetar.instance.errors import UserCodeRefused, UserProcessLost
from magnetar.instance.statistics import Statistics
from magnetar.instance.user_process import UserProcess
from magnetar.instance.watchdog import Watchdog

BACKOFF_S = 0.2
BACKOFF_MAX_S = 60.0
CALM_S = 30.0
"""A process that has lived this long has recovered: the next loss begins with the shortest wait again."""
STOP_GRACE_S = 5.0

log = get_logger("magnetar.instance.keeper")


class ProcessOwner(Protocol):
    """Whose process it is."""

    def process_ready(self) -> None:
        """There is a new process, with nothing in hand."""

    def process_frame(self, kind: int, body: memoryview) -> None: ...

    def process_lost(self, reason: str) -> None:
        """It is gone. Frames it sent before came before."""

    def session_failed(self, error: Exception) -> None:
        """What it sent could not be dealt with: nothing can go on until everything is opened anew."""


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """How to start it."""

    job: Job
    last_words: Path
    runtime_flags: str = ""
    hang_limit_s: float = 300.0


class ProcessKeeper:
    """`run` for as long as the instance lives."""

    def __init__(self, plan: ProcessPlan, owner: ProcessOwner, statistics: Statistics, clock: Clock) -> None:
        self._plan = plan
        self._owner = owner
        self._statistics = statistics
        self._clock = clock
        self._process: UserProcess | None = None
        self._lost: asyncio.Future[str] | None = None
        self._hanging: asyncio.TimerHandle | None = None
        self._killing: asyncio.Task[None] | None = None
        self.watchdog = Watchdog(plan.hang_limit_s)
        self.failure = ""
        """Why there is no process, or why the last one ended not long ago."""

    @property
    def process(self) -> UserProcess | None:
        """The process, once it is ready; None while there is none."""
        return self._process

    async def run(self) -> None:
        """Keep it running until cancelled.

        Raises:
            UserCodeRefused: starting it again would not help.
        """
        failures = 0
        while True:
            process = UserProcess(
                self._plan.job,
                last_words=self._plan.last_words,
                runtime_flags=self._plan.runtime_flags,
                on_frame=self._owner.process_frame,
                on_lost=self._on_lost,
                on_broken=self._owner.session_failed,
            )
            self._lost = asyncio.get_running_loop().create_future()
            began = self._clock.monotonic()
            try:
                await process.start()
                self._process = process
                self._owner.process_ready()
                calm = asyncio.get_running_loop().call_later(CALM_S, self._recovered)
                try:
                    reason = await self._lost
                finally:
                    calm.cancel()
                self._owner.process_lost(reason)
            except UserCodeRefused as refusal:
                self.failure = refusal.reason
                if refusal.permanent:
                    raise
                reason = refusal.reason
            except UserProcessLost as error:
                reason = str(error)
            finally:
                self._process = None
                self._forget_hang()
                await process.stop(0.0 if self._lost.done() else STOP_GRACE_S)
            failures = 1 if self._clock.monotonic() - began > CALM_S else failures + 1
            self.failure = reason
            self._statistics.restarts += 1
            self._statistics.system_failed(reason, self._clock.time_ms())
            wait_s = min(BACKOFF_S * 2 ** min(failures - 1, 20), BACKOFF_MAX_S)
            log.warning("process.lost", function=self._plan.job.fqfn, reason=reason, again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    def look_after(self) -> None:
        """Work was given or got done: see to it that a hang is noticed."""
        if self._hanging is None:
            wait_s = self.watchdog.next_look(self._clock.monotonic())
            if wait_s is not None:
                self._hanging = asyncio.get_running_loop().call_later(wait_s, self._look)

    def _look(self) -> None:
        self._hanging = None
        still = self.watchdog.hung_for(self._clock.monotonic())
        if still is None or self._process is None:
            self.look_after()
            return
        reason = f"the user process was killed: it had not moved for {still:.1f} s, at:"
        self._killing = asyncio.get_running_loop().create_task(
            self._process.kill(reason), name="kill what hangs"
        )

    def _on_lost(self, reason: str) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)

    def _recovered(self) -> None:
        self.failure = ""

    def _forget_hang(self) -> None:
        self.watchdog.idle()
        if self._hanging is not None:
            self._hanging.cancel()
            self._hanging = None


def hang_limit_s(options: object) -> float | None:
    """`hangTimeoutMs` of the runtime options, in seconds; None if it is not given."""
    value = options.get("hangTimeoutMs") if isinstance(options, dict) else None
    return float(value) / 1000 if isinstance(value, (int, float)) and not isinstance(value, bool) else None
