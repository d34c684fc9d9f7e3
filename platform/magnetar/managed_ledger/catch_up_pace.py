"""How fast readers behind the tails may go while others append. Pure, but for the meter it is given.

What they read passes through the same event loop as what is appended. So while appends are on their way, those readers
read little at a time, and rest once the loop has been busy for more than its share of the time, whoever kept it busy. Rests
are bounded, and shorter the more is appended to the log that is read: whoever is behind must be able to catch up. When
nobody appends, nothing holds them back.
"""

from __future__ import annotations

from collections.abc import Callable

CALM_S = 0.1
"""An append that was answered may be followed by another: for so long after the last, somebody appends."""
TURN_BYTES = 256 * 1024
"""What is read at once while others append: a fraction of a millisecond of the loop's time."""
REST_MAX_S = 0.01
REST_MIN_S = 0.001
"""What timers can tell; less is saved up."""
_CATCHING_UP = 3
"""So many times as much is read of a log as is appended to it, at least."""
_RATE_WINDOW_S = 0.05
_RATE_FORGOTTEN_S = 5.0


class AppendRate:
    """How fast a log grows, as those see it who ask now and then."""

    __slots__ = ("_at", "_bytes", "bytes_per_s")

    def __init__(self) -> None:
        self.bytes_per_s = 0.0
        self._at = float("-inf")
        self._bytes = 0

    def look(self, total_bytes: int, now: float) -> float:
        """`total_bytes`: all that was ever appended."""
        passed_s = now - self._at
        if passed_s >= _RATE_WINDOW_S:
            fresh = passed_s < _RATE_FORGOTTEN_S
            self.bytes_per_s = (total_bytes - self._bytes) / passed_s if fresh else 0.0
            self._at, self._bytes = now, total_bytes
        return self.bytes_per_s


class CatchUpPace:
    """One for a process. Times are monotonic seconds."""

    __slots__ = ("_busy_share", "_debt_s", "_seen_at", "_seen_used_s", "_used_s", "rests")

    def __init__(self, busy_share: float, used_s: Callable[[], float]) -> None:
        """
        Args:
            busy_share: how busy the loop may be before readers behind the tails rest; 1: they never do.
            used_s: the processor time the loop's thread has used so far.
        """
        self._busy_share = busy_share
        self._used_s = used_s
        self._debt_s = 0.0
        """How long the loop would have to idle for its share to be right."""
        self._seen_at = float("-inf")
        self._seen_used_s = 0.0
        self.rests = 0

    def turn(self, appended_at: float, log_bytes_per_s: float, now: float) -> tuple[float, int | None]:
        """Somebody behind the tail wants to read: how long to rest first, and how many bytes to read; None: no limit.

        Args:
            appended_at: when an append was answered last, in any log.
            log_bytes_per_s: how fast the log grows that is to be read.
        """
        if now - appended_at > CALM_S:
            self._seen_at = float("-inf")
            return 0.0, None
        if self._busy_share >= 1:
            return 0.0, TURN_BYTES
        used_s = self._used_s()
        if self._seen_at == float("-inf"):
            self._debt_s = 0.0
        else:
            owed = (used_s - self._seen_used_s) / self._busy_share - (now - self._seen_at)
            self._debt_s = min(max(0.0, self._debt_s + owed), REST_MAX_S)
        self._seen_at, self._seen_used_s = now, used_s
        rest_s = self._debt_s
        if log_bytes_per_s > 0:
            rest_s = min(rest_s, TURN_BYTES / (_CATCHING_UP * log_bytes_per_s))
        if rest_s < REST_MIN_S:
            return 0.0, TURN_BYTES
        self.rests += 1
        return rest_s, TURN_BYTES
