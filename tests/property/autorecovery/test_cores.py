"""The arithmetic of stripes, holdings and plans equals brute force."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from magnetar.autorecovery.copy_plan import CopyPlan, Filling
from magnetar.autorecovery.entry_ranges import count, from_ids, intersect, subtract, union
from magnetar.autorecovery.extents import Extent
from magnetar.ledger.fragment import Fragment

# Machines are busy at times; what is tried here takes no time of its own.
UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
IDS = st.sets(st.integers(0, 40))


def ids(runs: object) -> set[int]:
    return {each for first, last in runs for each in range(first, last + 1)}  # type: ignore[attr-defined]


@st.composite
def closed_extents(draw: st.DrawFn) -> Extent:
    size = draw(st.integers(1, 6))
    quorum = draw(st.integers(1, size))
    first = draw(st.integers(0, 30))
    fragment = Fragment(
        first, tuple(f"b{slot}" for slot in range(size)), quorum, draw(st.integers(1, quorum))
    )
    return Extent(fragment, first + draw(st.integers(-1, 25)))


@UNHURRIED
@given(IDS, IDS)
def test_ranges_are_sets(these: set[int], those: set[int]) -> None:
    a, b = from_ids(these), from_ids(those)
    assert ids(a) == these
    assert ids(subtract(a, b)) == these - those
    assert ids(intersect(a, b)) == these & those
    assert ids(union([a, b])) == these | those
    assert count(union([a, b])) == len(these | those)
    for first, last in [*a, *subtract(a, b), *intersect(a, b)]:
        assert first <= last


@UNHURRIED
@given(closed_extents())
def test_a_stripe_is_what_the_write_sets_say(extent: Extent) -> None:
    assert extent.last_entry is not None
    for slot in range(len(extent.ensemble)):
        held = {
            entry
            for entry in range(extent.first_entry, extent.last_entry + 1)
            if slot in extent.fragment.write_slots(entry)
        }
        assert ids(extent.stripe(slot)) == held
        assert list(extent.stripe(slot)) == sorted(extent.stripe(slot))


@UNHURRIED
@given(closed_extents(), st.data())
def test_unheld_is_what_no_slot_of_the_write_set_has(extent: Extent, data: st.DataObject) -> None:
    slots = data.draw(st.sets(st.sampled_from(range(len(extent.ensemble)))))
    holdings = {slot: from_ids(data.draw(st.sets(st.integers(0, 60)))) for slot in slots}
    expected = {
        entry
        for entry in ids(extent.entries())
        if not any(entry in ids(holdings.get(slot, ())) for slot in extent.fragment.write_slots(entry))
    }
    assert ids(extent.unheld(holdings)) == expected


@UNHURRIED
@given(closed_extents(), st.integers(1, 7), st.data())
def test_a_plan_copies_each_wanted_entry_once_to_each_target(
    extent: Extent, batch: int, data: st.DataObject
) -> None:
    slots = data.draw(st.sets(st.sampled_from(range(len(extent.ensemble))), min_size=1))
    fillings: dict[int, Filling] = {}
    for slot in sorted(slots):
        stripe = tuple(extent.stripe(slot))
        if data.draw(st.booleans()):
            fillings[slot] = Filling(f"new{slot}", stripe)
        else:
            wanted = data.draw(st.sets(st.sampled_from(sorted(ids(stripe)) or [-1]))) - {-1}
            fillings[slot] = Filling(extent.ensemble[slot], from_ids(wanted), in_place=True)
    nobody_has = data.draw(st.sets(st.integers(0, 60), max_size=3))
    readable = tuple(data.draw(st.sets(st.sampled_from(extent.ensemble))))
    plan = CopyPlan(extent, fillings, readable, from_ids(nobody_has))
    copied: list[tuple[int, str]] = []
    for runs in plan.batches(batch):
        assert sum(run.last - run.first + 1 for run in runs) <= batch
        for run in runs:
            for entry in range(run.first, run.last + 1):
                copied += [(entry, target) for target in run.targets]
                write_set = extent.fragment.write_set(entry)
                for source in run.sources:
                    assert source in write_set
                    assert source in readable
                    filling = fillings.get(extent.ensemble.index(source))
                    assert filling is None or not filling.in_place or entry not in ids(filling.entries)
    expected = {
        (entry, filling.target)
        for filling in fillings.values()
        for entry in ids(filling.entries) - nobody_has
    }
    assert len(copied) == len(set(copied))
    assert set(copied) == expected
    assert [entry for entry, _ in copied] == sorted(entry for entry, _ in copied)
