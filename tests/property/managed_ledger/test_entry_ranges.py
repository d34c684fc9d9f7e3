from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from magnetar.managed_ledger.entry_ranges import EntryRanges

SPANS = st.tuples(st.integers(0, 60), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))
STEPS = st.lists(st.tuples(st.sampled_from(["add", "drop"]), SPANS), max_size=30)


@given(STEPS)
def test_ranges_are_a_set(steps: list[tuple[str, tuple[int, int]]]) -> None:
    ranges, model = EntryRanges(), set[int]()
    for what, (start, end) in steps:
        if what == "add":
            wanted = set(range(start, end + 1))
            assert ranges.add(start, end) == len(wanted - model)
            model |= wanted
        else:
            gone = {each for each in model if each <= start}
            assert ranges.drop_through(start) == len(gone)
            model -= gone
        assert {each for first, last in ranges for each in range(first, last + 1)} == model
        assert ranges.count() == len(model)
        pairs = list(ranges)
        assert all(before[1] + 1 < after[0] for before, after in pairwise(pairs))
        for entry_id in range(70):
            assert (entry_id in ranges) == (entry_id in model)
            assert ranges.next_outside(entry_id) == next(
                each for each in range(entry_id, 200) if each not in model
            )
