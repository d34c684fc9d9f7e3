"""What an instance has done: plain integers, read when somebody asks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

LATEST_KEPT = 10


@dataclass(frozen=True, slots=True)
class Incident:
    """An exception, and when."""

    text: str
    at_ms: int


@dataclass(slots=True)
class Incidents:
    """How many there were, and the latest of them."""

    total: int = 0
    latest: deque[Incident] = field(default_factory=lambda: deque(maxlen=LATEST_KEPT))

    def add(self, text: str, at_ms: int, times: int = 1) -> None:
        self.total += times
        self.latest.append(Incident(text, at_ms))


@dataclass(slots=True)
class Counts:
    """Those figures that are also kept for the last minute."""

    received: int = 0
    processed: int = 0
    user_exceptions: int = 0
    system_exceptions: int = 0
    calls: int = 0
    elapsed_ns: int = 0

    @property
    def average_latency_ms(self) -> float:
        return self.elapsed_ns / self.calls / 1e6 if self.calls else 0.0

    def copy(self) -> Counts:
        return Counts(
            self.received,
            self.processed,
            self.user_exceptions,
            self.system_exceptions,
            self.calls,
            self.elapsed_ns,
        )

    def since(self, earlier: Counts) -> Counts:
        return Counts(
            self.received - earlier.received,
            self.processed - earlier.processed,
            self.user_exceptions - earlier.user_exceptions,
            self.system_exceptions - earlier.system_exceptions,
            self.calls - earlier.calls,
            self.elapsed_ns - earlier.elapsed_ns,
        )


class Statistics:
    """Of one instance, from its host's start on."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.user = Incidents()
        """What user code raised."""
        self.system = Incidents()
        """What went wrong around it."""
        self.restarts = 0
        """Of the user process."""
        self.dead_lettered = 0
        self.skipped = 0
        self.last_invocation_ms = 0
        self.user_metrics: dict[str, list[float]] = {}
        """Sum and count."""
        self._minute = Counts()

    def received(self, messages: int) -> None:
        self.counts.received += messages

    def ran(self, calls: int, failures: int, elapsed_ns: int, now_ms: int) -> None:
        """User code was called so often, and failed so often."""
        counts = self.counts
        counts.calls += calls
        counts.elapsed_ns += elapsed_ns
        counts.processed += calls - failures
        self.last_invocation_ms = now_ms

    def user_failed(self, text: str, now_ms: int) -> None:
        self.counts.user_exceptions += 1
        self.user.add(text, now_ms)

    def system_failed(self, text: str, now_ms: int) -> None:
        self.counts.system_exceptions += 1
        self.system.add(text, now_ms)

    def measured(self, metrics: dict[str, list[float]]) -> None:
        """User metrics since the last report: name → sum and count."""
        for name, (total, count) in metrics.items():
            known = self.user_metrics.setdefault(name, [0.0, 0.0])
            known[0] += total
            known[1] += count

    def last_minute(self) -> Counts:
        """Since `reset_minute`, which the host calls every minute: like Pulsar's counters that start anew each minute."""
        return self.counts.since(self._minute)

    def reset_minute(self) -> None:
        self._minute = self.counts.copy()
