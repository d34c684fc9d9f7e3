"""The load of a chaos run: topics with and without deduplication, narrow and wide, and every kind of subscription."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pulsar

from magnetar.testing.acknowledged import SendLog, differences
from magnetar.testing.admin_calls import backlogs, call, keep_everything
from magnetar.testing.cluster import Cluster
from magnetar.testing.load import ConsumerSpec, LoadProcess, ProducerSpec, Receipts, Sends
from magnetar.testing.load_check import not_yet_received, subscription_differences

PLAIN = "persistent://public/default/plain"
EXACT = "persistent://public/exact/deduplicated"
WIDE = "persistent://public/wide/keyed"
KEYS = 7
READ_TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent, and who receives it."""

    producers: Sequence[ProducerSpec]
    consumers: Sequence[Sequence[ConsumerSpec]]
    """One process for each sequence."""
    deduplicated: frozenset[str]


def usual_plan(per_second: float = 40.0) -> Plan:
    """Three topics, four producers, four subscriptions."""
    return Plan(
        producers=(
            ProducerSpec("plain", PLAIN, per_second, batching=True, bytes=200),
            ProducerSpec("exact-a", EXACT, per_second),
            ProducerSpec("exact-b", EXACT, per_second, batching=True),
            ProducerSpec("keyed", WIDE, per_second, keys=KEYS, bytes=1000),
        ),
        consumers=tuple(
            (
                *([ConsumerSpec("exclusive", PLAIN, "exclusive")] if letter == "a" else []),
                ConsumerSpec(f"shared-{letter}", PLAIN, "shared", "Shared"),
                ConsumerSpec(f"failover-{letter}", EXACT, "failover", "Failover"),
                ConsumerSpec(f"key-shared-{letter}", WIDE, "key-shared", "KeyShared"),
            )
            for letter in "ab"
        ),
        deduplicated=frozenset({EXACT, WIDE}),
    )


def prepare(web_url: str) -> None:
    """Namespaces: one with deduplication, one with three copies of which two are waited for."""
    call(web_url, "PUT", "/namespaces/public/exact", {})
    call(web_url, "PUT", "/namespaces/public/wide", {})
    for namespace in ("public/exact", "public/wide"):
        call(web_url, "POST", f"/namespaces/{namespace}/deduplication", True)
    wide = {
        "bookkeeperEnsemble": 3,
        "bookkeeperWriteQuorum": 3,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    }
    call(web_url, "POST", "/namespaces/public/wide/persistence", wide)
    for namespace in ("public/default", "public/exact", "public/wide"):
        keep_everything(web_url, namespace)


@dataclass(slots=True)
class Load:
    """The processes and what their logs say."""

    plan: Plan
    producers: LoadProcess
    consumers: list[LoadProcess]
    sends: list[Sends] = field(default_factory=list)
    receipts: list[Receipts] = field(default_factory=list)

    @classmethod
    def start(cls, plan: Plan, directory: Path, service_url: str) -> Load:
        load = cls(
            plan,
            LoadProcess(directory, "producers", plan.producers, service_url),
            [
                LoadProcess(directory, f"consumers-{number}", specs, service_url)
                for number, specs in enumerate(plan.consumers)
            ],
        )
        try:
            for process in (*load.consumers, load.producers):
                process.start()
        except BaseException:
            load.kill()
            raise
        load.sends = Sends.of(load.producers)
        load.receipts = [each for process in load.consumers for each in Receipts.of(process)]
        return load

    def kill(self) -> None:
        for process in (self.producers, *self.consumers):
            process.kill()

    def update(self) -> None:
        """Read on in all logs."""
        for sends in self.sends:
            sends.update()
        for receipts in self.receipts:
            receipts.update()

    def receipted(self) -> int:
        """Messages of all producers that were acknowledged."""
        return sum(len(each.log.receipted) for each in self.sends)

    def troubles(self) -> int:
        """What clients said went wrong, and tried again."""
        return sum(len(each.troubles) for each in self.sends) + sum(
            len(each.troubles) for each in self.receipts
        )

    def in_flight(self) -> int:
        return sum(len(each.log.in_flight()) for each in self.sends)

    def subscriptions(self) -> dict[tuple[str, str], list[Receipts]]:
        """By topic and name."""
        found: dict[tuple[str, str], list[Receipts]] = {}
        for each in self.receipts:
            found.setdefault((each.spec.topic, each.spec.subscription), []).append(each)
        return found

    def missing(self) -> int:
        """Receipted messages that some subscription has not seen yet, summed."""
        return sum(
            not_yet_received(self._logs(topic), [each.received for each in members])
            for (topic, _), members in self.subscriptions().items()
        )

    def backlog(self, cluster: Cluster) -> dict[tuple[str, str], int]:
        """What the broker says each subscription has still to do."""
        found: dict[tuple[str, str], int] = {}
        for topic in sorted({spec.topic for spec in self.plan.producers}):
            for name, count in backlogs(cluster.web_url(), topic).items():
                found[topic, name] = count
        return found

    def differences(self) -> list[str]:
        """What is wrong with what the subscriptions got."""
        found = []
        for (topic, name), members in self.subscriptions().items():
            keyed = members[0].spec.kind == "KeyShared"
            found += subscription_differences(
                name,
                members[0].spec.kind,
                self._logs(topic),
                [each.received for each in members],
                key_of=(lambda _, number: f"key-{number % KEYS}") if keyed else None,
            )
        return found

    def stored_differences(self, service_url: str) -> list[str]:
        """Read every topic from its beginning; what is wrong with what it holds."""
        found = []
        for topic in sorted({spec.topic for spec in self.plan.producers}):
            logs = self._logs(topic)
            exact = topic in self.plan.deduplicated
            for log in logs:
                # Any of them may have lost its receipt on a connection that was cut, and was then sent again.
                log.repeatable = set() if exact else set(range(log.sent))
            stored = read_all(service_url, topic)
            found += [f"{topic}: {wrong}" for wrong in differences(logs, stored, repeats_allowed=not exact)]
        return found

    def _logs(self, topic: str) -> list[SendLog]:
        return [each.log for each in self.sends if each.spec.topic == topic]


def read_all(service_url: str, topic: str) -> list[bytes]:
    """A topic's payloads, without their padding, from its beginning to its end."""
    client = pulsar.Client(
        service_url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    try:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(READ_TIMEOUT_MS).data().partition(b" ")[0])
        return found
    finally:
        client.close()
