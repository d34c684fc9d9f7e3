"""A token bucket. Pure: the time comes in from outside.

Tokens may go below zero: what was taken is taken, and the debt is waited out, so that the rate holds over any stretch
of time however large the pieces are that are taken.
"""

from __future__ import annotations

from typing import Final

_SHORTEST_WAIT_S: Final = 0.001
"""A bucket that is just empty is looked at again after so long, not at once for ever."""


class TokenBucket:
    """Fills at `rate` tokens a second up to `burst`, and begins full."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        assert rate > 0
        assert burst > 0
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = now

    def set_rate(self, rate: float, burst: float, now: float) -> None:
        """Go on at another rate. What is owed stays owed."""
        assert rate > 0
        assert burst > 0
        self._fill(now)
        self._rate = rate
        self._burst = burst
        self._tokens = min(self._tokens, burst)

    def take(self, tokens: float, now: float) -> None:
        """Take tokens, whether they are there or not."""
        self._fill(now)
        self._tokens -= tokens

    def available(self, now: float) -> float:
        """What can be taken now; 0 or less: nothing."""
        self._fill(now)
        return self._tokens

    def wait_s(self, now: float) -> float:
        """How long until there is something to take; 0: there is."""
        self._fill(now)
        return 0.0 if self._tokens > 0 else max(_SHORTEST_WAIT_S, -self._tokens / self._rate)

    def _fill(self, now: float) -> None:
        if now > self._at:  # A clock that stands or goes back gives nothing.
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
            self._at = now
