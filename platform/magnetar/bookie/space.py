"""How full a disk is, and what that means. Pure.

Two borders on the way up and one on the way down: a bookie that comes back the moment a byte is free is full again the
moment after.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Fullness(IntEnum):
    FINE = 0
    WARN = 1
    """Garbage is collected more eagerly."""
    FULL = 2
    """No ordinary adds; recoveries and repairs may still write."""
    RESERVED = 3
    """What is left is for checkpoints and compaction, which give space back."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    warn_usage: float
    full_usage: float
    low_usage: float
    """A full disk is fine again below this."""
    free_bytes_min: int
    reserve_bytes: int

    def judge(self, before: Fullness, free_bytes: int, total_bytes: int) -> tuple[Fullness, str]:
        """How full the disk is now, and why."""
        usage = 1 - free_bytes / total_bytes if total_bytes else 0.0
        if free_bytes < self.reserve_bytes:
            return Fullness.RESERVED, f"only {free_bytes} bytes are free, which are kept for compaction"
        if free_bytes < self.free_bytes_min:
            return Fullness.FULL, f"only {free_bytes} bytes are free"
        if usage > self.full_usage:
            return Fullness.FULL, f"{usage:.1%} of the disk are used"
        if before >= Fullness.FULL:
            if usage > self.low_usage:
                return (
                    Fullness.FULL,
                    f"{usage:.1%} of the disk are used, and not below {self.low_usage:.0%} yet",
                )
            if free_bytes < self.free_bytes_min + self.free_bytes_min // 8:
                return Fullness.FULL, f"only {free_bytes} bytes are free, not clearly enough yet"
        if usage > self.warn_usage:
            return Fullness.WARN, f"{usage:.1%} of the disk are used"
        return Fullness.FINE, f"{free_bytes} bytes are free"
