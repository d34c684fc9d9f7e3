"""Who lags: by age beside the others, or by bytes over all ledgers."""

from __future__ import annotations

import random

from magnetar.ledger.bookie_health import BookieHealth, HealthRules
from magnetar.ledger.replica_budget import ReplicaBudget

LOOK_S = 0.25


def ages(budget: ReplicaBudget, seconds: float, answering: dict[str, int]) -> list[str]:
    """Each bookie is sent ten copies a look and answers as many as it is said to. Who is told of in the end."""
    told: list[str] = []
    for turn in range(int(seconds / LOOK_S)):
        for bookie, answers in answering.items():
            lag = budget.of(bookie)
            lag.sent += 10
            lag.answered = min(lag.sent, lag.answered + answers)
        told += [laggard.bookie for laggard in budget.look(turn * LOOK_S)]
    return told


def test_one_that_does_not_answer_while_others_do_is_told_of() -> None:
    assert set(ages(ReplicaBudget(1000, 1000, 2.0), 4, {"a": 10, "b": 0, "c": 10})) == {"b"}


def test_one_that_answers_a_tenth_of_what_it_is_sent_is_told_of() -> None:
    assert set(ages(ReplicaBudget(1000, 1000, 2.0), 30, {"a": 10, "b": 1, "c": 10})) == {"b"}


def test_nobody_lags_where_all_are_slow_or_one_is_alone() -> None:
    assert ages(ReplicaBudget(1000, 1000, 2.0), 10, {"a": 0, "b": 0, "c": 0}) == []
    assert ages(ReplicaBudget(1000, 1000, 2.0), 10, {"a": 0}) == []


def test_a_moment_of_silence_is_forgiven() -> None:
    assert ages(ReplicaBudget(1000, 1000, 2.0), 1.75, {"a": 10, "b": 0}) == []


def test_nobody_is_blamed_for_what_came_while_this_process_stood_still() -> None:
    """Answers have arrived and are not read yet."""
    budget = ReplicaBudget(1000, 1000, 2.0)
    assert ages(budget, 2, {"a": 10, "b": 10, "c": 10}) == []
    for bookie in "abc":
        budget.of(bookie).sent += 10
    assert budget.look(2.0) == []
    budget.of("c").answered += 10  # The moment before it stood still.
    assert budget.look(60) == []
    assert budget.look(60.25) == []
    for bookie in "ab":
        budget.of(bookie).answered += 10
    assert [budget.look(60.5 + turn * LOOK_S) for turn in range(20)] == [[]] * 20


def test_the_worst_is_told_of_when_too_much_waits_in_all() -> None:
    budget = ReplicaBudget(1000, 1000, 100.0)
    for bookie, lagging in (("a", 300), ("b", 400), ("c", 200)):
        budget.of(bookie).lagging_bytes = lagging
    assert budget.look(0) == budget.look(0.5) == []
    budget.of("c").lagging_bytes = 301
    assert [laggard.bookie for laggard in budget.look(1)] == ["b"]


def test_a_quarantine_is_twice_as_long_for_one_that_soon_fails_again() -> None:
    health = BookieHealth(random.Random(1).random, HealthRules(quarantine_s=30, quarantine_max_s=100))
    health.failed("a", 0)
    health.failed("a", 10)  # The same failure, told by another ledger.
    assert health.quarantined("a", 29)
    assert not health.quarantined("a", 30)
    health.failed("a", 40)
    assert health.quarantined("a", 99)
    assert not health.quarantined("a", 100)
    health.failed("a", 110)
    assert health.quarantined("a", 209)
    assert not health.quarantined("a", 210), "there is a longest one"
    health.failed("a", 1000)
    assert not health.quarantined("a", 1030), "it was well for long"


def test_too_many_errors_within_an_interval_quarantine_and_chance_has_a_say() -> None:
    rules = HealthRules(errors_max=3, errors_interval_s=60, quarantine_max_s=500, quarantine_ratio=0.5)
    quarantined = 0
    for seed in range(200):
        health = BookieHealth(random.Random(seed).random, rules)
        for at in (0, 30, 59, 61, 62, 63):
            health.error("a", at)
        assert not health.quarantined("a", 63), "three in the first minute, three in the second"
        health.error("a", 64)
        quarantined += health.quarantined("a", 64 + 499)
    assert 70 < quarantined < 130
