"""What is held back, and until when."""

from __future__ import annotations

import asyncio
import time

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.delays import Delays
from magnetar.broker.errors import InvalidPosition
from magnetar.broker.filters import FilterChain, reject_markers
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.skipping import Skipped, skip_messages
from magnetar.managed_ledger import Position
from magnetar.naming import TopicName
from magnetar.policies.delivery import DelayedDelivery
from magnetar.policies.topic import TopicPolicies
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, ServerError
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.raw_client import RawClient, until
from tests.unit.broker.test_filters import entry, no_ack_set

TOPIC = "persistent://public/default/t"
DELAY_MS = 1000


def at(*numbers: int) -> list[Position]:
    return [Position(1, number) for number in numbers]


def test_entries_are_held_until_their_time_and_then_come_in_the_order_of_the_log() -> None:
    delays = Delays(limit=10)
    chain = FilterChain((reject_markers, delays.judge))
    delays.now_ms = 100
    entries = [
        entry(0, deliver_at_time=300),
        entry(1),
        entry(2, deliver_at_time=200),
        entry(3, deliver_at_time=100),
    ]
    sifted = chain.sift(entries, no_ack_set)
    assert [each.position for each in sifted.candidates] == at(1, 3)
    assert sifted.later == at(0, 2)
    assert (len(delays), delays.next_due_ms, delays.any_due) == (2, 200, False)
    assert delays.take_due(10) == []
    delays.now_ms = 200
    assert delays.take_due(10) == at(2)
    delays.now_ms = 1000
    delays.hold(Position(1, 5), 250)
    assert delays.take_due(10) == at(0, 5)
    assert (len(delays), delays.next_due_ms) == (0, None)
    assert len(chain.sift(entries, no_ack_set).candidates) == 4


def test_no_more_are_let_go_than_asked_for() -> None:
    delays = Delays(limit=10)
    for number in range(5):
        delays.hold(Position(1, number), 10 - number)
    delays.now_ms = 50
    assert delays.take_due(2) == at(3, 4)
    assert delays.take_due(9) == at(0, 1, 2)


def test_an_entry_that_is_read_twice_is_held_once() -> None:
    delays = Delays(limit=2)
    for _ in range(3):
        delays.hold(Position(1, 0), 10)
    assert not delays.full
    delays.hold(Position(1, 1), 10)
    assert delays.full
    delays.clear()
    assert (len(delays), delays.full, delays.next_due_ms) == (0, False, None)


async def published_late(client: RawClient) -> int:
    """Send m0 and m1 for later, m1 the sooner, and m2 for now. Returns when m1 is due."""
    due_ms = round(time.time() * 1000) + DELAY_MS
    await client.produce(TOPIC, 100)
    for number, metadata in enumerate(({"deliver_at_time": due_ms + 50}, {"deliver_at_time": due_ms}, {})):
        client.send(b"m%d" % number, number, 100, metadata=metadata)
        await client.expect("send_receipt")
    return due_ms


async def arrivals(client: RawClient, count: int) -> list[int]:
    return [(await client.expect("message")).message_id.entryId for _ in range(count)]


@pytest.mark.parametrize("kind", [CommandSubscribe.Shared, CommandSubscribe.Key_Shared])
async def test_who_shares_gets_messages_at_their_time(connect: Connect, kind: int) -> None:
    client = await connect()
    due_ms = await published_late(client)
    await client.subscribe(TOPIC, kind=kind, permits=10)
    assert await arrivals(client, 1) == [2]
    assert time.time() * 1000 < due_ms
    assert await arrivals(client, 2) == [1, 0]
    assert time.time() * 1000 >= due_ms + 50
    await client.hears_nothing("message")


async def test_what_is_due_waits_for_permits(connect: Connect) -> None:
    client = await connect()
    due_ms = await published_late(client)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=1)
    assert await arrivals(client, 1) == [2]
    await asyncio.sleep((due_ms + 60) / 1000 - time.time())
    await client.hears_nothing("message")
    client.flow(10)
    assert await arrivals(client, 2) == [0, 1]


async def test_a_consumer_that_comes_later_gets_what_the_one_before_did_not(connect: Connect) -> None:
    client = await connect()
    await published_late(client)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    assert await arrivals(client, 1) == [2]
    client.ack((1, 2))
    client.say("close_consumer", consumer_id=1, request_id=50)
    await client.expect("success")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    assert await arrivals(client, 2) == [1, 0]
    await client.hears_nothing("message")


async def test_so_many_are_held_that_nothing_further_is_read(
    connect: Connect, start_broker: StartBroker
) -> None:
    broker = await start_broker(delayed_entries_max=1)
    client = await connect(to=broker)
    await published_late(client)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=1)
    first = await arrivals(client, 1)
    client.flow(10)
    assert sorted(first + await arrivals(client, 2)) == [0, 1, 2]


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Failover])
async def test_where_order_comes_first_nothing_is_late(connect: Connect, kind: int) -> None:
    client = await connect()
    await published_late(client)
    await client.subscribe(TOPIC, kind=kind, permits=10)
    assert await arrivals(client, 3) == [0, 1, 2]


async def test_a_policy_turns_it_off(connect: Connect, broker: Broker) -> None:
    def disable(policies: TopicPolicies) -> TopicPolicies:
        return policies.model_copy(update={"delayed_delivery": DelayedDelivery(active=False)})

    await broker.context.resources.update_topic_policies(TopicName.parse(TOPIC), disable)
    client = await connect()
    await published_late(client)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    assert await arrivals(client, 3) == [0, 1, 2]


async def test_held_messages_come_at_once_when_the_policy_is_turned_off(
    connect: Connect, broker: Broker
) -> None:
    client = await connect()
    await client.produce(TOPIC, 100)
    client.send(b"x", 0, 100, metadata={"deliver_at_time": round(time.time() * 1000) + 3_600_000})
    await client.expect("send_receipt")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    await client.hears_nothing("message")
    await broker.context.resources.update_topic_policies(
        TopicName.parse(TOPIC), lambda said: said.changed(delayed_delivery=DelayedDelivery(active=False))
    )
    assert await arrivals(client, 1) == [0]


async def test_nobody_may_ask_for_more_delay_than_the_policy_allows(connect: Connect, broker: Broker) -> None:
    policy = DelayedDelivery(active=True, max_delivery_delay_in_millis=60_000)
    await broker.context.resources.update_topic_policies(
        TopicName.parse(TOPIC), lambda said: said.changed(delayed_delivery=policy)
    )
    client = await connect()
    await client.produce(TOPIC, 100)
    now_ms = round(time.time() * 1000)
    client.send(b"x", 0, 100, metadata={"deliver_at_time": now_ms + 50_000})
    await client.expect("send_receipt")
    client.send(b"x", 1, 100, metadata={"deliver_at_time": now_ms + 70_000})
    refused = await client.expect("send_error")
    assert refused.error == ServerError.NotAllowedError
    assert "60000 milliseconds" in refused.message


async def test_what_is_held_back_can_be_taken_back(connect: Connect, broker: Broker) -> None:
    """An administrator skips what is to come, by number, by age, or all of it."""
    client = await connect()
    await client.produce(TOPIC, 100)
    due_ms = round(time.time() * 1000) + 3_600_000
    for number in range(5):
        client.send(b"x", number, 100, metadata={"deliver_at_time": due_ms})
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    subscription = topic.subscriptions["sub"]
    await until(lambda: subscription.stats()["msgDelayed"] == 5)
    await subscription.skip(2)
    assert subscription.stats()["msgDelayed"] == 3
    await subscription.expire_up_to(Position(1, 3))
    assert subscription.stats()["msgDelayed"] == 1
    await subscription.skip_all()
    told = topic.stats()
    assert told["subscriptions"]["sub"]["msgDelayed"] == 0
    assert told["delayedMessageIndexSizeInBytes"] == 0
    await client.hears_nothing("message")


async def test_single_messages_of_a_batch_are_taken_back(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared)
    await client.produce(TOPIC, 100)
    client.send_batch([b"a", b"b", b"c"], 0, 100)
    await client.expect("send_receipt")
    client.send_batch([b"d", b"e"], 3, 100)
    await client.expect("send_receipt")
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    subscription = topic.subscriptions["sub"]
    first, second = Position(1, 0), Position(1, 1)
    await skip_messages(subscription, [Skipped(first, 1), Skipped(second, 0)])
    await skip_messages(subscription, [Skipped(second, 1), Skipped(second, 7)])
    with pytest.raises(InvalidPosition):
        await skip_messages(subscription, [Skipped(Position(1, 2))])
    client.flow(10)
    message = await client.expect("message")
    assert (message.message_id.entryId, list(message.ack_set)) == (0, [0b101])
    await client.hears_nothing("message")


async def test_statistics_tell_what_is_held_back(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await published_late(client)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    await arrivals(client, 1)
    topic = broker.topics.find(TopicName.parse(TOPIC))
    assert topic is not None
    told = topic.subscriptions["sub"].stats()
    assert (told["msgBacklog"], told["msgDelayed"], told["msgBacklogNoDelayed"]) == (3, 2, 1)
    await arrivals(client, 2)
    assert topic.subscriptions["sub"].stats()["msgDelayed"] == 0
