"""Time, as the rooms above see it: handed in, so that a simulation can own it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def monotonic(self) -> float:
        """Seconds that never run backwards: for leases, time-outs and rates."""
        ...

    def time_ms(self) -> int:
        """Wall-clock milliseconds since 1970: for timestamps that are stored or sent."""
        ...


class SystemClock:
    """The machine's own clock."""

    __slots__ = ()

    def monotonic(self) -> float:
        return time.monotonic()

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000
