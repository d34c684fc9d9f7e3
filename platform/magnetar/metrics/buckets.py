"""Distributions as a few integers: how many values fell below which bound."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from magnetar.metrics.sample import NO_LABELS, Sample

LATENCY_BOUNDS_MS = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 1000.0)
"""Pulsar's bounds for storing an entry; its dashboards ask for exactly these."""

ENTRY_SIZE_BOUNDS_BYTES = (128, 512, 1024, 2048, 4096, 16384, 102400, 1048576)
_SIZE_NAMES = ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb")


class Buckets:
    """Counts values by size. `add` is all that a hot path does."""

    __slots__ = ("bounds", "count", "counts", "total")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_MS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)  # The last one: above all bounds.
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value; a value equal to a bound is below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.total += value

    def add_many(self, value: float, times: int) -> None:
        """Count `value` as often as said: a batch is counted in one call."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.total += value * times

    def quantile(self, fraction: float) -> float:
        """The bound below which at least `fraction` of the values lie; infinite above the last one,
        0 while there are none."""
        if not self.count:
            return 0.0
        wanted = fraction * self.count
        seen = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound
        return float("inf")

    def histogram(self, name: str, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Sample]:
        """As a Prometheus histogram: `name_bucket{le=...}`, `name_sum`, `name_count`."""
        below = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            below += count
            yield Sample(f"{name}_bucket", {**labels, "le": f"{bound:g}"}, below, "histogram")
        yield Sample(f"{name}_bucket", {**labels, "le": "+Inf"}, self.count, "histogram")
        yield Sample(f"{name}_sum", labels, self.total, "histogram")
        yield Sample(f"{name}_count", labels, self.count, "histogram")

    def pulsar_latency(self, name: str, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Sample]:
        """As Pulsar writes it: `name_le_0_5`, ..., `name_overflow`, each bucket counted by itself."""
        endings = [f"le_{bound:g}".replace(".", "_") for bound in self.bounds]
        yield from self._by_name(name, endings, labels)

    def pulsar_entry_size(self, name: str, labels: Mapping[str, str] = NO_LABELS) -> Iterator[Sample]:
        """As Pulsar writes sizes: `name_le_128`, ..., `name_le_1_mb`, `name_overflow`."""
        yield from self._by_name(name, [f"le_{size}" for size in _SIZE_NAMES], labels)

    def _by_name(self, name: str, endings: Sequence[str], labels: Mapping[str, str]) -> Iterator[Sample]:
        for ending, count in zip([*endings, "overflow"], self.counts, strict=True):
            yield Sample(f"{name}_{ending}", labels, count)
        yield Sample(f"{name}_sum", labels, self.total)
        yield Sample(f"{name}_count", labels, self.count)
