"""How long to pause so that copying stays within a rate. Pure."""

from __future__ import annotations


class Throttle:
    """A debt of bytes that is paid back with time. What was not used in the past is not saved up."""

    __slots__ = ("_free_at", "bytes_per_s")

    def __init__(self, bytes_per_s: float) -> None:
        """`bytes_per_s`: 0 is without limit."""
        self.bytes_per_s = bytes_per_s
        self._free_at = 0.0

    def take(self, size: int, now: float) -> float:
        """`size` bytes go now; returns how long to wait before the next."""
        if self.bytes_per_s <= 0:
            return 0.0
        self._free_at = max(self._free_at, now) + size / self.bytes_per_s
        return self._free_at - now
