"""All collectors of a process, in the order in which they came."""

from __future__ import annotations

from collections.abc import AsyncIterator

from magnetar.metrics.exposition import stream
from magnetar.metrics.sample import Collector


class MetricsRegistry:
    """What `/metrics` shows. Rooms are given it and add their collector; nobody looks it up globally."""

    __slots__ = ("_collectors",)

    def __init__(self) -> None:
        self._collectors: list[Collector] = []

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def remove(self, collector: Collector) -> None:
        """Take out a collector whose room closes."""
        self._collectors.remove(collector)

    def page(self) -> AsyncIterator[bytes]:
        """The exposition as it is now, in chunks."""
        return stream(list(self._collectors))
