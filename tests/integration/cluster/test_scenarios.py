"""The scenarios the design is known for, with real processes under load of the official client."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from magnetar.testing.cluster import Cluster
from magnetar.testing.proxies import ANYBODY, Weather
from tests.integration.cluster.workbench import (
    PATIENCE_S,
    Scenario,
    whole,
)

CANNOT_RECOVER = "cannot be recovered now"
"""In the log of a broker that may not tell where a ledger ends."""

ASLEEP_S = 30.0
"""How long the owner is stopped: many sessions, as a virtual machine that is moved."""
GONE_S = 60.0
"""How long no ZooKeeper answers."""

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper, pytest.mark.timeout(600)]


def test_a_bookie_of_closed_ledgers_is_lost_and_its_copies_are_made_anew(
    cluster: Cluster, scenario: Scenario
) -> None:
    """E3 Qw2 Qa2: each of its entries has one copy left."""
    scenario.unload()
    scenario.more_receipts()
    first = scenario.ledgers()[0]
    assert first.closed
    lost = scenario.bookies_in(first)[0]
    lost.kill()
    scenario.more_receipts()
    scenario.eventually(
        f"no closed ledger names {lost.name}", lambda: not scenario.ledgers_naming(lost, closed_only=True)
    )
    scenario.finish()
    whole(cluster)


def test_a_bookie_of_the_open_ledger_is_lost_and_a_new_fragment_begins(
    cluster: Cluster, scenario: Scenario
) -> None:
    open_ledger = scenario.ledgers()[-1]
    lost = scenario.bookies_in(open_ledger)[1]
    lost.kill()
    took = scenario.more_receipts()
    assert took < PATIENCE_S / 4
    scenario.eventually(
        "the last fragment is on others",
        lambda: lost.bookie_id not in scenario.ledgers()[-1].segments[-1].ensemble,
    )
    scenario.finish()


def test_broker_and_bookie_are_lost_together(cluster: Cluster, scenario: Scenario) -> None:
    """E3 Qw2 Qa2: the next owner closes the ledger by what two of three bookies know."""
    owner = scenario.owner()
    lost = scenario.bookies_in(scenario.ledgers()[-1])[0]
    cluster.kill([owner, lost])
    scenario.more_receipts()
    assert scenario.owner() is not owner
    scenario.finish()


def test_broker_and_bookie_are_lost_together_where_one_copy_was_enough(
    cluster: Cluster, tmp_path: Path
) -> None:
    """E3 Qw2 Qa1: nobody can tell what the lost bookie alone has acknowledged. That is said, and nothing is cut off: when
    the bookie is back, all is there. The warning was given when the quorums were chosen."""
    said = [broker.log.read_text().count(CANNOT_RECOVER) for broker in cluster.brokers]
    with Scenario.start(cluster, tmp_path, "one-copy", namespace="public/fragile") as scenario:
        owner, other = scenario.owner(), scenario.other_broker()
        lost = scenario.bookies_in(scenario.ledgers()[-1])[0]
        cluster.kill([owner, lost])

        def reported() -> bool:
            return any(
                broker.log.read_text().count(CANNOT_RECOVER) > before
                for broker, before in zip(cluster.brokers, said, strict=True)
            )

        scenario.eventually(f"{other.name} says that it cannot recover the ledger", reported)
        assert not scenario.ledgers()[-1].closed
        lost.start()
        scenario.more_receipts()
        scenario.finish()
    assert any("one bookie alone" in broker.log.read_text() for broker in cluster.brokers)


def test_the_owner_sleeps_and_another_takes_over(cluster: Cluster, scenario: Scenario) -> None:
    """It wakes with sends in its sockets and a session that has ended: none of them is acknowledged by it."""
    owner, other = scenario.owner(), scenario.other_broker()
    owner.pause()
    began = time.monotonic()
    sends = scenario.another_producer("by-the-other-door", f"pulsar://{other.address}")

    def taken_over() -> bool:
        sends.update()
        return len(sends.log.receipted) >= 50

    scenario.eventually("the other broker serves the topic", taken_over)
    time.sleep(
        max(0.0, began + ASLEEP_S - time.monotonic())
    )  # The scenario itself; nothing is concluded from it.
    owner.resume()
    scenario.more_receipts(within_s=2 * PATIENCE_S)
    scenario.finish()


def test_the_owner_is_cut_off_from_zookeeper_but_not_from_bookies(
    cluster: Cluster, scenario: Scenario
) -> None:
    """Its session ends; it must know that by its own clock, and stop before another begins."""
    owner, other = scenario.owner(), scenario.other_broker()
    for keeper in cluster.keepers:
        cluster.cut(owner.name, keeper.name)
    scenario.eventually("the other broker owns the topic", lambda: scenario.owner(other) is other)
    scenario.more_receipts(within_s=2 * PATIENCE_S)
    sends = scenario.another_producer("by-the-other-door", f"pulsar://{other.address}")

    def served() -> bool:
        sends.update()
        return len(sends.log.receipted) >= 50

    scenario.eventually("the other broker serves the topic", served)
    cluster.mend_all()
    scenario.finish()


def test_all_zookeepers_are_gone_for_a_minute(cluster: Cluster, scenario: Scenario) -> None:
    """All returns by itself: no process ends, and none has to be started."""
    alive = {node.name: node.pid for node in cluster.roles}
    cluster.kill(cluster.keepers)
    time.sleep(GONE_S)  # The scenario itself; nothing is concluded from it.
    cluster.start(cluster.keepers)
    scenario.more_receipts()
    scenario.finish()
    assert {node.name: node.pid for node in cluster.roles} == alive


def test_the_whole_site_is_killed_at_once(cluster: Cluster, scenario: Scenario) -> None:
    cluster.kill(cluster.nodes)
    cluster.start(cluster.keepers)
    cluster.start(cluster.bookies)
    cluster.start([*cluster.brokers, *cluster.autorecoveries])
    scenario.more_receipts()
    scenario.finish()


def test_a_bookie_answers_a_hundred_times_slower(cluster: Cluster, tmp_path: Path) -> None:
    """Clients carry on, and what the slow one owes does not pile up in the broker."""
    with Scenario.start(cluster, tmp_path, "slow", per_second=200, size=4000) as scenario:
        slow = scenario.bookies_in(scenario.ledgers()[-1])[0]
        owner = scenario.owner()
        before = owner.rss_bytes()
        cluster.spoil(slow.name, ANYBODY, Weather(delay_s=0.5), one_way=True)
        assert scenario.more_receipts(1000) < PATIENCE_S / 2
        assert owner.rss_bytes() - before < 128 << 20
        cluster.mend_all()
        scenario.finish()


def test_everything_is_restarted_one_by_one_under_load(cluster: Cluster, scenario: Scenario) -> None:
    for node in cluster.nodes:
        node.stop()
        node.start()
        scenario.more_receipts(20)
    scenario.finish()
