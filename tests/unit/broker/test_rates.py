"""Rates as clients meet them. Time is moved by hand, so that nothing is ever merely slow."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.connection import Connection
from magnetar.broker.rates.dispatch_limit import DispatchLimit
from magnetar.broker.rates.publish_limit import PublishLimit
from magnetar.broker.rates.rate import Rate
from magnetar.metadata.errors import MetadataError
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies import paths
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate
from magnetar.policies.resource_groups import ResourceGroup
from magnetar.policies.topic import SubscriptionPolicies
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, ServerError
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.hand_clock import HandClock, Timed
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient, until

TOPIC = "persistent://public/default/t"


@pytest.fixture
def timed(broker: Broker, logs: MemoryLogs) -> Timed:
    return Timed(broker, logs)


async def say(timed: Timed, **policies: Any) -> None:
    name = TopicName.parse(TOPIC)
    topic = await timed.topic(TOPIC)
    resources = timed.broker.context.resources
    await resources.update_topic_policies(name, lambda said: said.changed(**policies))
    wanted = await resources.effective(name)
    await until(lambda: topic.policies == wanted)


def connection_of(broker: Broker) -> Connection:
    return next(iter(broker.connections))


def msgs(count: int, **more: Any) -> DispatchRate:
    return DispatchRate(dispatch_throttling_rate_in_msg=count, **more)


async def fill(client: RawClient, count: int, first: int = 0) -> None:
    """Publish messages that arrive in one piece."""
    pieces: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "write", pieces.append)
        for number in range(first, first + count):
            client.send(b"x" * 10, number, 100)
    client.write(b"".join(pieces))
    for _ in range(count):
        await client.expect("send_receipt")


# What comes in.


class Held:
    def __init__(self) -> None:
        self.by: set[object] = set()

    def throttle(self, by: object) -> None:
        self.by.add(by)

    def unthrottle(self, by: object) -> None:
        self.by.discard(by)


async def test_a_connection_that_brings_too_much_is_held_until_its_debt_is_paid() -> None:
    clock, connection = HandClock(), Held()
    limit = PublishLimit(clock, Rate(messages=10))
    limit.took(connection, 10, 0)
    assert connection.by == {limit}
    clock.now_s += 0.05
    limit.look()
    assert not connection.by
    limit.took(connection, 100, 0)
    limit.took(connection, 1, 0)
    assert limit.times_limited == 2
    clock.now_s += 9.9
    limit.look()
    assert connection.by
    clock.now_s += 1
    limit.look()
    assert not connection.by
    limit.close()


async def test_a_limit_that_is_lifted_lets_everybody_go_on() -> None:
    clock, connections = HandClock(), [Held(), Held()]
    limit = PublishLimit(clock, Rate(size=1))
    for connection in connections:
        limit.took(connection, 1, 1_000_000)
    assert all(connection.by for connection in connections)
    limit.set_rate(Rate())
    assert not any(connection.by for connection in connections)


@pytest.mark.parametrize("kind", ["messages", "bytes"])
async def test_publishers_are_not_read_from_but_get_every_receipt(
    connect: Connect, timed: Timed, kind: str
) -> None:
    rate = (
        PublishRate(publish_throttling_rate_in_msg=5)
        if kind == "messages"
        else PublishRate(publish_throttling_rate_in_byte=200)
    )
    await say(timed, publish_rate=rate)
    client = await connect()
    await client.produce(TOPIC, 100)
    await fill(client, 20)  # All of it came in one read: all of it is stored.
    held = connection_of(timed.broker)
    assert not held.reading
    topic = await timed.topic(TOPIC)
    assert topic.stats()["publishRateLimitedTimes"] == 1
    client.send(b"later", 20, 100)
    for _ in range(3):  # Turns of the loop in which it would be read if anybody read.
        await asyncio.sleep(0)
    assert topic.ledger.number_of_entries == 20
    timed.advance(60)
    topic.rates.publish[0].look()
    assert (await client.expect("send_receipt")).sequence_id == 20


async def test_a_batch_counts_with_all_its_messages(connect: Connect, timed: Timed) -> None:
    await say(timed, publish_rate=PublishRate(publish_throttling_rate_in_msg=50))
    client = await connect()
    await client.produce(TOPIC, 100)
    client.send_batch([b"x"] * 60, 0, 100)
    await client.expect("send_receipt")
    assert not connection_of(timed.broker).reading


async def test_a_policy_taken_back_lets_publishers_go_on(connect: Connect, timed: Timed) -> None:
    await say(timed, publish_rate=PublishRate(publish_throttling_rate_in_msg=1))
    client = await connect()
    await client.produce(TOPIC, 100)
    await fill(client, 3)
    assert not connection_of(timed.broker).reading
    await say(timed, publish_rate=None)
    assert connection_of(timed.broker).reading
    assert (await timed.topic(TOPIC)).rates.publish == ()


@pytest.mark.parametrize("where", ["platform", "broker", "namespace"])
async def test_rates_of_the_levels_above_hold_too(
    connect: Connect, start_broker: StartBroker, logs: MemoryLogs, where: str
) -> None:
    defaults = PolicyDefaults(publish_rate_messages=2) if where == "platform" else None
    settings = {"publish_rate_messages": 2} if where == "broker" else {}
    timed = Timed(await start_broker(defaults, **settings), logs)
    if where == "namespace":
        await timed.broker.context.resources.update_namespace(
            NamespaceName.parse("public/default"),
            lambda said: said.changed(
                publish_max_message_rate={"standalone": PublishRate(publish_throttling_rate_in_msg=2)}
            ),
        )
    await timed.topic(TOPIC)
    client = await connect(to=timed.broker)
    await client.produce(TOPIC, 100)
    await fill(client, 4)
    assert not connection_of(timed.broker).reading


async def test_namespaces_of_a_group_share_its_limits(connect: Connect, timed: Timed) -> None:
    resources = timed.broker.context.resources
    path = f"{paths.RESOURCE_GROUPS}/g"
    group = ResourceGroup(publish_rate_in_msgs=5)
    await resources.records.change(path, ResourceGroup, lambda _: group, missing=None)
    await resources.update_namespace(
        NamespaceName.parse("public/default"), lambda said: said.changed(resource_group_name="g")
    )
    one, other = TOPIC + "1", TOPIC + "2"
    topics = [await timed.topic(one), await timed.topic(other)]
    assert topics[0].rates.publish == topics[1].rates.publish
    client = await connect()
    await client.produce(one, 100)
    await client.produce(other, 101)
    await fill(client, 4)
    assert connection_of(timed.broker).reading
    client.send(b"x", 0, 101)
    await client.expect("send_receipt")
    client.send(b"x", 1, 101)
    await client.expect("send_receipt")
    assert not connection_of(timed.broker).reading
    freed = ResourceGroup(publish_rate_in_msgs=0)
    await resources.records.change(path, ResourceGroup, lambda _: freed, missing=None)
    await until(lambda: connection_of(timed.broker).reading)


@pytest.mark.parametrize("trouble", [False, True])
async def test_subscriptions_that_come_back_with_their_topic_keep_to_the_limits_of_its_group(
    timed: Timed, monkeypatch: pytest.MonkeyPatch, trouble: bool
) -> None:
    resources = timed.broker.context.resources
    await resources.records.change(
        f"{paths.RESOURCE_GROUPS}/g",
        ResourceGroup,
        lambda _: ResourceGroup(dispatch_rate_in_msgs=5),
        missing=None,
    )
    await (await timed.topic(TOPIC)).subscription("s", durable=True)
    await timed.broker.topics.unload(TopicName.parse(TOPIC))
    await resources.update_namespace(
        NamespaceName.parse("public/default"), lambda said: said.changed(resource_group_name="g")
    )
    if trouble:
        get = resources.records.get

        async def fails(path: str, *rest: Any) -> Any:
            if path.startswith(paths.RESOURCE_GROUPS):
                raise MetadataError("not now")
            return await get(path, *rest)

        with monkeypatch.context() as unavailable:
            unavailable.setattr(resources.records, "get", fails)
            with pytest.raises(MetadataError):
                await timed.topic(TOPIC)
    gate = (await timed.topic(TOPIC)).subscriptions["s"].gate
    assert gate is not None
    allowed = gate.ask()
    assert allowed is not None
    assert allowed.messages == 5


# What goes out.


async def received(client: RawClient) -> int:
    """How many messages have come, once nothing more comes."""
    await client.hears_nothing()
    count = sum(frame.command.HasField("message") for frame in client._frames)
    client._frames = [frame for frame in client._frames if not frame.command.HasField("message")]
    return count


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Shared])
@pytest.mark.parametrize("level", ["topic", "subscription", "one subscription", "broker", "platform"])
async def test_a_subscription_gets_no_more_than_its_rate(
    connect: Connect, start_broker: StartBroker, logs: MemoryLogs, kind: int, level: str
) -> None:
    defaults = PolicyDefaults(dispatch_rate_messages=5) if level == "platform" else None
    settings = {"dispatch_rate_messages": 5} if level == "broker" else {}
    timed = Timed(await start_broker(defaults, **settings), logs)
    match level:
        case "topic":
            await say(timed, dispatch_rate=msgs(5))
        case "subscription":
            await say(timed, subscription_dispatch_rate=msgs(5))
        case "one subscription":
            await say(timed, subscription_policies={"sub": SubscriptionPolicies(dispatch_rate=msgs(5))})
    topic = await timed.topic(TOPIC)
    client = await connect(to=timed.broker)
    await client.produce(TOPIC, 100)
    await fill(client, 30)
    await client.subscribe(TOPIC, kind=kind, permits=100)
    await client.expect("message")
    gate = topic.subscriptions["sub"].gate
    assert gate is not None
    await until(lambda: gate.waiting)
    assert await received(client) == 5 - 1
    timed.advance(1)
    gate._again()
    await until(lambda: gate.waiting)
    assert 4 <= await received(client) <= 6


async def test_bytes_are_limited_too(connect: Connect, timed: Timed) -> None:
    await say(timed, dispatch_rate=DispatchRate(dispatch_throttling_rate_in_byte=100))
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.produce(TOPIC, 100)
    await fill(client, 30)
    await client.subscribe(TOPIC, permits=100)
    gate = topic.subscriptions["sub"].gate
    assert gate is not None
    await until(lambda: gate.waiting)
    size = len(topic.ledger.entries[topic.ledger.last_confirmed].data)  # type: ignore[attr-defined]
    assert await received(client) * size >= 100


async def test_a_batch_may_count_as_one(
    connect: Connect, start_broker: StartBroker, logs: MemoryLogs
) -> None:
    timed = Timed(await start_broker(dispatch_rate_by_entry=True), logs)
    await say(timed, dispatch_rate=msgs(3))
    topic = await timed.topic(TOPIC)
    client = await connect(to=timed.broker)
    await client.produce(TOPIC, 100)
    for number in range(5):
        client.send_batch([b"x"] * 10, number * 10, 100)
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, permits=1000)
    gate = topic.subscriptions["sub"].gate
    assert gate is not None
    await until(lambda: gate.waiting)
    assert await received(client) == 3


async def test_batches_overshoot_by_one_entry_not_by_a_read(connect: Connect, timed: Timed) -> None:
    await say(timed, dispatch_rate=msgs(10))
    topic = await timed.topic(TOPIC)
    client = await connect()
    await client.produce(TOPIC, 100)
    for number in range(20):
        client.send_batch([b"x"] * 100, number * 100, 100)
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, permits=10_000)
    gate = topic.subscriptions["sub"].gate
    assert gate is not None
    await until(lambda: gate.waiting)
    assert await received(client) == 1
    timed.advance(8.9)
    gate._again()
    await until(lambda: gate.waiting)
    assert await received(client) == 0
    timed.advance(0.2)
    gate._again()
    await until(lambda: gate.waiting)
    assert await received(client) == 1


async def test_who_has_caught_up_may_be_exempt(
    connect: Connect, start_broker: StartBroker, logs: MemoryLogs
) -> None:
    timed = Timed(await start_broker(dispatch_rate_for_caught_up=False), logs)
    await say(timed, dispatch_rate=msgs(1))
    client = await connect(to=timed.broker)
    await client.subscribe(TOPIC, permits=100)
    await client.produce(TOPIC, 100)
    await fill(client, 30)
    await client.expect("message", where=lambda body: body.message_id.entryId == 29)


async def test_a_policy_taken_back_lets_a_subscription_go_on(connect: Connect, timed: Timed) -> None:
    await say(timed, dispatch_rate=msgs(1))
    client = await connect()
    await client.produce(TOPIC, 100)
    await fill(client, 10)
    await client.subscribe(TOPIC, permits=100)
    await client.expect("message")
    await say(timed, dispatch_rate=None)
    await client.expect("message", where=lambda body: body.message_id.entryId == 9)
    assert (await timed.topic(TOPIC)).subscriptions["sub"].gate is None


def test_a_rate_may_follow_what_comes_in() -> None:
    limit = DispatchLimit(msgs(10, relative_to_publish_rate=True, rate_period_in_second=2), 0.0)
    assert limit.rate == Rate(10, 0, 2)
    limit.came_in(100.0, 5.0, 1.0)
    assert limit.rate == Rate(210, 0, 2)
    limit.came_in(0.0, 0.0, 2.0)
    assert limit.rate == Rate(10, 0, 2)


# Subscribing.


async def test_a_consumer_that_subscribes_too_often_is_refused(connect: Connect, timed: Timed) -> None:
    rate = SubscribeRate(subscribe_throttling_rate_per_consumer=2, rate_period_in_second=10)
    await say(timed, subscribe_rate=rate)
    client = await connect()

    async def subscribe() -> Any:
        answer = await client.subscribe(TOPIC, consumer_name="c")
        client.say("close_consumer", consumer_id=1, request_id=1000)
        await client.expect("success")
        return answer

    assert [getattr(await subscribe(), "error", None) for _ in range(2)] == [None, None]
    refused = await subscribe()
    assert refused.error == ServerError.NotAllowedError
    assert "subscribe rate" in refused.message
    other = await client.subscribe(TOPIC, consumer_id=2, consumer_name="d")
    assert not hasattr(other, "error")
    timed.advance(10)
    client.say("close_consumer", consumer_id=2, request_id=1001)
    await client.expect("success")
    assert not hasattr(await subscribe(), "error")
