"""Messages and bytes a second, as one thing to keep to. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from magnetar.broker.rates.token_bucket import TokenBucket


class Rate(NamedTuple):
    """What may pass in `period_s` seconds; 0: as much as wants to."""

    messages: float = 0
    size: float = 0
    period_s: float = 1

    @property
    def limited(self) -> bool:
        return self.messages > 0 or self.size > 0


class TwinBucket:
    """One bucket for messages, one for bytes; either may be missing."""

    __slots__ = ("_bytes", "_messages", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = Rate()
        self._messages: TokenBucket | None = None
        self._bytes: TokenBucket | None = None
        self.set_rate(rate, now)

    def set_rate(self, rate: Rate, now: float) -> None:
        """Go on at another rate. What is owed stays owed, where there is still a limit."""
        if rate != self.rate:
            self.rate = rate
            self._messages = _changed(self._messages, rate.messages, rate.period_s, now)
            self._bytes = _changed(self._bytes, rate.size, rate.period_s, now)

    def take(self, messages: int, size: int, now: float) -> None:
        """Something has passed."""
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size, now)

    def messages_left(self, now: float) -> float:
        return math.inf if self._messages is None else self._messages.available(now)

    def bytes_left(self, now: float) -> float:
        return math.inf if self._bytes is None else self._bytes.available(now)

    def wait_s(self, now: float) -> float:
        """How long until something may pass; 0: now."""
        wait = 0.0 if self._messages is None else self._messages.wait_s(now)
        return wait if self._bytes is None else max(wait, self._bytes.wait_s(now))


def _changed(bucket: TokenBucket | None, amount: float, period_s: float, now: float) -> TokenBucket | None:
    if amount <= 0:
        return None
    if bucket is None:
        return TokenBucket(amount / period_s, amount, now)
    bucket.set_rate(amount / period_s, amount, now)
    return bucket
