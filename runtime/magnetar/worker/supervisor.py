"""Does what the schedule decides, and tells it what happened. All on one loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.worker.launching import Child, ExitReport, Launcher, LaunchPlan
from magnetar.worker.scheduling import (
    Action,
    Condition,
    Gone,
    Kill,
    Phase,
    Schedule,
    SchedulingRules,
    Start,
    Terminate,
    Wanted,
)

log = get_logger("magnetar.worker.supervisor")


@dataclass(slots=True)
class _Launched:
    launch: int
    child: Child
    control: Mapping[int, int]
    plan: LaunchPlan


class Supervisor:
    """Keeps the processes of components as they are wanted.

    Args:
        on_ended: told the key of a component whose input has ended.
    """

    def __init__(
        self,
        launcher: Launcher,
        rules: SchedulingRules,
        clock: Clock,
        on_ended: Callable[[str], None],
    ) -> None:
        self._launcher = launcher
        self._clock = clock
        self._on_ended = on_ended
        self._schedule = Schedule(rules)
        self._plans: dict[str, Callable[[Wanted], LaunchPlan]] = {}
        self._launched: dict[str, _Launched] = {}
        self._changed: dict[str, asyncio.Event] = {}
        self._timer: asyncio.TimerHandle | None = None

    def want(
        self, key: str, wanted: Wanted, plan: Callable[[Wanted], LaunchPlan], *, ended: bool = False
    ) -> None:
        """From now on `wanted` should run, in processes started by `plan`."""
        self._plans[key] = plan
        self._do(self._schedule.want(key, wanted, self._clock.monotonic(), ended=ended))

    def restart(self, key: str) -> None:
        self._do(self._schedule.restart(key, self._clock.monotonic()))

    def withdraw(self, key: str) -> None:
        self._do(self._schedule.withdraw(key, self._clock.monotonic()))

    def unresponsive(self, key: str, launch: int, reason: str) -> None:
        log.warning("process.unresponsive", component=key, reason=reason)
        self._do(self._schedule.unresponsive(key, launch, reason, self._clock.monotonic()))

    def condition(self, key: str) -> Condition:
        return self._schedule.condition(key, self._clock.monotonic())

    def running(self) -> Iterable[tuple[str, int]]:
        """Key and launch of each process that is ready."""
        for key in self._schedule.components():
            launch = self._schedule.running(key)
            if launch is not None:
                yield key, launch

    def control_ports(self, key: str) -> Mapping[int, int]:
        """Where the running instances of a component answer; empty while none does."""
        launched = self._launched.get(key)
        if launched is None or self._schedule.running(key) != launched.launch:
            return {}
        return launched.control

    def pid(self, key: str) -> int | None:
        launched = self._launched.get(key)
        return launched.child.pid if launched else None

    def plans(self) -> list[LaunchPlan]:
        """Those of the processes there are."""
        return [launched.plan for launched in self._launched.values()]

    async def until(self, key: str, condition: Callable[[Condition], bool], timeout_s: float) -> bool:
        """Wait for a component to be in some condition. Whether it came to be in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition(self.condition(key)):
                    await self._changed.setdefault(key, asyncio.Event()).wait()
        except TimeoutError:
            return False
        return True

    async def until_gone(self, key: str, timeout_s: float) -> bool:
        """Wait until nothing of a withdrawn component runs. Whether that came to be in time."""
        return await self.until(key, lambda _: key not in self._schedule.components(), timeout_s)

    def kill_all(self) -> None:
        """End everything at once, and want nothing any more."""
        for key in self._schedule.components():
            self.withdraw(key)
        for launched in list(self._launched.values()):
            launched.child.kill()

    def restart_failed(self) -> None:
        """Start at once what waits for its next attempt."""
        for key in self._schedule.components():
            if self.condition(key).phase in (Phase.BACKING_OFF, Phase.FAILED):
                self.restart(key)

    async def stop(self) -> None:
        """Stop everything. The schedule sees to it that nothing outlasts its grace."""
        keys = self._schedule.components()
        for key in keys:
            self.withdraw(key)
        for key in keys:
            while key in self._schedule.components():
                await self._changed.setdefault(key, asyncio.Event()).wait()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(key, launch, wanted):
                    self._start(key, launch, wanted)
                case Terminate(key, launch):
                    self._child(key, launch).terminate()
                case Kill(key, launch):
                    log.warning("process.killed", component=key, reason="it did not finish in time")
                    self._child(key, launch).kill()
                case Gone(key):
                    self._plans.pop(key, None)
        self._wake_waiters()
        self._set_timer()

    def _start(self, key: str, launch: int, wanted: Wanted) -> None:
        plan = self._plans[key](wanted)
        child = self._launcher.launch(plan, _Events(self, key, launch))
        self._launched[key] = _Launched(launch, child, {}, plan)

    def _child(self, key: str, launch: int) -> Child:
        launched = self._launched[key]
        assert launched.launch == launch
        return launched.child

    def _wake_waiters(self) -> None:
        for event in self._changed.values():
            event.set()
        self._changed.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._schedule.next_due()
        if due is not None:
            delay = max(0.0, due - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._do(self._schedule.due(self._clock.monotonic()))

    # --- Told by _Events ------------------------------------------------------------------------------------------

    def process_ready(self, key: str, launch: int, control: Mapping[int, int]) -> None:
        launched = self._launched.get(key)
        if launched is not None and launched.launch == launch:
            launched.control = control
        log.info("process.ready", component=key)
        self._do(self._schedule.ready(key, launch, self._clock.monotonic()))

    def process_input_ended(self, key: str, launch: int) -> None:
        log.info("component.ended", component=key)
        self._do(self._schedule.input_ended(key, launch, self._clock.monotonic()))
        self._on_ended(key)

    def process_exited(self, key: str, launch: int, report: ExitReport) -> None:
        launched = self._launched.get(key)
        if launched is not None and launched.launch == launch:
            del self._launched[key]
        self._do(
            self._schedule.exited(
                key, launch, report.reason, self._clock.monotonic(), hopeless=report.hopeless
            )
        )
        condition = self.condition(key)
        if condition.failure:
            log.warning(
                "component.failed",
                component=key,
                reason=condition.failure,
                restarts=condition.restarts,
                phase=condition.phase.value,
            )


class _Events:
    """Events of one launch."""

    __slots__ = ("_key", "_launch", "_supervisor")

    def __init__(self, supervisor: Supervisor, key: str, launch: int) -> None:
        self._supervisor = supervisor
        self._key = key
        self._launch = launch

    def ready(self, control: Mapping[int, int]) -> None:
        self._supervisor.process_ready(self._key, self._launch, control)

    def input_ended(self) -> None:
        self._supervisor.process_input_ended(self._key, self._launch)

    def exited(self, report: ExitReport) -> None:
        self._supervisor.process_exited(self._key, self._launch, report)
