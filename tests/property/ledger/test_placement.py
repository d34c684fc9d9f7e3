"""Placement against brute force: nobody could have arranged the copies so that they share less."""

from __future__ import annotations

import random
from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.ledger.arrangement import Site, neighbours, pair_cost
from magnetar.ledger.fragment import Fragment
from magnetar.ledger.placement import Placement, PlacementPolicy, PlacementRules
from magnetar.protocol.bookie import BookieAddress

RULES = PlacementRules(PlacementPolicy.REGION)


@st.composite
def clusters(draw: st.DrawFn) -> dict[str, BookieAddress]:
    count = draw(st.integers(1, 6))
    return {
        f"b{number}": BookieAddress(
            "h:1",
            "1",
            domain=draw(st.sampled_from("xyz")),
            rack=draw(st.sampled_from(["", "/n/1", "/n/2", "/s/1", "/s/2"])),
        )
        for number in range(count)
    }


def cost(ensemble: tuple[str, ...], write_quorum: int, cluster: dict[str, BookieAddress]) -> int:
    """Literally: each pair of slots that hold copies of the same entry."""
    sites = {}
    for bookie, address in cluster.items():
        rack = address.rack.strip("/")
        sites[bookie] = Site(address.domain, rack.rpartition("/")[0], rack)
    regions, racks = ({getattr(site, each) for site in sites.values()} for each in ("region", "rack"))
    fragment = Fragment(0, ensemble, write_quorum, 1)
    pairs = {
        frozenset((one, other))
        for entry_id in range(len(ensemble))
        for one in fragment.write_set(entry_id)
        for other in fragment.write_set(entry_id)
        if one != other
    }
    total = 0
    for pair in pairs:
        one, other = (sites[bookie] for bookie in pair)
        if len(regions) == 1:
            one, other = Site(one.domain, "", one.rack), Site(other.domain, "", other.rack)
        if len(racks) == 1:
            one, other = Site(one.domain, one.region), Site(other.domain, other.region)
        total += pair_cost(one, other)
    return total


@settings(deadline=None)
@given(clusters(), st.data())
def test_a_new_ensemble_shares_as_little_as_any(
    cluster: dict[str, BookieAddress], data: st.DataObject
) -> None:
    size = data.draw(st.integers(1, min(5, len(cluster))))
    write_quorum = data.draw(st.integers(1, size))
    dice = random.Random(data.draw(st.integers(0, 1000)))
    placement = Placement(dice, rules=RULES)
    best = min(cost(each, write_quorum, cluster) for each in permutations(cluster, size))
    for _ in range(3):  # The second time it knows the goal.
        choice = placement.new_ensemble(cluster, size, write_quorum, now=0)
        assert len(set(choice.ensemble)) == size
        assert cost(choice.ensemble, write_quorum, cluster) == best
        assert choice.shared_domains == placement.shared_domains(choice.ensemble, write_quorum, cluster)
        assert choice.shared_domains == best // 10**6


@settings(deadline=None)
@given(clusters(), st.data())
def test_replacements_share_as_little_as_any(cluster: dict[str, BookieAddress], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, min(4, len(cluster))))
    write_quorum = data.draw(st.integers(1, size))
    names = data.draw(st.permutations(sorted(cluster)))
    ensemble, others = tuple(names[:size]), names[size:]
    failed = sorted(data.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    placement = Placement(random.Random(data.draw(st.integers(0, 1000))), rules=RULES)
    found = placement.replacements(cluster, ensemble, failed, now=0, write_quorum=write_quorum)
    assert set(found.bookies) == set(failed[: len(others)])
    assert set(found.bookies.values()) <= set(others)
    if not found.bookies:
        return
    fixed = [bookie for slot, bookie in enumerate(ensemble) if slot not in found.bookies]
    seen = {bookie: cluster[bookie] for bookie in (*fixed, *others)}

    def with_them(chosen: tuple[str, ...]) -> tuple[str, ...]:
        place = dict(zip(found.bookies, chosen, strict=True))
        return tuple(place.get(slot, bookie) for slot, bookie in enumerate(ensemble))

    best = min(cost(with_them(each), write_quorum, seen) for each in permutations(others, len(found.bookies)))
    assert cost(with_them(tuple(found.bookies.values())), write_quorum, seen) == best


@given(st.integers(1, 7), st.data())
def test_neighbours_are_those_that_hold_copies_of_the_same_entry(size: int, data: st.DataObject) -> None:
    write_quorum = data.draw(st.integers(1, size))
    fragment = Fragment(0, tuple(map(str, range(size))), write_quorum, 1)
    near = neighbours(size, write_quorum)
    for one in range(size):
        for other in range(size):
            together = any({one, other} <= set(fragment.write_slots(turn)) for turn in range(size))
            assert (other in near[one]) == (together and one != other)
