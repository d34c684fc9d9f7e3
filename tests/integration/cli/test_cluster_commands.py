"""The operator's commands on a real cluster, as they are typed, with no broker's help."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.commands import make_cluster, run_magnetar
from magnetar.testing.processes import MagnetarProcess, ProcessFailed
from magnetar.testing.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper, pytest.mark.timeout(300)]

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
TOPIC = "persistent://public/default/kept"


@dataclass
class Cluster:
    store: str
    bookies: list[MagnetarProcess]
    broker: MagnetarProcess
    directory: Path

    def command(self, *words: object) -> str:
        return run_magnetar(*words, "--metadata-store", self.store)

    def ask(self, *words: object) -> Any:
        return json.loads(self.command(*words, "--json"))

    def ask_lines(self, *words: object) -> list[Any]:
        return [json.loads(line) for line in self.command(*words, "--json").splitlines()]

    def bookie_id(self, number: int) -> str:
        return str(json.loads((self.directory / f"b{number}" / "MAGNETAR").read_text())["id"])

    def publish(self, count: int) -> None:
        client = pulsar.Client(self.broker.service_url, logger=QUIET)
        try:
            client.subscribe(TOPIC, "keeps")
            producer = client.create_producer(TOPIC, batching_enabled=False)
            for number in range(count):
                producer.send(b"message %d" % number)
        finally:
            client.close()


def wait_until(what: Callable[[], bool], timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    environment = {"MAGNETAR_AUTORECOVERY__LOST_BOOKIE_RECOVERY_DELAY_S": "600"}
    with ZooKeeperServer(tmp_path / "zookeeper") as keeper:
        store = f"zk:{keeper.address}/c1?session_timeout_s=2"
        make_cluster(store, "c1")
        bookies = [
            MagnetarProcess(
                ["bookie", "--metadata-store", store, "--data", str(tmp_path / f"b{n}"), "--port", "0"],
                tmp_path / f"b{n}.log",
                {**environment, "MAGNETAR_BOOKIE__DOMAIN": f"machine-{n}"},
            )
            for n in range(4)
        ]
        words = ["broker", "--metadata-store", store, "--data", str(tmp_path / "broker"), "--port", "0"]
        words += ["--web-port", "0", "--no-functions", "--ensemble", "3"]
        broker = MagnetarProcess(words, tmp_path / "broker.log")
        try:
            for bookie in bookies:
                bookie.launch()
            for bookie in bookies:
                bookie.wait_until_ready()
            broker.start()
            yield Cluster(store, bookies, broker, tmp_path)
        finally:
            for process in (broker, *bookies):
                if process.alive():
                    process.kill()


def test_looking_inside(cluster: Cluster) -> None:
    cluster.publish(20)
    listed = cluster.ask("ledger", "list", "--topic", TOPIC)
    of_topic = [each for each in listed if "cursor" not in each["customMetadata"]]
    assert [each["state"] for each in of_topic] == ["OPEN"]
    assert [(each["ensembleSize"], each["writeQuorumSize"], each["ackQuorumSize"]) for each in of_topic] == [
        (3, 2, 2)
    ]
    ledger = of_topic[0]["ledgerId"]
    assert cluster.ask("ledger", "show", ledger) == of_topic[0]
    read = cluster.ask("ledger", "read", ledger, "--first", "3", "--last", "7")
    assert [entry["entryId"] for entry in read] == [3, 4, 5, 6, 7]

    with pytest.raises(ProcessFailed, match="counts on it"):
        cluster.command("ledger", "delete", ledger)
    with pytest.raises(ProcessFailed, match="there is no ledger 999"):
        cluster.command("ledger", "show", "999")

    cluster.broker.stop()
    closed = cluster.ask("ledger", "recover", ledger)
    assert (closed["state"], closed["lastEntryId"]) == ("CLOSED", 19)

    whole = cluster.ask("ledger", "read", ledger, "--all-replicas")
    assert (whole["whole"], whole["copies"], whole["faults"]) == (True, 40, [])
    stats = cluster.ask("topic", "internal-stats", TOPIC)
    assert [(each["ledgerId"], each["entries"]) for each in stats["ledgers"]] == [(ledger, 20)]
    assert stats["ledgers"][0]["ensembles"] == closed["ensembles"]
    assert set(stats["cursors"]) == {"keeps"}

    bookies = cluster.ask("bookie", "list")
    assert {each["bookieId"] for each in bookies} == {cluster.bookie_id(n) for n in range(4)}
    assert {each["state"] for each in bookies} == {"writable"}
    one = next(iter(closed["ensembles"]["0"]))
    told = cluster.ask("bookie", "info", one)
    assert told["ledgers"] >= 1
    assert told["freeBytes"] > 0
    new = next(each["bookieId"] for each in bookies if each["bookieId"] not in closed["ensembles"]["0"])
    cluster.command("ledger", "move", ledger, "--onto", new, "--from", one)
    moved = cluster.ask("ledger", "show", ledger)["ensembles"]["0"]
    assert set(moved) == {*closed["ensembles"]["0"], new} - {one}
    cluster.command("ledger", "delete", ledger, "--force")
    assert [each["state"] for each in cluster.ask("topic", "internal-stats", TOPIC)["ledgers"]] == ["LOST"]
    with pytest.raises(ProcessFailed, match=f"there is no ledger {ledger}"):
        cluster.command("ledger", "read", ledger)


def test_a_lost_bookie_is_told_of_and_its_copies_are_made_anew(cluster: Cluster) -> None:
    cluster.publish(20)
    cluster.broker.stop()  # Its ledgers are closed then: none is left to a writer.
    ledgers = cluster.ask("ledger", "list")
    assert {each["state"] for each in ledgers} == {"CLOSED"}
    lost = cluster.bookie_id(0)
    named = [each["ledgerId"] for each in ledgers if any(lost in held for held in each["ensembles"].values())]
    for number in (1, 2, 3):
        if named:
            break
        lost = cluster.bookie_id(number)
        named = [
            each["ledgerId"] for each in ledgers if any(lost in held for held in each["ensembles"].values())
        ]
    assert cluster.ask("autorecovery", "underreplicated") == []
    number = next(n for n in range(4) if cluster.bookie_id(n) == lost)
    cluster.bookies[number].kill()
    wait_until(
        lambda: (
            [each["state"] for each in cluster.ask("bookie", "list") if each["bookieId"] == lost] == ["lost"]
        )
    )
    # Nobody has marked them yet: the delay is ten minutes. They are told all the same.
    missing = cluster.ask("autorecovery", "underreplicated")
    assert [each["ledgerId"] for each in missing] == named
    assert all(each["missing"] == [lost] for each in missing)
    cluster.ask("autorecovery", "trigger")
    wait_until(lambda: cluster.ask("autorecovery", "underreplicated") == [])
    assert not any(
        lost in held for each in cluster.ask("ledger", "list") for held in each["ensembles"].values()
    )
    assert cluster.ask("autorecovery", "status")["reports"] == []


def test_a_bookie_is_taken_out_while_it_runs(cluster: Cluster) -> None:
    cluster.publish(20)
    leaving = cluster.ask("ledger", "list")[0]["ensembles"]["0"][0]
    number = next(n for n in range(4) if cluster.bookie_id(n) == leaving)
    steps = cluster.ask_lines("bookie", "decommission", leaving)
    assert steps[-1]["done"]
    assert steps[-1]["ledgersLeft"] == 0
    assert steps[0]["ledgersTotal"] >= 1
    assert not any(
        leaving in held for each in cluster.ask("ledger", "list") for held in each["ensembles"].values()
    )
    cluster.bookies[number].stop()
    assert leaving not in {each["bookieId"] for each in cluster.ask("bookie", "list")}
    cluster.publish(5)  # The three others are enough.
    with pytest.raises(ProcessFailed, match="no bookie 'nobody'"):
        cluster.command("bookie", "decommission", "nobody")


def test_read_only_at_the_operators_wish(cluster: Cluster) -> None:
    bookie = cluster.bookie_id(2)

    def state() -> str:
        return str(
            next(each["state"] for each in cluster.ask("bookie", "list") if each["bookieId"] == bookie)
        )

    cluster.command("bookie", "readonly", bookie)
    wait_until(lambda: state() == "readonly")
    cluster.bookies[2].stop()
    cluster.bookies[2].start()
    assert state() == "readonly"
    cluster.command("bookie", "readonly", bookie, "--off")
    wait_until(lambda: state() == "writable")


def test_a_stopped_bookie_is_checked_and_emptied(cluster: Cluster) -> None:
    cluster.publish(20)
    cluster.broker.stop()
    held = cluster.ask("ledger", "list")[0]["ensembles"]["0"][0]
    number = next(n for n in range(4) if cluster.bookie_id(n) == held)
    data = cluster.directory / f"b{number}"
    with pytest.raises(ProcessFailed, match="is in use by process"):
        run_magnetar("bookie", "sanity", "--data", data)
    cluster.bookies[number].stop()
    told = json.loads(run_magnetar("bookie", "sanity", "--data", data, "--json"))
    assert told["sane"]
    assert told["bookieId"] == held
    assert told["problems"] == []
    with pytest.raises(ProcessFailed, match=f"ledgers name bookie {held}"):
        cluster.command("bookie", "format", "--data", data)
    log = max((data / "bookie" / "entries").glob("*.log"), key=lambda path: path.stat().st_size)
    stored = bytearray(log.read_bytes())
    stored[len(stored) // 2] ^= 1
    log.write_bytes(stored)
    with pytest.raises(ProcessFailed, match=log.name):
        run_magnetar("bookie", "sanity", "--data", data)
    assert "removed" in cluster.command("bookie", "format", "--data", data, "--force")


def test_wrong_clusters_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    other = cluster.store.replace("/c1?", "/c2?")
    with pytest.raises(ProcessFailed, match="belongs to no cluster"):
        run_magnetar("ledger", "list", "--metadata-store", other)
    with pytest.raises(ProcessFailed, match="belongs to cluster 'c1'"):
        run_magnetar("metadata", "init", "--metadata-store", cluster.store, "--cluster", "c2")
    make_cluster(other, "c2")
    cluster.bookies[0].stop()
    words = ["bookie", "--metadata-store", other, "--data", str(tmp_path / "b0"), "--port", "0"]
    with pytest.raises(ProcessFailed, match="of another cluster"):
        MagnetarProcess(words, tmp_path / "wrong.log").start()
    words = ["broker", "--metadata-store", cluster.store, "--data", str(tmp_path / "x"), "--cluster", "c9"]
    with pytest.raises(ProcessFailed, match="belongs to cluster 'c1'"):
        MagnetarProcess([*words, "--port", "0", "--web-port", "0"], tmp_path / "wrong2.log").start()
