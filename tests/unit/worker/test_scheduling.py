"""Which processes are started and stopped, and when; single stories first, then many seeded worlds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

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

RULES = SchedulingRules(
    backoff_first_s=1, backoff_longest_s=8, stable_after_s=30, failed_after=3, stop_grace_s=10
)
ONE = Wanted(revision=0, instances=(0,), start_timeout_s=20)
STOPPED = Wanted(revision=0, instances=())


def launch_of(actions: list[Action]) -> int:
    (action,) = actions
    assert isinstance(action, Start)
    return action.launch


def test_a_component_is_started_and_its_removal_is_told_when_nothing_runs() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    assert schedule.want("f", ONE, 0) == [], "it is being started already"
    assert schedule.condition("f", 0) == Condition(Phase.STARTING, 0)
    assert schedule.ready("f", launch, 1) == []
    assert schedule.condition("f", 1) == Condition(Phase.RUNNING, 0)
    assert schedule.withdraw("f", 2) == [Terminate("f", launch)]
    assert schedule.exited("f", launch, "it exited with code 0", 3) == [Gone("f")]
    assert schedule.components() == []


def test_another_revision_needs_another_process() -> None:
    schedule = Schedule(RULES)
    first = launch_of(schedule.want("f", ONE, 0))
    schedule.ready("f", first, 1)
    changed = Wanted(revision=1, instances=(0,))
    assert schedule.want("f", changed, 2) == [Terminate("f", first)]
    assert schedule.exited("f", first, "code 0", 3) == [Start("f", first + 1, changed)]
    assert schedule.condition("f", 3).restarts == 0, "nothing failed"


def test_a_process_that_does_not_finish_is_killed_once() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    schedule.ready("f", launch, 1)
    assert schedule.want("f", STOPPED, 2) == [Terminate("f", launch)]
    assert schedule.next_due() == 12
    assert schedule.due(11.9) == []
    assert schedule.due(12) == [Kill("f", launch)]
    assert schedule.due(100) == []
    assert schedule.exited("f", launch, "killed", 101) == []
    assert schedule.condition("f", 101) == Condition(Phase.STOPPED, 0)


def test_failures_are_backed_off_from_and_never_hidden() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    now = 0.0
    delays = []
    for failure in range(1, 7):
        assert schedule.exited("f", launch, f"crash {failure}", now) == []
        condition = schedule.condition("f", now)
        assert condition.failure == f"crash {failure}"
        assert condition.phase is (Phase.FAILED if failure >= 3 else Phase.BACKING_OFF)
        assert condition.next_start_at is not None
        delays.append(condition.next_start_at - now)
        now = condition.next_start_at
        launch = launch_of(schedule.due(now))
    assert delays == [1, 2, 4, 8, 8, 8]
    assert schedule.condition("f", now).phase is Phase.FAILED, "being started again is no success"
    schedule.ready("f", launch, now)
    assert schedule.condition("f", now) == Condition(Phase.RUNNING, 6, failure="crash 6")
    assert schedule.condition("f", now + 30) == Condition(Phase.RUNNING, 6), "it has run well for a while"
    schedule.exited("f", launch, "crash 7", now + 31)
    assert schedule.condition("f", now + 31).next_start_at == now + 32, "a first failure again"


def test_one_that_cannot_work_as_it_is_configured_waits_for_a_change() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    schedule.exited("f", launch, "no Java", 1, hopeless=True)
    assert schedule.condition("f", 1) == Condition(Phase.FAILED, 0, failure="no Java")
    assert schedule.next_due() is None
    assert schedule.due(1000) == []
    launch_of(schedule.want("f", Wanted(1, (0,)), 1000))


def test_one_that_never_gets_ready_is_replaced_with_that_reason() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    assert schedule.next_due() == 20
    assert schedule.due(20) == [Terminate("f", launch)]
    assert schedule.exited("f", launch, "code 0", 21) == []
    assert schedule.condition("f", 21).failure == "it was not ready 20 s after its start"
    launch_of(schedule.due(22))


def test_one_that_does_not_answer_is_replaced_and_killed_if_need_be() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    schedule.ready("f", launch, 1)
    assert schedule.unresponsive("f", launch, "silent", 50) == [Terminate("f", launch)]
    assert schedule.due(60) == [Kill("f", launch)]
    schedule.exited("f", launch, "killed by SIGKILL", 60)
    assert schedule.condition("f", 60).failure == "silent"


def test_what_has_ended_is_not_started_again_until_it_is_asked_for() -> None:
    schedule = Schedule(RULES)
    launch = launch_of(schedule.want("f", ONE, 0))
    schedule.ready("f", launch, 1)
    assert schedule.input_ended("f", launch, 2) == [], "it may stay, and answer questions"
    assert schedule.want("f", ONE, 2, ended=True) == []
    assert schedule.exited("f", launch, "code 0", 3) == []
    assert schedule.condition("f", 3) == Condition(Phase.ENDED, 0)
    assert schedule.next_due() is None
    again = launch_of(schedule.want("f", ONE, 4))
    assert schedule.want("f", ONE, 5, ended=True) == []
    assert schedule.want("f", ONE, 6) == [Terminate("f", again)], "begun again although it idles"


def test_a_restart_replaces_the_process_or_cuts_the_wait_short() -> None:
    schedule = Schedule(RULES)
    first = launch_of(schedule.want("f", ONE, 0))
    assert schedule.restart("f", 1) == [Terminate("f", first)]
    assert schedule.restart("f", 1) == []
    second = launch_of(schedule.exited("f", first, "code 0", 2))
    schedule.ready("f", second, 3)
    assert schedule.due(4) == []
    schedule.exited("f", second, "crash", 5)
    third = launch_of(schedule.restart("f", 5))
    assert schedule.condition("f", 5) == Condition(Phase.STARTING, 0)
    assert schedule.exited("f", second, "told twice", 6) == [], (
        "of a process that is no longer the current one"
    )
    schedule.ready("f", third, 7)
    assert schedule.condition("f", 7).phase is Phase.RUNNING


@dataclass
class Machine:
    """Processes that start, crash, hang and ignore signals as a seed has it."""

    seed: int
    random: random.Random = field(init=False)
    schedule: Schedule = field(default_factory=lambda: Schedule(RULES))
    now: float = 0.0
    running: dict[str, tuple[int, Wanted]] = field(default_factory=dict)
    terminated_at: dict[int, float] = field(default_factory=dict)
    wanted: dict[str, Wanted] = field(default_factory=dict)
    starts: list[tuple[str, float]] = field(default_factory=list)
    sturdy: bool = False

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(key, launch, wanted):
                    assert key not in self.running, "two processes of one component"
                    assert wanted == self.wanted[key], "started as it is no longer wanted"
                    self.running[key] = (launch, wanted)
                    self.starts.append((key, self.now))
                case Terminate(key, launch):
                    assert self.running[key][0] == launch
                    self.terminated_at[launch] = self.now
                case Kill(key, launch):
                    assert self.running[key][0] == launch
                    assert self.now >= self.terminated_at[launch] + RULES.stop_grace_s
                    self.exit(key, "killed by SIGKILL")
                case Gone(key):
                    assert key not in self.running
                    assert key not in self.wanted

    def exit(self, key: str, reason: str) -> None:
        launch, _ = self.running.pop(key)
        self.do(self.schedule.exited(key, launch, reason, self.now))

    def step(self) -> None:
        self.now += self.random.expovariate(1)
        self.do(self.schedule.due(self.now))
        key = self.random.choice("abc")
        roll = self.random.random()
        if roll < 0.15:
            instances = self.random.choice([(), (0,), (0, 1)])
            self.wanted[key] = Wanted(self.random.randrange(3), instances, start_timeout_s=20)
            self.do(self.schedule.want(key, self.wanted[key], self.now))
        elif roll < 0.2:
            self.wanted.pop(key, None)
            self.do(self.schedule.withdraw(key, self.now))
        elif roll < 0.25 and key in self.wanted:
            self.do(self.schedule.restart(key, self.now))
        elif key in self.running:
            launch, _ = self.running[key]
            if roll < 0.6:
                self.do(self.schedule.ready(key, launch, self.now))
            elif roll < 0.8 and launch in self.terminated_at:
                self.exit(key, "code 0")
            elif roll < 0.9 and not self.sturdy:
                self.exit(key, "crash")
        else:
            self.do(self.schedule.exited(key, self.random.randrange(50), "an old one", self.now))

    def settle(self) -> None:
        """From here on nothing fails, and whoever is asked to finish does."""
        for _ in range(100):
            for key, (launch, _) in list(self.running.items()):
                if launch in self.terminated_at:
                    self.exit(key, "code 0")
                else:
                    self.do(self.schedule.ready(key, launch, self.now))
            due = self.schedule.next_due()
            if due is None:
                return
            self.now = max(self.now, due)
            self.do(self.schedule.due(self.now))
        raise AssertionError("it never settles")


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happened_what_is_wanted_runs_in_the_end_and_nothing_else(seed: int) -> None:
    machine = Machine(seed)
    for _ in range(200):
        machine.step()
    machine.settle()
    should = {key: wanted for key, wanted in machine.wanted.items() if wanted.instances}
    assert {key: wanted for key, (_, wanted) in machine.running.items()} == should
    for key in should:
        assert machine.schedule.condition(key, machine.now).phase is Phase.RUNNING
    assert set(machine.schedule.components()) == set(machine.wanted)


@pytest.mark.parametrize("seed", range(20))
def test_a_process_that_always_crashes_costs_ever_less(seed: int) -> None:
    machine = Machine(seed)
    machine.wanted["a"] = ONE
    machine.do(machine.schedule.want("a", ONE, 0))
    while machine.now < 1000:
        if "a" in machine.running:
            if machine.random.random() < 0.5:
                machine.do(machine.schedule.ready("a", machine.running["a"][0], machine.now))
            machine.now += machine.random.uniform(0, 2)
            machine.exit("a", "crash")
        due = machine.schedule.next_due()
        assert due is not None
        machine.now = max(machine.now, due)
        machine.do(machine.schedule.due(machine.now))
    assert 1000 / (RULES.backoff_longest_s + 2) <= len(machine.starts) <= 1000 / RULES.backoff_longest_s + 5
    assert machine.schedule.condition("a", machine.now).phase is Phase.FAILED
