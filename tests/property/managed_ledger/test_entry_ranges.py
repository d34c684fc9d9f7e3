from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.managed_ledger.entry_ranges import EntryRanges

EDGES = st.integers(0, 60) | st.sampled_from([4095, 4096, 8191, 8192, 12287]) | st.integers(4090, 4100)
LENGTHS = st.integers(0, 8) | st.sampled_from([4095, 4096, 8200])
SPANS = st.tuples(EDGES, LENGTHS).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "one", "drop", "drop from"]), SPANS), max_size=20)
PLACES = (*range(70), *range(4085, 4105), *range(8185, 8200), *range(12280, 12295), 16384, 99999)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_ranges_are_a_set(steps: list[tuple[str, tuple[int, int]]]) -> None:
    ranges, model = EntryRanges(), set[int]()
    for what, (start, end) in steps:
        if what == "add":
            wanted = set(range(start, end + 1))
            assert ranges.add(start, end) == len(wanted - model)
            model |= wanted
        elif what == "one":
            assert ranges.add_one(start) == (start not in model)
            model.add(start)
        elif what == "drop from":
            gone = {each for each in model if each >= start}
            assert ranges.drop_from(start) == len(gone)
            model -= gone
        else:
            gone = {each for each in model if each <= start}
            assert ranges.drop_through(start) == len(gone)
            model -= gone
        assert {each for first, last in ranges for each in range(first, last + 1)} == model
        assert ranges.count() == len(model)
        pairs = list(ranges)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(pairs))
        assert ranges.range_count == len(pairs)
        assert bool(ranges) == bool(model)
        assert [(number, bits) for number, bits in ranges.chunks()] == [
            (number, bits)
            for number in range(10)
            if (bits := sum(1 << each % 4096 for each in model if each // 4096 == number))
        ]
        for entry_id in PLACES:
            assert (entry_id in ranges) == (entry_id in model)
            free = entry_id
            while free in model:
                free += 1
            assert ranges.next_outside(entry_id) == free
