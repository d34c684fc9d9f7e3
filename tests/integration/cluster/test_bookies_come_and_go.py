"""Bookies that return without what they have acknowledged, come anew, and leave; with real processes, under load."""

from __future__ import annotations

import shutil

import pytest

from magnetar.testing.cluster import Cluster
from magnetar.testing.processes import ProcessFailed
from tests.integration.cluster.workbench import PATIENCE_S, Scenario, stop_brokers_and_compare, whole

QUICK = {
    # Limbo lasts at least as long as a client may sleep and keep its connection; nobody sleeps long here.
    "MAGNETAR_BOOKIE__GC_GRACE_S": "2",
}

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper, pytest.mark.timeout(600)]


@pytest.mark.parametrize("loss", ["yesterday's disk", "emptied disk"])
def test_a_bookie_returns_without_what_it_has_acknowledged(
    cluster: Cluster, scenario: Scenario, loss: str
) -> None:
    """It refuses to serve; told to go on, it denies nothing until it has got everything back from its peers."""
    bookie = cluster.bookies[0]
    bookie.stop()
    yesterday = bookie.directory / "yesterday"
    shutil.copytree(bookie.data / "bookie", yesterday)
    bookie.environment.update(QUICK)
    bookie.start()
    reached = scenario.sequence_of(bookie)
    scenario.until_a_ledger_names(bookie)
    scenario.more_receipts()
    bookie.stop()
    bookie.start()  # It says how far it has come, as it does once a minute.
    assert scenario.sequence_of(bookie) > reached
    bookie.kill()
    shutil.rmtree(bookie.data / "bookie")
    if loss == "yesterday's disk":
        yesterday.rename(bookie.data / "bookie")
    else:
        shutil.rmtree(yesterday)
    with pytest.raises(ProcessFailed, match="on_lost_data: limbo"):
        bookie.start()
    bookie.environment["MAGNETAR_BOOKIE__ON_LOST_DATA"] = "limbo"
    bookie.start()

    def writable() -> bool:
        listed = {each["bookieId"]: each["state"] for each in cluster.command_json("bookie", "list")}
        return bool(listed[bookie.bookie_id] == "writable")

    scenario.eventually(
        f"{bookie.name} has everything back and takes entries", writable, within_s=2 * PATIENCE_S
    )
    scenario.finish()
    whole(cluster)
    assert stop_brokers_and_compare(cluster) == []
    for name in (*QUICK, "MAGNETAR_BOOKIE__ON_LOST_DATA"):
        del bookie.environment[name]


def test_a_bookie_is_added_and_one_is_taken_out(cluster: Cluster, scenario: Scenario) -> None:
    """New ledgers use the new one, nothing is moved; decommissioning says what is left, and ends."""
    added = cluster.add_bookie()
    assert scenario.ledgers_naming(added) == []
    scenario.until_a_ledger_names(added)
    leaving = next(each for each in scenario.bookies_in(scenario.ledgers()[-1]) if each is not added)
    cluster.command("bookie", "decommission", leaving.bookie_id)
    assert scenario.ledgers_naming(leaving) == []
    leaving.stop()
    listed = {each["bookieId"] for each in cluster.command_json("bookie", "list")}
    assert leaving.bookie_id not in listed
    scenario.more_receipts()
    scenario.finish()
    cluster.bookies.remove(leaving)
    assert stop_brokers_and_compare(cluster) == []
