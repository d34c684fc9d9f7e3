"""How long to wait before trying again. Pure: chance is handed in."""

from __future__ import annotations

from random import Random


class Backoff:
    """Twice as long after each failure, up to a limit; shortened by chance so that clients spread out.

    The first attempt after a success comes at once.
    """

    __slots__ = ("_initial", "_maximum", "_next", "_random")

    def __init__(self, random: Random, *, initial_s: float = 0.1, maximum_s: float = 30.0) -> None:
        self._random = random
        self._initial = initial_s
        self._maximum = maximum_s
        self._next = 0.0

    def reset(self) -> None:
        """Something worked."""
        self._next = 0.0

    def next_delay(self) -> float:
        """Seconds to wait before the next attempt."""
        delay = self._next
        self._next = min(self._maximum, max(self._initial, delay * 2))
        return delay * self._random.uniform(0.8, 1.0)
