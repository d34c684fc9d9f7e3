"""What one reader behind the tail has read, kept for those that come close behind it. Pure.

Runs are admitted only if somebody is expected to read them soon, and leave when all of those have, or after a
while. When there is no room, a new run is not admitted: what was admitted is worth as much, and is needed
sooner. So readers far apart read for themselves, and cannot push out what others are about to read. The tails
of logs have memory of their own (`entry_cache.py`), which nothing here touches.
"""

from __future__ import annotations

from bisect import bisect_right, insort_right
from collections.abc import Hashable

from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import ENTRY_OVERHEAD_BYTES, within

KEPT_S = 10.0
"""A run that nobody has read for so long is not read soon."""


class _Run:
    __slots__ = ("entries", "expected", "first", "key", "size", "used_at")

    def __init__(self, key: Hashable, first: int, entries: list[Entry], expected: int, now: float) -> None:
        self.key = key
        self.first = first
        self.entries = entries
        self.expected = expected
        """How many readers have not passed it."""
        self.size = sum(len(entry.data) + ENTRY_OVERHEAD_BYTES for entry in entries)
        self.used_at = now

    @property
    def end(self) -> int:
        return self.first + len(self.entries)


class CatchUpCache:
    """For all logs of a process; `key` tells one ledger from another."""

    __slots__ = ("_all", "_runs", "hits", "max_bytes", "misses", "refused", "size")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self.hits = 0
        """Entries found."""
        self.misses = 0
        """Reads that had to go to bookies."""
        self.refused = 0
        """Runs that there was no room for."""
        self._runs: dict[Hashable, list[_Run]] = {}
        """By ledger; of rising entries, without overlap."""
        self._all: dict[_Run, None] = {}
        """In the order in which they came."""

    def read(self, key: Hashable, first: int, last: int, max_bytes: int, now: float) -> list[Entry]:
        """The entries kept from `first` on, none if `first` is not; of one run."""
        runs = self._runs.get(key)
        at = bisect_right(runs, first, key=lambda run: run.first) - 1 if runs else -1
        if runs is None or at < 0 or runs[at].end <= first:
            self.misses += 1
            return []
        run = runs[at]
        run.used_at = now
        found = within(run.entries[first - run.first : last - run.first + 1], max_bytes)
        self.hits += len(found)
        if first + len(found) == run.end:
            run.expected -= 1
            if run.expected <= 0:
                self._drop(run)
        return found

    def offer(self, key: Hashable, entries: list[Entry], expected: int, now: float) -> bool:
        """Keep what was read if `expected` others will read it soon, and there is room."""
        if expected <= 0 or not entries:
            return False
        runs = self._runs.setdefault(key, [])
        first = entries[0].position.entry_id
        at = bisect_right(runs, first, key=lambda run: run.first)
        if at and runs[at - 1].end > first:
            return False  # Two have read it at once.
        if at < len(runs):
            entries = entries[: runs[at].first - first]
        run = _Run(key, first, entries, expected, now)
        if self.size + run.size > self.max_bytes:
            self._drop_unused(now)
        if self.size + run.size > self.max_bytes:
            self.refused += 1
            if not runs:
                self._runs.pop(key, None)
            return False
        insort_right(
            self._runs.setdefault(key, []), run, key=lambda run: run.first
        )  # Some may just have gone.
        self._all[run] = None
        self.size += run.size
        return True

    def forget(self, key: Hashable) -> None:
        """The ledger is gone, or nobody reads it here any more."""
        for run in list(self._runs.get(key, ())):
            self._drop(run)

    def _drop_unused(self, now: float) -> None:
        for run in list(self._all):
            if now - run.used_at >= KEPT_S:
                self._drop(run)

    def _drop(self, run: _Run) -> None:
        runs = self._runs[run.key]
        runs.remove(run)
        if not runs:
            del self._runs[run.key]
        del self._all[run]
        self.size -= run.size
