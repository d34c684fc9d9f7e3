"""How fast messages may come in: connections that bring too much are not read from for a while.

What was read already is stored and receipted all the same, so that no client sees more than a slow broker.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from magnetar.broker.rates.rate import Rate, TwinBucket

if TYPE_CHECKING:
    from magnetar.environment.clock import Clock


class Throttled(Protocol):
    """A connection that can be told to stop reading."""

    def throttle(self, by: object) -> None:
        """Read nothing more, until whoever said so takes it back."""
        ...

    def unthrottle(self, by: object) -> None:
        """`by` has no objections any more."""
        ...


class PublishLimit:
    """One limit, shared by everything it is asked for: a topic, a group of namespaces, or the broker."""

    __slots__ = ("_bucket", "_clock", "_timer", "_waiting", "times_limited")

    def __init__(self, clock: Clock, rate: Rate) -> None:
        self._clock = clock
        self._bucket = TwinBucket(rate, clock.monotonic())
        self._waiting: dict[Throttled, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.times_limited = 0
        """How often a connection was held back for it."""

    @property
    def rate(self) -> Rate:
        return self._bucket.rate

    def set_rate(self, rate: Rate) -> None:
        """Go on at another rate; one without limits lets everybody go on."""
        self._bucket.set_rate(rate, self._clock.monotonic())
        self.look()

    def took(self, connection: Throttled, messages: int, size: int) -> None:
        """A message came by this connection."""
        now = self._clock.monotonic()
        self._bucket.take(messages, size, now)
        wait_s = self._bucket.wait_s(now)
        if wait_s > 0 and connection not in self._waiting:
            self._waiting[connection] = None
            self.times_limited += 1
            connection.throttle(self)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(wait_s, self.look)

    def look(self) -> None:
        """Let connections go on if it is time; else come back when it is."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        wait_s = self._bucket.wait_s(self._clock.monotonic())
        if wait_s > 0:
            self._timer = asyncio.get_running_loop().call_later(wait_s, self.look)
            return
        waiting, self._waiting = list(self._waiting), {}
        for connection in waiting:
            connection.unthrottle(self)

    def close(self) -> None:
        """Limit nothing any more."""
        self.set_rate(Rate())
