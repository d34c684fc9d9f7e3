"""Which processes to start and stop, and when. Pure: `supervisor.py` does what it says.

There is one process per component. What should be (`want`) and what happened (`ready`, `exited`, ...) come in, with
the time; actions come out. A decision only ever depends on the two as they are now, so that events may come late,
twice or not at all: an event of a process that is no longer the current one is ignored.

A process that ends unasked is started again after a delay that doubles with each failure, up to a limit; there is no
last attempt. Its failure stays visible until it has run well for a while: a restart does not hide it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Wanted:
    """What should run for a component. Another `revision` or other `instances` need another process."""

    revision: int
    instances: tuple[int, ...]
    """None of them: stopped."""
    start_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Start:
    key: str
    launch: int
    wanted: Wanted


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the process to finish."""

    key: str
    launch: int


@dataclass(frozen=True, slots=True)
class Kill:
    key: str
    launch: int


@dataclass(frozen=True, slots=True)
class Gone:
    """The component is no longer wanted and nothing of it runs."""

    key: str


Action: TypeAlias = Start | Terminate | Kill | Gone


class Phase(StrEnum):
    STOPPED = "STOPPED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    BACKING_OFF = "BACKING_OFF"
    FAILED = "FAILED"
    """It failed again and again, or needs another configuration."""
    ENDED = "ENDED"
    """Its input has ended and all of it is processed."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How a component fares."""

    phase: Phase
    restarts: int
    """How often it was started again after a failure."""
    failure: str = ""
    """Why it last failed; empty once it has run well for a while."""
    next_start_at: float | None = None


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    backoff_first_s: float = 0.5
    backoff_longest_s: float = 60.0
    stable_after_s: float = 30.0
    """A process that ran so long has worked: the next failure is a first one again."""
    failed_after: int = 4
    """So many failures in a row are shown as FAILED; attempts go on."""
    stop_grace_s: float = 10.0
    """Between asking a process to finish and killing it."""

    def backoff_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        return min(self.backoff_longest_s, self.backoff_first_s * 2.0 ** min(failures - 1, 30))


@dataclass(slots=True)
class _Process:
    launch: int
    wanted: Wanted
    ready_by: float
    ready_at: float | None = None
    kill_at: float | None = None
    """Set once it was asked to finish."""
    killed: bool = False
    failure: str | None = None
    """Why we stop it, where that is its own fault."""


@dataclass(slots=True)
class _Component:
    wanted: Wanted | None = None
    process: _Process | None = None
    restart_asked: bool = False
    ended: bool = False
    hopeless: bool = False
    """It said that it cannot work as it is configured."""
    failures: int = 0
    restarts: int = 0
    failure: str = ""
    not_before: float = 0.0


class Schedule:
    """All components of this worker."""

    def __init__(self, rules: SchedulingRules | None = None) -> None:
        self._rules = rules or SchedulingRules()
        self._components: dict[str, _Component] = {}
        self._next_launch = 0

    # --- What should be -------------------------------------------------------------------------------------------

    def want(self, key: str, wanted: Wanted, now: float, *, ended: bool = False) -> list[Action]:
        """From now on `wanted` should run, unless it has `ended`. A change forgives earlier failures."""
        component = self._components.setdefault(key, _Component())
        if component.wanted != wanted or component.ended != ended:
            begun_again = component.ended and not ended
            component.wanted = wanted
            self._forgive(component, now)
            component.ended = ended
            if begun_again:
                self._ask_for_restart(component)
        return self._decide(key, now)

    def restart(self, key: str, now: float) -> list[Action]:
        """Replace the process, or start one at once where a failed one waits for its turn."""
        component = self._components[key]
        self._forgive(component, now)
        self._ask_for_restart(component)
        return self._decide(key, now)

    def withdraw(self, key: str, now: float) -> list[Action]:
        """Nothing should run any more. `Gone` follows when nothing does."""
        component = self._components.setdefault(key, _Component())
        component.wanted = None
        return self._decide(key, now)

    # --- What happened --------------------------------------------------------------------------------------------

    def ready(self, key: str, launch: int, now: float) -> list[Action]:
        """The process says that its instances run."""
        process = self._process(key, launch)
        if process is not None and process.ready_at is None:
            process.ready_at = now
        return self._decide(key, now)

    def input_ended(self, key: str, launch: int, now: float) -> list[Action]:
        """The process says that it has done all there will ever be to do. It may stay or leave."""
        if self._process(key, launch) is not None:
            self._components[key].ended = True
        return self._decide(key, now)

    def unresponsive(self, key: str, launch: int, reason: str, now: float) -> list[Action]:
        """The process lives but does not answer: it is replaced."""
        process = self._process(key, launch)
        if process is not None and process.kill_at is None:
            process.failure = reason
        return self._decide(key, now)

    def exited(
        self, key: str, launch: int, reason: str, now: float, *, hopeless: bool = False
    ) -> list[Action]:
        """The process is gone, or could not be started. `hopeless`: trying again as it is configured is no use."""
        process = self._process(key, launch)
        if process is None:
            return []
        component = self._components[key]
        component.process = None
        asked_for = process.kill_at is not None and process.failure is None
        if not asked_for and not component.ended:
            ran_well = process.ready_at is not None and now - process.ready_at >= self._rules.stable_after_s
            component.failures = 1 if ran_well else component.failures + 1
            component.failure = process.failure or reason
            component.hopeless = hopeless
            component.not_before = now + self._rules.backoff_s(component.failures)
        return self._decide(key, now)

    def due(self, now: float) -> list[Action]:
        """What the passing of time asks for."""
        return [action for key in list(self._components) for action in self._decide(key, now)]

    # --- What is --------------------------------------------------------------------------------------------------

    def next_due(self) -> float | None:
        """When `due` next has something to say; None while only events can change anything."""
        times = (self._due_at(component) for component in self._components.values())
        return min((at for at in times if at is not None), default=None)

    def condition(self, key: str, now: float) -> Condition:
        component = self._components.get(key)
        if component is None:
            return Condition(Phase.STOPPED, 0)
        phase = self._phase(component)
        ready_at = component.process.ready_at if component.process else None
        forgotten = ready_at is not None and now - ready_at >= self._rules.stable_after_s
        waiting = (
            phase in (Phase.BACKING_OFF, Phase.FAILED)
            and not component.hopeless
            and component.process is None
        )
        return Condition(
            phase,
            component.restarts,
            failure="" if forgotten else component.failure,
            next_start_at=component.not_before if waiting else None,
        )

    def running(self, key: str) -> int | None:
        """The launch of the component's process if it is ready for work."""
        component = self._components.get(key)
        process = component.process if component else None
        if process is None or process.ready_at is None or process.kill_at is not None:
            return None
        return process.launch

    def components(self) -> list[str]:
        return list(self._components)

    # --- The decision ---------------------------------------------------------------------------------------------

    def _decide(self, key: str, now: float) -> list[Action]:
        component = self._components.get(key)
        if component is None:
            return []
        process = component.process
        if process is not None:
            return self._decide_on_process(key, component, process, now)
        if component.wanted is None:
            del self._components[key]
            return [Gone(key)]
        if self._should_run(component) and now >= component.not_before:
            return [self._start(key, component, component.wanted, now)]
        return []

    def _decide_on_process(
        self, key: str, component: _Component, process: _Process, now: float
    ) -> list[Action]:
        if process.kill_at is not None:
            if now >= process.kill_at and not process.killed:
                process.killed = True
                return [Kill(key, process.launch)]
            return []
        if process.ready_at is None and now >= process.ready_by and process.failure is None:
            process.failure = f"it was not ready {process.wanted.start_timeout_s:g} s after its start"
        outdated = component.wanted != process.wanted or component.restart_asked
        if outdated or process.failure is not None:
            component.restart_asked = False
            process.kill_at = now + self._rules.stop_grace_s
            return [Terminate(key, process.launch)]
        return []

    def _start(self, key: str, component: _Component, wanted: Wanted, now: float) -> Start:
        self._next_launch += 1
        component.restarts += component.failures > 0
        component.process = _Process(self._next_launch, wanted, ready_by=now + wanted.start_timeout_s)
        return Start(key, self._next_launch, wanted)

    def _should_run(self, component: _Component) -> bool:
        wanted = component.wanted
        return (
            wanted is not None and bool(wanted.instances) and not component.ended and not component.hopeless
        )

    def _due_at(self, component: _Component) -> float | None:
        process = component.process
        if process is None:
            return component.not_before if self._should_run(component) else None
        if process.kill_at is not None:
            return None if process.killed else process.kill_at
        return process.ready_by if process.ready_at is None else None

    def _phase(self, component: _Component) -> Phase:
        process = component.process
        if process is not None and process.kill_at is not None:
            return Phase.STOPPING
        if component.ended:
            return Phase.ENDED
        if process is not None and process.ready_at is not None:
            return Phase.RUNNING
        if component.wanted is None or not component.wanted.instances:
            return Phase.STOPPED
        if component.hopeless or component.failures >= self._rules.failed_after:
            return Phase.FAILED
        return Phase.BACKING_OFF if process is None else Phase.STARTING

    def _process(self, key: str, launch: int) -> _Process | None:
        component = self._components.get(key)
        process = component.process if component else None
        return process if process is not None and process.launch == launch else None

    @staticmethod
    def _ask_for_restart(component: _Component) -> None:
        component.restart_asked = component.process is not None and component.process.kill_at is None

    @staticmethod
    def _forgive(component: _Component, now: float) -> None:
        component.ended = component.hopeless = False
        component.failures = 0
        component.failure = ""
        component.not_before = now
