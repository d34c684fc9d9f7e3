"""How fast messages may go out. Pure: the time comes in from outside.

A read asks every limit that concerns it (its subscription's, its topic's, its group's, the broker's) for the smallest
allowance, and tells all of them what went out. Limits that are shared may go below zero; the debt is waited out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.broker.rates.rate import Rate, TwinBucket
from magnetar.policies.rates import DispatchRate


class Allowance(NamedTuple):
    """What may go out now."""

    messages: int
    size: int
    wait_s: float
    """Above 0: nothing before so long."""


UNLIMITED = 1 << 62


class DispatchLimit(TwinBucket):
    """One limit. It may follow what comes in: then the set rate is how much faster than that it may be."""

    __slots__ = ("_said",)

    def __init__(self, said: DispatchRate, now: float) -> None:
        self._said = said
        super().__init__(rate_of(said), now)

    def say(self, said: DispatchRate, now: float) -> None:
        """Go on at another rate."""
        self._said = said
        self.set_rate(rate_of(said), now)

    @property
    def relative(self) -> bool:
        """Whether it wants to be told how fast messages come in."""
        return self._said.relative_to_publish_rate

    def came_in(self, messages_per_s: float, bytes_per_s: float, now: float) -> None:
        """How fast messages came in lately."""
        if self.relative:
            period_s = self.rate.period_s
            base = rate_of(self._said)
            messages = base.messages + messages_per_s * period_s if base.messages else 0
            size = base.size + bytes_per_s * period_s if base.size else 0
            self.set_rate(Rate(messages, size, period_s), now)


def rate_of(said: DispatchRate) -> Rate:
    """As it is said in policies: 0 or less is no limit."""
    return Rate(
        max(0, said.dispatch_throttling_rate_in_msg),
        max(0, said.dispatch_throttling_rate_in_byte),
        max(1, said.rate_period_in_second),
    )


def allowance(limits: Sequence[TwinBucket], now: float) -> Allowance:
    """The smallest of what the limits allow."""
    messages = size = UNLIMITED
    wait_s = 0.0
    for limit in limits:
        wait_s = max(wait_s, limit.wait_s(now))
        messages = int(min(messages, max(1.0, limit.messages_left(now))))
        size = int(min(size, max(1.0, limit.bytes_left(now))))
    return Allowance(messages, size, wait_s)
