"""Which bookies an ensemble is made of."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.groups import BookieGroups
from magnetar.ledger.placement import Placement, PlacementPolicy, PlacementRules, RackPlace
from magnetar.protocol.bookie import BookieAddress

HOSTS = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "c1": "c"}


def bookies(domains: dict[str, str], racks: dict[str, str] | None = None) -> dict[str, BookieAddress]:
    return {
        bookie: BookieAddress(f"{domain}:3181", "1", rack=(racks or {}).get(bookie, ""))
        for bookie, domain in domains.items()
    }


def each_alone(names: str) -> dict[str, BookieAddress]:
    return bookies({name: f"host-{name}" for name in names})


def test_copies_of_an_entry_are_on_different_hosts_while_there_are_any() -> None:
    for seed in range(50):
        choice = Placement(random.Random(seed)).new_ensemble(bookies(HOSTS), 3, 3, now=0)
        assert {HOSTS[bookie] for bookie in choice.ensemble} == {"a", "b", "c"}
        assert choice.shared_domains == 0


def test_the_first_and_the_last_of_a_striped_ensemble_are_neighbours_too() -> None:
    """Entry 3 of four slots lies on the slots 3 and 0."""
    hosts = bookies({"a1": "a", "a2": "a", "b1": "b", "b2": "b"})
    for seed in range(50):
        ensemble = Placement(random.Random(seed)).new_ensemble(hosts, 4, 2, now=0).ensemble
        assert all(ensemble[slot][0] != ensemble[(slot + 1) % 4][0] for slot in range(4))


def test_where_domains_are_too_few_as_little_is_shared_as_must_be_and_it_is_told() -> None:
    choice = Placement(random.Random(1)).new_ensemble(bookies({"a1": "a", "a2": "a", "b1": "b"}), 3, 3, now=0)
    assert choice.shared_domains == 1


def test_a_strict_placement_refuses_what_shares_a_domain() -> None:
    strict = Placement(random.Random(1), rules=PlacementRules(strict=True))
    hosts = bookies({"a1": "a", "a2": "a", "b1": "b"})
    with pytest.raises(
        NotEnoughBookies, match="3 can be had, but in 2 failure domains, too few for 3 copies"
    ):
        strict.new_ensemble(hosts, 3, 3, now=0)
    assert strict.new_ensemble(hosts, 2, 2, now=0).shared_domains == 0
    assert dict(strict.replacements(hosts, ("b1", "x"), [1], now=0, write_quorum=2).bookies) in (
        {1: "a1"},
        {1: "a2"},
    )
    nothing = strict.replacements(hosts, ("a1", "b1"), [1], now=0, write_quorum=2)
    assert dict(nothing.bookies) == {}, "a2 would stand where a1 stands"


def test_racks_are_told_apart_where_the_policy_looks_at_them() -> None:
    racks = {name: f"/{name[0]}" for name in ("p1", "p2", "p3", "q1")}
    cluster = bookies({name: name for name in racks}, racks)
    for seed in range(30):
        ensemble = Placement(random.Random(seed)).new_ensemble(cluster, 2, 2, now=0).ensemble
        assert "q1" in ensemble
    rules = PlacementRules(PlacementPolicy.RANDOM)
    chosen = {
        Placement(random.Random(seed), rules=rules).new_ensemble(cluster, 2, 2, now=0).ensemble
        for seed in range(60)
    }
    assert any("q1" not in ensemble for ensemble in chosen)


def test_regions_come_before_racks() -> None:
    racks = {"n1": "/north/1", "n2": "/north/2", "n3": "/north/3", "s1": "/south/1", "s2": "/south/1"}
    cluster = bookies({name: name for name in racks}, racks)
    rules = PlacementRules(PlacementPolicy.REGION)
    for seed in range(30):
        placement = Placement(random.Random(seed), rules=rules)
        ensemble = placement.new_ensemble(cluster, 4, 4, now=0).ensemble
        assert Counter(bookie[0] for bookie in ensemble) == {"n": 2, "s": 2}


def test_what_an_administrator_said_of_a_rack_wins() -> None:
    cluster = bookies({name: name for name in "pqr"}, {"p": "/1", "q": "/2", "r": "/2"})
    said = {"q": RackPlace("default", "/1")}
    for seed in range(20):
        ensemble = Placement(random.Random(seed)).new_ensemble(cluster, 2, 2, now=0, racks=said).ensemble
        assert "r" in ensemble


def test_a_namespace_is_kept_to_its_groups_and_the_secondary_ones_help_out() -> None:
    said = {name: RackPlace(group, "") for name, group in zip("abcdef", "xxyyzz", strict=True)}
    placement = Placement(random.Random(1))
    groups = BookieGroups(("x",), ("y",))
    for _ in range(20):
        two = placement.new_ensemble(each_alone("abcdef"), 2, 2, now=0, groups=groups, racks=said)
        assert set(two.ensemble) == {"a", "b"}
        three = placement.new_ensemble(each_alone("abcdef"), 3, 2, now=0, groups=groups, racks=said)
        assert set(three.ensemble) < set("abcd")
    with pytest.raises(
        NotEnoughBookies, match="5 writable bookies are needed and 4 can be had in groups x or y"
    ):
        placement.new_ensemble(each_alone("abcdef"), 5, 2, now=0, groups=groups, racks=said)
    replaced = placement.replacements(each_alone("abcdef"), ("a", "b"), [0], now=0, groups=groups, racks=said)
    assert replaced.bookies[0] in "cd", "no primary one is left"


def test_all_bookies_get_their_share() -> None:
    placement = Placement(random.Random(1))
    chosen = Counter(
        bookie
        for _ in range(500)
        for bookie in placement.new_ensemble(each_alone("abcde"), 3, 2, now=0).ensemble
    )
    assert all(chosen[name] > 200 for name in "abcde")


def test_more_free_space_is_chosen_more_often_up_to_a_cap() -> None:
    free = {"a": 100, "b": 100, "c": 100, "d": 100_000, "e": 0}
    cluster = {
        name: BookieAddress(f"{name}:1", "1", free_bytes=free_bytes) for name, free_bytes in free.items()
    }
    weighted = Placement(random.Random(1), rules=PlacementRules(by_free_space=True, weight_max=3.0))
    chosen = Counter(weighted.new_ensemble(cluster, 1, 1, now=0).ensemble[0] for _ in range(2000))
    assert 2.3 < chosen["d"] / chosen["a"] < 3.8
    assert chosen["e"] > 150, "who does not say is not left out"


def test_too_few_bookies_are_an_error_that_says_so() -> None:
    with pytest.raises(NotEnoughBookies, match="3 writable bookies are needed and 2 can be had: start more"):
        Placement(random.Random(1)).new_ensemble(each_alone("ab"), 3, 2, now=0)


def test_a_bookie_that_failed_is_passed_over_while_others_can_be_had() -> None:
    placement = Placement(random.Random(1), health=BookieHealth(random.Random(1).random))
    placement.suspect("a", now=0)
    three, two = each_alone("abc"), each_alone("ab")
    assert all("a" not in placement.new_ensemble(three, 2, 2, now=10).ensemble for _ in range(20))
    assert "a" in placement.new_ensemble(two, 2, 2, now=10).ensemble, "better a doubtful one than none"
    assert any("a" in placement.new_ensemble(three, 2, 2, now=31).ensemble for _ in range(20))
    assert dict(placement.replacements(two, ("b", "x"), [1], now=10).bookies) == {}
    assert dict(placement.replacements(two, ("b", "x"), [1], now=10, desperate=True).bookies) == {1: "a"}
    nobody = placement.replacements(two, ("b", "x"), [1], now=10, desperate=True, exclude=["a"])
    assert dict(nobody.bookies) == {}


def test_replacements_are_new_and_from_another_domain_if_possible() -> None:
    placement = Placement(random.Random(1))
    assert dict(placement.replacements(bookies(HOSTS), ("a1", "b1", "b2"), [2], now=0).bookies) == {2: "c1"}
    two = bookies({"a1": "a", "b1": "b"})
    assert dict(placement.replacements(two, ("a1", "b1"), [0], now=0).bookies) == {}


def test_a_bookie_that_stays_counts_where_it_stands_though_it_takes_no_writes() -> None:
    placement = Placement(random.Random(1))
    registered = bookies({"a1": "a", "a2": "a", "b1": "b"})
    writable = {name: registered[name] for name in ("a2", "b1")}
    for _ in range(10):
        found = placement.replacements(writable, ("a1", "x"), [1], now=0, registered=registered)
        assert dict(found.bookies) == {1: "b1"}


def test_of_several_failed_slots_as_many_are_filled_as_can_be() -> None:
    found = Placement(random.Random(1)).replacements(each_alone("abcd"), ("a", "b", "c"), [0, 1], now=0)
    assert dict(found.bookies) == {0: "d"}


def test_a_large_cluster_takes_no_time() -> None:
    """300 bookies in 3 racks cannot give 5 slots a rack each: the search must not try all there is."""
    racks = {f"b{number}": f"/{number % 3}" for number in range(300)}
    cluster = bookies({name: name for name in racks}, racks)
    placement = Placement(random.Random(1))
    for _ in range(20):
        ensemble = placement.new_ensemble(cluster, 5, 3, now=0).ensemble
        assert len({racks[bookie] for bookie in ensemble}) == 3


def test_bookies_of_this_process_that_are_not_registered_are_domains_of_their_own() -> None:
    local = {name: BookieAddress("", "") for name in "ab"}
    placement = Placement(random.Random(1))
    choice = placement.new_ensemble(local, 2, 2, now=0)
    assert choice.shared_domains == placement.shared_domains(choice.ensemble, 2, local) == 0
    assert placement.shared_domains(("a", "b"), 2, bookies({"a": "x", "b": "x"})) == 1
