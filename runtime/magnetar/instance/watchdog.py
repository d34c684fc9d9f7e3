"""Tells a slow user process from one that hangs. Pure: time enters as an argument."""

from __future__ import annotations


class Watchdog:
    """A process that has work and has not moved for `limit_s` hangs. 0: it may take as long as it likes."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._progress: tuple[int, int] | None = None
        self._moved_at = 0.0

    def began(self, serial: int, now: float) -> None:
        """It is at this entry now, or will be at once."""
        self.progressed(serial, 0, now)

    def progressed(self, serial: int, done: int, now: float) -> None:
        """So many messages of the entry are done. The same as last time is no progress."""
        if self._progress != (serial, done):
            self._progress = (serial, done)
            self._moved_at = now

    def idle(self) -> None:
        """It has nothing to do."""
        self._progress = None

    def hung_for(self, now: float) -> float | None:
        """How long it has not moved, if that is too long."""
        if self._progress is None or self._limit_s <= 0:
            return None
        still = now - self._moved_at
        return still if still > self._limit_s else None

    def next_look(self, now: float) -> float | None:
        """In how many seconds to ask again; None: not before it has work."""
        if self._progress is None or self._limit_s <= 0:
            return None
        return max(0.05, self._moved_at + self._limit_s - now + 0.01)
