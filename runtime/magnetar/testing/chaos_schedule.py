"""Which faults befall a cluster, and when: all drawn from one seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MIN_GAP_S = 1.0
MAX_GAP_S = 8.0
AT_ONCE_MAX = 3
CALM_S = 5.0
"""Undisturbed at the beginning, so that there is something to lose."""


class Kind(StrEnum):
    KILL = "kill"
    STOP = "stop"
    PAUSE = "pause"
    CUT = "cut"
    CUT_ONE_WAY = "cut one way"
    RESET = "reset"
    SLOW = "slow"
    TRICKLE = "trickle"
    FULL_DISK = "full disk"
    ALL_DOWN = "kill all"


_WEIGHTS = {
    Kind.KILL: 6,
    Kind.STOP: 2,
    Kind.PAUSE: 4,
    Kind.CUT: 4,
    Kind.CUT_ONE_WAY: 4,
    Kind.RESET: 3,
    Kind.SLOW: 2,
    Kind.TRICKLE: 1,
    Kind.FULL_DISK: 2,
    Kind.ALL_DOWN: 1,
}
_PAIRWISE = (Kind.CUT, Kind.CUT_ONE_WAY, Kind.RESET)
_LASTS_S = {
    Kind.KILL: (0.0, 12.0),
    Kind.STOP: (0.0, 6.0),
    Kind.PAUSE: (1.0, 25.0),
    Kind.CUT: (2.0, 20.0),
    Kind.CUT_ONE_WAY: (2.0, 20.0),
    Kind.RESET: (0.0, 0.0),
    Kind.SLOW: (5.0, 20.0),
    Kind.TRICKLE: (5.0, 20.0),
    Kind.FULL_DISK: (5.0, 20.0),
    Kind.ALL_DOWN: (1.0, 8.0),
}
_LONG_RUN_S = 600.0
_LASTS_IN_LONG_RUNS_S = {**_LASTS_S, Kind.PAUSE: (1.0, 40.0), Kind.ALL_DOWN: (1.0, 65.0)}
"""A run that has the time also has owners that sleep half a minute, and a whole minute without any ZooKeeper."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, for a while."""

    at_s: float
    lasts_s: float
    kind: Kind
    targets: tuple[str, ...]
    """The process; the two ends of a link; or all of a role."""

    @property
    def until_s(self) -> float:
        return self.at_s + self.lasts_s

    def overlaps(self, other: Fault) -> bool:
        return self.at_s <= other.until_s and other.at_s <= self.until_s

    def __str__(self) -> str:
        return f"{self.at_s:7.1f} s  {self.kind} {' '.join(self.targets)}, for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Targets:
    """What there is to break."""

    keepers: tuple[str, ...]
    bookies: tuple[str, ...]
    brokers: tuple[str, ...]
    others: tuple[str, ...] = ()
    small_disks: tuple[str, ...] = ()

    @property
    def everybody(self) -> tuple[str, ...]:
        return (*self.keepers, *self.bookies, *self.brokers, *self.others)

    def links(self) -> tuple[tuple[str, str], ...]:
        """Who talks to whom: the one that connects first."""
        servers = (*self.bookies, *self.brokers, *self.others)
        found = [(server, keeper) for server in servers for keeper in self.keepers]
        found += [(client, bookie) for client in (*self.brokers, *self.others) for bookie in self.bookies]
        found += [(one, other) for one in self.keepers for other in self.keepers if one < other]
        return tuple(found)


def draw(targets: Targets, seconds: float, seed: int) -> list[Fault]:
    """The faults of a run of `seconds`, by their beginnings. No process and no link has two at a time."""
    dice = random.Random(seed)
    kinds = [kind for kind in _WEIGHTS if targets.small_disks or kind is not Kind.FULL_DISK]
    lasts_s = _LASTS_IN_LONG_RUNS_S if seconds >= _LONG_RUN_S else _LASTS_S
    faults: list[Fault] = []
    now = CALM_S
    while now < seconds:
        kind = dice.choices(kinds, [_WEIGHTS[each] for each in kinds])[0]
        fault = Fault(now, dice.uniform(*lasts_s[kind]), kind, _choose(kind, targets, dice))
        active = [each for each in faults if each.until_s > now]
        taken = {name for each in active for name in each.targets}
        if len(active) < AT_ONCE_MAX and taken.isdisjoint(fault.targets):
            faults.append(fault)
            now += dice.uniform(MIN_GAP_S, MAX_GAP_S)
        else:
            now += MIN_GAP_S
    return faults


def overlapping_share(faults: Sequence[Fault]) -> float:
    """How many of the faults meet another one."""
    met = sum(any(one is not other and one.overlaps(other) for other in faults) for one in faults)
    return met / len(faults) if faults else 0.0


def _choose(kind: Kind, targets: Targets, dice: random.Random) -> tuple[str, ...]:
    if kind in _PAIRWISE:
        one, other = dice.choice(targets.links())
        return (one, other) if dice.random() < 0.5 else (other, one)
    if kind is Kind.FULL_DISK:
        return (dice.choice(targets.small_disks),)
    if kind is Kind.ALL_DOWN:
        return dice.choice((targets.keepers, targets.bookies, targets.brokers))
    if kind in (Kind.SLOW, Kind.TRICKLE):
        return (dice.choice((*targets.bookies, *targets.keepers)),)
    return (dice.choice(targets.everybody),)
