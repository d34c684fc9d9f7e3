"""Who answers much later than the others is written to no more, though it keeps up."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.slow_bookies import SlowBookies
from tests.unit.ledger.house import Appends, House
from tests.unit.ledger.test_lagging_bookies import slow

LOOK_S = 0.25
RATE = 200


def judged(
    latencies: dict[str, float], seconds: float, *, rate: float = RATE, ratio: float = 20.0
) -> set[str]:
    """Each bookie answers `rate` adds a second, each after its latency. Who is told of."""
    bookies = SlowBookies(0.1, ratio)
    found: set[str] = set()
    for turn in range(int(seconds / LOOK_S)):
        sent = round(turn * LOOK_S * rate)
        counts = [
            (bookie, sent, round(max(0.0, turn * LOOK_S - latency_s) * rate))
            for bookie, latency_s in latencies.items()
        ]
        found.update(each.bookie for each in bookies.look(counts, turn * LOOK_S))
    return found


def test_one_that_takes_a_hundred_times_as_long_is_told_of_within_a_few_seconds() -> None:
    assert judged({"a": 0.002, "b": 0.2, "c": 0.003}, 11) == {"b"}
    assert judged({"a": 0.002, "b": 0.2, "c": 0.003}, 9) == set()


@pytest.mark.parametrize(
    "latencies",
    [
        {"a": 0.2, "b": 0.3, "c": 0.25},  # All are slow: it is us, or the network.
        {"a": 0.02, "b": 0.2, "c": 0.02},  # Ten times is no reason.
        {"a": 0.001, "b": 0.08, "c": 0.001},  # Nor is what nobody notices.
        {"a": 0.5},  # With whom should it be compared?
    ],
)
def test_others_are_left_alone(latencies: dict[str, float]) -> None:
    assert judged(latencies, 60) == set()


def test_too_few_answers_tell_nothing() -> None:
    assert judged({"a": 0.002, "b": 0.9, "c": 0.003}, 60, rate=1) == set()


def test_nobody_is_slow_where_that_is_not_wanted() -> None:
    assert judged({"a": 0.002, "b": 2.0, "c": 0.003}, 60, ratio=0) == set()


def test_a_pause_of_ours_is_nobodys_fault() -> None:
    bookies = SlowBookies(0.1, 20)
    bookies.look([("a", 100, 100), ("b", 100, 80)], 0.0)
    bookies.start_anew()  # The process stood still.
    assert bookies.look([("a", 100, 100), ("b", 100, 80)], 60.0) == []
    assert bookies.look([("a", 200, 200), ("b", 200, 200)], 60.25) == []


@pytest.mark.parametrize("wanted", [True, False])
def test_a_steadily_slow_bookie_that_keeps_up_is_replaced_and_quarantined(wanted: bool) -> None:
    """A thousand times slower and never behind by more than the lag that is allowed."""
    house = House(4)

    async def story() -> None:
        client = house.client(LedgerClientSettings(replica_lag_s=30.0, slow_replica_ratio=20.0 * wanted))
        writer = await client.create(3, 3, 3)
        victim = writer.metadata.segments[0].ensemble[1]
        appends = Appends(writer)
        slow(house, victim, 1000)
        for _ in range(130):
            appends.append(b"x", b"y", b"z")
            await asyncio.sleep(0.1)
        now = house.clock.monotonic()
        assert (victim not in writer.metadata.segments[-1].ensemble) == wanted
        assert client.surroundings.health.quarantined(victim, now) == wanted
        await appends.answered(390)

    house.run(story())
