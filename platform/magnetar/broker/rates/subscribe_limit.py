"""How often one consumer may subscribe. Pure: the time comes in from outside.

A consumer is known by its host, its name and its number. Source: Pulsar SubscribeRateLimiter.
"""

from __future__ import annotations

from typing import NamedTuple


class ConsumerIdentity(NamedTuple):
    """Who subscribes again and again."""

    host: str
    name: str
    identifier: int


class SubscribeLimit:
    """Counts within one period at a time; the count of a period that is over is forgotten with its consumers."""

    __slots__ = ("_counts", "_limit", "_period_s", "_since")

    def __init__(self, limit: int, period_s: float, now: float) -> None:
        self._limit = limit
        self._period_s = period_s
        self._since = now
        self._counts: dict[ConsumerIdentity, int] = {}

    def allows(self, consumer: ConsumerIdentity, now: float) -> bool:
        """Whether it may subscribe now; then it counts."""
        if now - self._since >= self._period_s:
            self._since = now
            self._counts.clear()
        count = self._counts.get(consumer, 0)
        if count >= self._limit:
            return False
        self._counts[consumer] = count + 1
        return True
