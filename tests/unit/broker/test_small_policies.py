"""Who may subscribe under which name, how many may come from one host, when sequence ids are saved."""

from __future__ import annotations

import pytest

from magnetar.broker import same_address
from magnetar.broker.broker import Broker
from magnetar.broker.dedup_cursor import DEDUPLICATION_CURSOR
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies.namespace import SubscriptionAuthMode
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, ServerError
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.hand_clock import Timed
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import until

TOPIC = "persistent://public/default/t"
DEFAULT = NamespaceName.parse("public/default")


@pytest.mark.parametrize(
    ("role", "subscription", "allowed"),
    [("alice", "alice-1", True), ("alice", "bob-1", False), (None, "alice-1", False)],
)
async def test_a_subscription_may_have_to_begin_with_its_role(
    connect: Connect, broker: Broker, role: str | None, subscription: str, allowed: bool
) -> None:
    await broker.context.resources.update_namespace(
        DEFAULT, lambda said: said.changed(subscription_auth_mode=SubscriptionAuthMode.PREFIX)
    )
    client = await connect()
    next(iter(broker.connections)).role = role
    answer = await client.subscribe(TOPIC, subscription)
    if allowed:
        assert not hasattr(answer, "error")
    else:
        assert answer.error == ServerError.AuthorizationError
        assert "begin with" in answer.message


async def test_only_so_many_producers_come_from_one_host(connect: Connect, start_broker: StartBroker) -> None:
    broker = await start_broker(max_same_address_producers_per_topic=2)
    one, other = await connect(to=broker), await connect(to=broker)
    assert (await one.produce(TOPIC, 1)).producer_ready
    assert (await other.produce(TOPIC, 1)).producer_ready
    refused = await one.produce(TOPIC, 2)
    assert refused.error == ServerError.ProducerBusy
    assert (await one.produce(TOPIC + "2", 3)).producer_ready


async def test_only_so_many_consumers_come_from_one_host(connect: Connect, start_broker: StartBroker) -> None:
    broker = await start_broker(max_same_address_consumers_per_topic=2)
    client = await connect(to=broker)
    for number in range(2):
        answer = await client.subscribe(TOPIC, f"s{number}", number, kind=CommandSubscribe.Shared)
        assert not hasattr(answer, "error")
    refused = await client.subscribe(TOPIC, "s1", 3, kind=CommandSubscribe.Shared)
    assert refused.error == ServerError.ConsumerBusy


def test_a_host_is_an_address_without_its_port() -> None:
    assert same_address.host("/10.0.0.1:4711") == "/10.0.0.1"
    assert same_address.host("/::1:4711") == "/::1"


@pytest.mark.parametrize("interval_s", [30, 0])
async def test_sequence_ids_are_saved_at_the_interval_of_the_policy(
    connect: Connect, broker: Broker, logs: MemoryLogs, interval_s: int
) -> None:
    timed = Timed(broker, logs)
    name = TopicName.parse(TOPIC)
    await broker.context.resources.update_topic_policies(
        name,
        lambda said: said.changed(
            deduplication_enabled=True, deduplication_snapshot_interval_seconds=interval_s
        ),
    )
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.produce(TOPIC, 100, producer_name="p")
    client.send(b"x", 7, 100)
    await client.expect("send_receipt")
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    timed.advance(29)
    topic.tick(5)
    await broker.context.tasks.drain()
    assert cursor.properties == {}
    timed.advance(1)
    topic.tick(5)
    if interval_s:
        await until(lambda: cursor.properties == {"p": 7})
    else:
        timed.advance(1000)
        topic.tick(5)
        await broker.context.tasks.drain()
        assert cursor.properties == {}
