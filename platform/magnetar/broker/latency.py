"""How long writes take, in the buckets of Pulsar's `pulsar_storage_write_latency_le_*`."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BOUNDS_MS: Final = (0.5, 1, 5, 10, 20, 50, 100, 200, 1000)
NAMES: Final = ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000", "overflow")


class LatencyBuckets:
    """Counts by duration."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * len(NAMES)
        self.sum_ms = 0.0

    def add(self, seconds: float) -> None:
        milliseconds = seconds * 1000
        self.counts[bisect_left(BOUNDS_MS, milliseconds)] += 1
        self.sum_ms += milliseconds
