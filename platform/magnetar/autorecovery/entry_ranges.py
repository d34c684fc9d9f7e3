"""Sets of entry ids as sorted runs `(first, last)`, both included, none touching the next."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

Run = tuple[int, int]
Ranges = tuple[Run, ...]

NOTHING: Ranges = ()


def joined(runs: Iterable[Run]) -> Iterator[Run]:
    """Runs sorted by their first entry, with those that overlap or touch made one."""
    first, last = 0, -2
    for start, end in runs:
        if start <= last + 1:
            last = max(last, end)
            continue
        if last >= first:
            yield first, last
        first, last = start, end
    if last >= first:
        yield first, last


def union(sets: Sequence[Iterable[Run]]) -> Ranges:
    return tuple(joined(heapq.merge(*sets)))


def subtract(these: Iterable[Run], those: Sequence[Run]) -> Ranges:
    """What of `these` is not in `those`."""
    left: list[Run] = []
    at = 0
    for first, last in these:
        while at < len(those) and those[at][1] < first:
            at += 1
        here = at
        while here < len(those) and those[here][0] <= last:
            start, end = those[here]
            if first < start:
                left.append((first, start - 1))
            first = end + 1
            here += 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def intersect(these: Iterable[Run], those: Sequence[Run]) -> Iterator[Run]:
    """What is in both."""
    at = 0
    for first, last in these:
        while at < len(those) and those[at][1] < first:
            at += 1
        here = at
        while here < len(those) and those[here][0] <= last:
            yield max(first, those[here][0]), min(last, those[here][1])
            here += 1


def count(runs: Iterable[Run]) -> int:
    return sum(last - first + 1 for first, last in runs)


def from_ids(ids: Iterable[int]) -> Ranges:
    return tuple(joined((each, each) for each in sorted(ids)))


def written(runs: Sequence[Run], most: int = 8) -> str:
    """For people: `0-9, 12, 14-20`, and how many more."""
    parts = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:most]]
    if len(runs) > most:
        parts.append(f"and {len(runs) - most} runs more")
    return ", ".join(parts)
