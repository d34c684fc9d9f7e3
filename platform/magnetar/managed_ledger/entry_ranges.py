"""Sets of entry ids of one ledger, kept as the ranges they form. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class EntryRanges:
    """Disjoint ranges, both ends included, never touching. Finding is logarithmic in their number."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """How many ranges, not entries."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, entry_id: int) -> bool:
        at = bisect_right(self._starts, entry_id) - 1
        return at >= 0 and entry_id <= self._ends[at]

    @property
    def first(self) -> tuple[int, int]:
        return self._starts[0], self._ends[0]

    def add(self, start: int, end: int) -> int:
        """Include `start` to `end`. Returns how many of them are new."""
        starts, ends = self._starts, self._ends
        low = bisect_left(ends, start - 1)  # The first range that touches or lies behind.
        high = bisect_right(starts, end + 1)  # Behind the last range that touches.
        new = end - start + 1
        if low < high:
            for at in range(low, high):
                new -= max(0, min(ends[at], end) - max(starts[at], start) + 1)
            start = min(start, starts[low])
            end = max(end, ends[high - 1])
        starts[low:high] = [start]
        ends[low:high] = [end]
        return new

    def next_outside(self, entry_id: int) -> int:
        """The first entry at or after `entry_id` that is in no range."""
        at = bisect_right(self._starts, entry_id) - 1
        return self._ends[at] + 1 if at >= 0 and entry_id <= self._ends[at] else entry_id

    def drop_through(self, entry_id: int) -> int:
        """Leave out everything up to `entry_id`. Returns how many entries that were."""
        starts, ends = self._starts, self._ends
        whole = bisect_right(ends, entry_id)
        dropped = sum(ends[at] - starts[at] + 1 for at in range(whole))
        del starts[:whole], ends[:whole]
        if starts and starts[0] <= entry_id:
            dropped += entry_id - starts[0] + 1
            starts[0] = entry_id + 1
        return dropped

    def pop_first(self) -> tuple[int, int]:
        return self._starts.pop(0), self._ends.pop(0)

    def count(self) -> int:
        """How many entries."""
        return sum(self._ends) - sum(self._starts) + len(self._starts)
