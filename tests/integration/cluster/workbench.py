"""What scenarios of a cluster have at hand: one topic under load, who owns it, and what its ledgers look like."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.ledger.metadata import LedgerMetadata
from magnetar.metadata.opening import open_store
from magnetar.protocol.bookie import COOKIES_PATH
from magnetar.testing.admin_calls import call, topic_path
from magnetar.testing.chaos_load import Load, Plan, read_all
from magnetar.testing.cluster import Cluster, RoleNode, eventually
from magnetar.testing.load import ConsumerSpec, LoadProcess, ProducerSpec, Sends
from magnetar.testing.replicas import compare_replicas, ledgers_of_topic

PATIENCE_S = 120.0
"""For whatever must happen by itself, on a machine that does much else."""


@dataclass(slots=True)
class Scenario:
    """One topic with deduplication, a producer and a consumer that never rest."""

    cluster: Cluster
    directory: Path
    topic: str
    load: Load
    others: list[LoadProcess] = field(default_factory=list)

    @classmethod
    def start(
        cls,
        cluster: Cluster,
        directory: Path,
        name: str,
        *,
        namespace: str = "public/exact",
        per_second: float = 100.0,
        size: int = 0,
    ) -> Scenario:
        topic = f"persistent://{namespace}/{name}"
        plan = Plan(
            producers=(ProducerSpec(f"producer-{name}", topic, per_second, bytes=size),),
            consumers=((ConsumerSpec(f"consumer-{name}", topic, "s", "Failover"),),),
            deduplicated=frozenset({topic}),
        )
        scenario = cls(cluster, directory, topic, Load.start(plan, directory / "load", cluster.service_url))
        scenario.more_receipts(50)
        return scenario

    def __enter__(self) -> Scenario:
        return self

    def __exit__(self, *_: object) -> None:
        self.load.kill()
        for process in self.others:
            process.kill()

    # Load.

    def receipted(self) -> int:
        self.load.update()
        return self.load.receipted()

    def more_receipts(self, count: int = 100, *, within_s: float = PATIENCE_S) -> float:
        """Wait for so many more from now on; returns the seconds it took."""
        began, goal = time.monotonic(), self.receipted() + count
        eventually(f"{count} more receipts", lambda: self.receipted() >= goal, within_s=within_s)
        return time.monotonic() - began

    def another_producer(self, name: str, service_url: str) -> Sends:
        """One more process that publishes to the topic, by another door."""
        spec = ProducerSpec(name, self.topic, 50.0)
        process = LoadProcess(self.directory / "load", name, (spec,), service_url).start()
        self.others.append(process)
        (sends,) = Sends.of(process)
        self.load.sends.append(sends)
        return sends

    def finish(self) -> None:
        """Stop sending. Everything acknowledged is received, in order, and stored exactly once."""
        processes = [self.load.producers, *self.others]
        for process in processes:
            process.ask_to_stop()
        for process in processes:
            assert process.wait(PATIENCE_S) == 0, process.log_tail()
        self.load.update()
        assert self.load.in_flight() == 0

        def all_received() -> bool:
            self.load.update()
            return self.load.missing() == 0

        eventually("everything acknowledged is received", all_received, within_s=PATIENCE_S)
        assert self.load.differences() == []
        assert self.load.stored_differences(self.cluster.service_url) == []

    def stored(self) -> list[bytes]:
        return read_all(self.cluster.service_url, self.topic)

    # The topic.

    def owner(self, asked: RoleNode | None = None) -> RoleNode:
        """The broker that serves it, as any running broker says, or the one that is asked."""
        web = asked.urls[1] if asked is not None else self.cluster.web_url()
        with urllib.request.urlopen(f"{web}/lookup/v2/topic{topic_path(self.topic)}", timeout=60) as answer:
            url = json.load(answer)["brokerUrl"]
        address = url.removeprefix("pulsar://").rstrip("/")
        return next(broker for broker in self.cluster.brokers if broker.address == address)

    def other_broker(self) -> RoleNode:
        owner = self.owner()
        return next(broker for broker in self.cluster.brokers if broker is not owner)

    def until_a_ledger_names(self, bookie: RoleNode) -> None:
        """Begin new ledgers until one is on that bookie."""

        def named() -> bool:
            if bookie in self.bookies_in(self.ledgers()[-1]):
                return True
            self.unload()
            self.more_receipts(20)
            return False

        eventually(f"a new ledger names {bookie.name}", named, within_s=PATIENCE_S)

    def unload(self) -> None:
        """Close the topic where it is: its ledger is closed, and a new one begins when it is served again."""
        call(self.owner().urls[1], "PUT", f"{topic_path(self.topic)}/unload")

    # Its ledgers.

    def ledgers(self) -> list[LedgerMetadata]:
        return asyncio.run(ledgers_of_topic(self.cluster.metadata_store_direct, self.topic))

    def bookies_in(self, ledger: LedgerMetadata) -> list[RoleNode]:
        """Of its last segment."""
        by_id = {node.bookie_id: node for node in self.cluster.bookies}
        return [by_id[each] for each in ledger.segments[-1].ensemble]

    def ledgers_naming(self, bookie: RoleNode, *, closed_only: bool = False) -> list[int]:
        return [
            ledger.ledger_id
            for ledger in self.ledgers()
            if any(bookie.bookie_id in segment.ensemble for segment in ledger.segments)
            and (ledger.closed or not closed_only)
        ]

    def sequence_of(self, bookie: RoleNode) -> int:
        """How far it has come, as the cluster knows it."""

        async def ask() -> int:
            store = await open_store(self.cluster.metadata_store_direct)
            try:
                cookie = await store.get(f"{COOKIES_PATH}/{bookie.bookie_id}")
                return int(json.loads(cookie.value)["sequence"]) if cookie is not None else 0
            finally:
                await store.close()

        return asyncio.run(ask())

    def eventually(self, what: str, condition: Callable[[], bool], *, within_s: float = PATIENCE_S) -> None:
        eventually(what, condition, within_s=within_s, every_s=0.5)


def stop_brokers_and_compare(cluster: Cluster) -> Sequence[str]:
    """With nobody writing, read all copies of all entries; what is wrong with them."""
    for broker in cluster.brokers:
        broker.stop()
    report = asyncio.run(compare_replicas(cluster.metadata_store_direct))
    assert report.copies > 0
    cluster.start(cluster.brokers)
    return report.wrong


def whole(cluster: Cluster) -> None:
    """Wait until no ledger lacks copies."""

    def none_lacks() -> bool:
        return not cluster.command_json("autorecovery", "underreplicated")

    eventually("no ledger lacks copies", none_lacks, within_s=2 * PATIENCE_S, every_s=1.0)
