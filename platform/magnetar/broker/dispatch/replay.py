"""Entries to be delivered again, lowest position first."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.managed_ledger import Position


class ReplayQueue:
    """A set of positions that yields its lowest first."""

    __slots__ = ("_heap", "_positions")

    def __init__(self) -> None:
        self._heap: list[Position] = []
        self._positions: set[Position] = set()
        # The heap may hold positions that left; the set decides.

    def __len__(self) -> int:
        return len(self._positions)

    def __contains__(self, position: Position) -> bool:
        return position in self._positions

    def add(self, position: Position) -> None:
        if position not in self._positions:
            self._positions.add(position)
            heappush(self._heap, position)

    def discard(self, position: Position) -> None:
        self._positions.discard(position)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._positions):
            self._heap = list(self._positions)
            heapify(self._heap)

    def discard_up_to(self, position: Position) -> None:
        while self._heap and self._heap[0] <= position:
            self._positions.discard(heappop(self._heap))

    def lowest(self) -> Position | None:
        """The lowest position, which stays."""
        heap = self._heap
        while heap:
            if heap[0] in self._positions:
                return heap[0]
            heappop(heap)
        return None

    def pop(self, limit: int) -> list[Position]:
        """Remove and return up to `limit` of the lowest positions."""
        popped: list[Position] = []
        while len(popped) < limit and self._heap:
            position = heappop(self._heap)
            if position in self._positions:
                self._positions.remove(position)
                popped.append(position)
        return popped

    def extend(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self.add(position)

    def clear(self) -> None:
        self._heap.clear()
        self._positions.clear()
