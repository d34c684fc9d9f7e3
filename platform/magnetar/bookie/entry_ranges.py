"""Entry ids as inclusive ranges. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def ranges_of(rising: Iterable[int]) -> list[tuple[int, int]]:
    """Ids in rising order, repetitions allowed, as ranges with a gap between any two."""
    ranges: list[tuple[int, int]] = []
    first = last = -1
    for entry_id in rising:
        if entry_id > last + 1 or first < 0:
            if first >= 0:
                ranges.append((first, last))
            first = entry_id
        last = entry_id
    if first >= 0:
        ranges.append((first, last))
    return ranges
