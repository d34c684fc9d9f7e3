from __future__ import annotations

import random

import pytest

from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.placement import Placement

RACKS = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "c1": "c"}


def test_members_of_a_write_set_come_from_different_domains_while_there_are_any() -> None:
    for seed in range(50):
        placement = Placement(random.Random(seed), domain_of=RACKS.__getitem__)
        ensemble = placement.new_ensemble(list(RACKS), 3, 3, now=0)
        assert {RACKS[bookie] for bookie in ensemble} == {"a", "b", "c"}


def test_all_bookies_get_their_share() -> None:
    placement = Placement(random.Random(1))
    names = [f"b{number}" for number in range(5)]
    chosen = [bookie for _ in range(500) for bookie in placement.new_ensemble(names, 3, 2, now=0)]
    assert all(chosen.count(name) > 200 for name in names)


def test_too_few_bookies_are_an_error_that_says_so() -> None:
    with pytest.raises(NotEnoughBookies, match="3 writable bookies are needed and 2 can be had"):
        Placement(random.Random(1)).new_ensemble(["a", "b"], 3, 2, now=0)


def test_a_bookie_that_failed_is_passed_over_while_others_can_be_had() -> None:
    placement = Placement(random.Random(1), health=BookieHealth(random.Random(1).random))
    placement.suspect("a", now=0)
    assert all("a" not in placement.new_ensemble(["a", "b", "c"], 2, 2, now=10) for _ in range(20))
    assert "a" in placement.new_ensemble(["a", "b"], 2, 2, now=10), "better a doubtful one than none"
    assert any("a" in placement.new_ensemble(["a", "b", "c"], 2, 2, now=31) for _ in range(20))


def test_replacements_are_new_and_from_another_domain_if_possible() -> None:
    placement = Placement(random.Random(1), domain_of=RACKS.__getitem__)
    assert placement.replacements(list(RACKS), ("a1", "b1", "b2"), [2], now=0) == {2: "c1"}
    assert placement.replacements(["a1", "b1"], ("a1", "b1"), [0], now=0) == {}


def test_of_several_failed_slots_as_many_are_filled_as_can_be() -> None:
    placement = Placement(random.Random(1))
    found = placement.replacements(["a", "b", "c", "d"], ("a", "b", "c"), [0, 1], now=0)
    assert found == {0: "d"}
