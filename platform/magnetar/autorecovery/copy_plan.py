"""Which entries go where, from whom: the work of one fragment, cut into batches. Pure.

Only entries that lie in a slot's stripe are copied to the bookie that takes the slot, or fills it up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from magnetar.autorecovery.entry_ranges import Ranges, Run, subtract
from magnetar.autorecovery.extents import Extent


@dataclass(frozen=True, slots=True)
class Filling:
    """What one slot is to get."""

    target: str
    entries: Ranges
    in_place: bool = False
    """The bookie is the slot's own: nothing changes in the metadata."""


@dataclass(frozen=True, slots=True)
class CopyRun:
    """Entries that stand one after the other, with the same sources and targets."""

    first: int
    last: int
    targets: tuple[str, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The work of one fragment."""

    extent: Extent
    fillings: Mapping[int, Filling]
    """By slot."""
    readable: tuple[str, ...]
    """Bookies that may be asked."""
    passed_over: Ranges = ()
    """Entries that nobody has, left out with an operator's consent."""

    def batches(self, entries_max: int) -> Iterator[list[CopyRun]]:
        """All that is to be copied, in order, in batches of at most `entries_max` entries."""
        batch: list[CopyRun] = []
        size = 0
        for run in self._runs():
            first = run.first
            while first <= run.last:
                last = min(run.last, first + entries_max - size - 1)
                batch.append(CopyRun(first, last, run.targets, run.sources))
                size += last - first + 1
                first = last + 1
                if size == entries_max:
                    yield batch
                    batch, size = [], 0
        if batch:
            yield batch

    def _runs(self) -> Iterator[CopyRun]:
        """Runs within which the targets do not change, ascending."""
        wanted = {
            slot: subtract(filling.entries, self.passed_over) for slot, filling in self.fillings.items()
        }
        cuts = sorted(
            {edge for runs in wanted.values() for first, last in runs for edge in (first, last + 1)}
        )
        at = dict.fromkeys(wanted, 0)
        for first, after in pairwise(cuts):
            targets = []
            for slot, runs in wanted.items():
                while at[slot] < len(runs) and runs[at[slot]][1] < first:
                    at[slot] += 1
                if at[slot] < len(runs) and runs[at[slot]][0] <= first:
                    targets.append(self.fillings[slot].target)
            if not targets:
                continue
            for start, end in self._same_sources((first, after - 1)):
                sources = tuple(
                    bookie
                    for slot, bookie in self._write_set(start)
                    if bookie in self.readable and not self._is_filled_in_place(slot, start)
                )
                yield CopyRun(start, end, tuple(targets), sources)

    def _same_sources(self, run: Run) -> Iterator[Run]:
        if not self.extent.fragment.striped:
            yield run
            return
        for entry_id in range(run[0], run[1] + 1):
            yield entry_id, entry_id

    def _write_set(self, entry_id: int) -> Iterator[tuple[int, str]]:
        for slot in self.extent.fragment.write_slots(entry_id):
            yield slot, self.extent.ensemble[slot]

    def _is_filled_in_place(self, slot: int, entry_id: int) -> bool:
        filling = self.fillings.get(slot)
        if filling is None or not filling.in_place:
            return False
        at = bisect_right(filling.entries, entry_id, key=lambda run: run[0])
        return at > 0 and entry_id <= filling.entries[at - 1][1]
