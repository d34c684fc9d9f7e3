"""Which chores are due. Pure: the time comes in from outside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto


class Chore(Enum):
    """One thing that is done for every topic, each at an interval of its own."""

    EXPIRY = auto()
    """Messages older than their time to live are acknowledged."""
    QUOTAS = auto()
    """Backlogs are measured against their quotas."""
    INACTIVITY = auto()
    """Topics that nobody uses are deleted."""
    SUBSCRIPTIONS = auto()
    """Subscriptions that nobody uses are deleted."""
    COMPACTION = auto()
    """Topics that have grown enough since are compacted."""


Chores = Collection[Chore]


class Rota:
    """When each chore comes next. A chore that came late is not made up for."""

    def __init__(self, intervals_s: Mapping[Chore, float], now: float) -> None:
        self._intervals_s = dict(intervals_s)
        self._due_at = {chore: now + interval for chore, interval in intervals_s.items()}

    @property
    def next_at(self) -> float:
        """When something is due next."""
        return min(self._due_at.values())

    def take(self, now: float) -> list[Chore]:
        """The chores that are due, in the order of their kinds; each comes again an interval from now."""
        due = [chore for chore in Chore if self._due_at.get(chore, now + 1) <= now]
        for chore in due:
            self._due_at[chore] = now + self._intervals_s[chore]
        return due
