"""Loading, creation by policy, unloading, deletion, ownership."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.errors import (
    NotAllowed,
    ServiceNotReady,
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicBusy,
    TopicExists,
    TopicNotFound,
)
from magnetar.broker.namespaces.bundles import Bundle
from magnetar.broker.ownership import BrokerAddress, Ownership
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.managed_ledger.errors import StorageUnavailable
from magnetar.managed_ledger.position import EARLIEST, Position
from magnetar.metadata.opening import open_store
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.topic import TopicPolicies
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient, until

NAME = TopicName.parse("t")
TOPIC = str(NAME)


async def persistent(broker: Broker, name: TopicName = NAME) -> PersistentTopic:
    topic = await broker.topics.get(name, create=True)
    assert isinstance(topic, PersistentTopic)
    return topic


async def fill(connect: Connect, count: int) -> RawClient:
    client = await connect()
    await client.produce(TOPIC, 100)
    for number in range(count):
        client.send(b"m%d" % number, number, 100)
        await client.expect("send_receipt")
    return client


async def test_policy_decides_whether_topics_make_themselves(start_broker: StartBroker) -> None:
    broker = await start_broker(PolicyDefaults(auto_topic_creation=False))
    with pytest.raises(TopicNotFound):
        await broker.topics.get(NAME, create=True)
    with pytest.raises(TopicNotFound):
        await broker.topics.partitions(NAME, create=True)
    await broker.topics.create(NAME)
    assert await broker.topics.partitions(NAME, create=False) == 0
    with pytest.raises(TopicExists):
        await broker.topics.create(NAME)


async def test_policy_may_make_new_topics_partitioned(start_broker: StartBroker) -> None:
    broker = await start_broker(PolicyDefaults(auto_topic_type="partitioned", auto_topic_partitions=3))
    with pytest.raises(TopicNotFound):
        await broker.topics.partitions(NAME, create=False)
    counts = await asyncio.gather(*(broker.topics.partitions(NAME, create=True) for _ in range(3)))
    assert counts == [3, 3, 3]
    assert await broker.topics.partitions(NAME.partition_name(1), create=True) == 0
    await broker.topics.get(NAME.partition_name(2), create=True)
    with pytest.raises(TopicNotFound):
        await broker.topics.get(NAME.partition_name(3), create=True)
    with pytest.raises(NotAllowed):
        await broker.topics.get(NAME, create=True)


async def test_an_unloaded_topic_is_loaded_again_as_it_was(
    connect: Connect, broker: Broker, logs: MemoryLogs
) -> None:
    client = await fill(connect, 3)
    await client.subscribe(TOPIC, permits=10)
    await client.messages(3)
    client.ack((1, 0), request_id=1)
    await client.expect("ackResponse")
    await broker.topics.unload(NAME)
    await client.expect("close_consumer")
    await client.expect("close_producer")
    await client.subscribe(TOPIC, consumer_id=2)
    client.flow(10, 2)
    assert len(await client.messages(2)) == 2
    assert logs.opens == 2


async def test_who_asks_during_an_unload_waits_for_it(connect: Connect, broker: Broker) -> None:
    await fill(connect, 1)
    unloading = asyncio.create_task(broker.topics.unload(NAME))
    await asyncio.sleep(0)
    topic = await broker.topics.get(NAME, create=False)
    assert not topic.closing
    await unloading


async def test_messages_under_way_are_stored_before_an_unload(
    connect: Connect, broker: Broker, logs: MemoryLogs
) -> None:
    client = await fill(connect, 1)
    log = logs.logs[NAME.managed_ledger_name]
    log.hold_appends = True
    client.send(b"late", 5, 100)
    topic = await persistent(broker)
    await until(lambda: any(producer.pending for producer in topic.producers.values()))
    unloading = asyncio.create_task(broker.topics.unload(NAME))
    await asyncio.sleep(0)
    log.release_appends()
    await unloading
    assert (await client.expect("send_receipt", "close_producer")).sequence_id == 5


async def test_delete_asks_who_is_connected(connect: Connect, broker: Broker, logs: MemoryLogs) -> None:
    client = await fill(connect, 1)
    with pytest.raises(TopicBusy):
        await broker.topics.delete(NAME)
    await broker.topics.delete(NAME, force=True)
    await client.expect("close_producer")
    assert not logs.logs
    assert not logs.finished
    with pytest.raises(TopicNotFound):
        await broker.topics.delete(NAME)
    assert logs.finished == [NAME.managed_ledger_name], "the first try may have been cut short by a kill"


async def test_subscriptions_by_hand(connect: Connect, broker: Broker) -> None:
    client = await fill(connect, 5)
    topic = await persistent(broker)
    made = await topic.create_subscription("from-2", Position(1, 2), properties={"k": "v"})
    assert made.cursor.backlog == 3
    assert (await topic.create_subscription("all", EARLIEST)).cursor.backlog == 5
    assert (await topic.create_subscription("none")).cursor.backlog == 0
    with pytest.raises(SubscriptionExists):
        await topic.create_subscription("all")
    assert made.stats()["subscriptionProperties"] == {"k": "v"}
    await made.set_properties({"k": "w"})
    assert made.stats()["subscriptionProperties"] == made.cursor.cursor_properties == {"k": "w"}
    every = topic.subscriptions["all"]
    assert (await every.peek(2)).position == Position(1, 1)
    assert await every.skip(2) == 2
    assert (await every.peek(1)).position == Position(1, 2)
    assert await every.expire_up_to(Position(1, 2)) == 1
    await every.skip_all()
    assert every.cursor.backlog == 0
    await client.subscribe(TOPIC, "all")
    with pytest.raises(SubscriptionBusy):
        await topic.delete_subscription("all")
    await topic.delete_subscription("all", force=True)
    await client.expect("close_consumer")
    assert "all" not in topic.subscriptions


@pytest.mark.parametrize("forgotten", [False, True])
async def test_a_deletion_of_a_subscription_that_failed_can_be_asked_for_again(
    connect: Connect, broker: Broker, logs: MemoryLogs, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    await fill(connect, 1)
    topic = await persistent(broker)
    await topic.create_subscription("s", EARLIEST)

    async def fails(name: str) -> None:
        if forgotten:  # As a log does it: what is stored is there still.
            logs.logs[NAME.managed_ledger_name].cursors.pop(name)
        raise StorageUnavailable("log", "not now")

    with monkeypatch.context() as unavailable:
        unavailable.setattr(topic.ledger, "delete_cursor", fails)
        with pytest.raises(StorageUnavailable):
            await topic.delete_subscription("s")
    assert "s" not in topic.subscriptions
    await topic.delete_subscription("s")
    assert "s" not in topic.ledger.cursors
    with pytest.raises(SubscriptionNotFound):
        await topic.delete_subscription("s")


async def test_expiry_by_age(connect: Connect, broker: Broker, logs: MemoryLogs) -> None:
    client = await fill(connect, 0)
    topic = await persistent(broker)
    log = logs.logs[NAME.managed_ledger_name]
    subscription = await topic.create_subscription("s", EARLIEST)
    now = topic.clock.time_ms()
    for number, age_s in enumerate((100, 50, 1)):
        log.now_ms = now - age_s * 1000
        client.send(b"x", number, 100)
        await client.expect("send_receipt")
    assert await subscription.expire(60) == 1
    assert await subscription.expire(60) == 0
    assert await subscription.expire(0) == 2
    assert subscription.stats()["totalMsgExpired"] == 3


async def test_policies_are_followed_while_a_topic_is_loaded(connect: Connect, broker: Broker) -> None:
    client = await fill(connect, 1)
    topic = await persistent(broker)
    assert topic.stats()["deduplicationStatus"] == "Disabled"

    def enable(policies: TopicPolicies) -> TopicPolicies:
        return policies.model_copy(update={"deduplication_enabled": True})

    await broker.context.resources.update_topic_policies(NAME, enable)
    await until(lambda: topic.deduplication.enabled)
    client.send(b"new", 10, 100)
    await client.expect("send_receipt")
    client.send(b"again", 10, 100)
    assert (await client.expect("send_receipt")).message_id.entryId == 2**64 - 1


async def test_stats_have_pulsars_shape(connect: Connect, broker: Broker) -> None:
    client = await fill(connect, 3)
    await client.subscribe(TOPIC, "s", permits=10, consumer_name="me")
    await client.messages(3)
    broker.tick()
    told = (await persistent(broker)).stats()
    assert told["msgInCounter"] == 3
    assert told["msgRateIn"] > 0
    assert told["publishers"][0]["address"].startswith("/127.0.0.1:")
    assert told["publishers"][0]["accessMode"] == "Shared"
    subscription = told["subscriptions"]["s"]
    assert subscription["type"] == "Exclusive"
    assert subscription["msgBacklog"] == 3
    assert subscription["consumers"][0]["consumerName"] == "me"
    assert subscription["consumers"][0]["lastConsumedFlowTimestamp"] > 0
    names = {sample.name for sample in broker.metric_samples()}
    assert {
        "pulsar_in_messages_total",
        "pulsar_subscription_back_log",
        "pulsar_storage_write_latency_le_1",
    } <= names


async def test_a_fenced_log_is_loaded_anew_while_its_bundle_is_ours(
    connect: Connect, broker: Broker, logs: MemoryLogs
) -> None:
    client = await fill(connect, 1)
    logs.logs[NAME.managed_ledger_name].fence()
    await client.expect("close_producer")
    await until(lambda: broker.topics.loads == 2)  # By itself: the bundle is still ours.
    assert broker.topics.find(NAME) is not None


async def test_nothing_is_made_while_the_broker_shuts_down(broker: Broker) -> None:
    """It would be served after the bundle was given back."""
    await broker.topics.close_all()
    with pytest.raises(ServiceNotReady, match="shutting down"):
        await broker.topics.create(NAME)
    assert broker.topics.find(NAME) is None


async def test_a_deletion_is_not_mistaken_for_the_unloading_that_came_before_it(
    connect: Connect, broker: Broker, logs: MemoryLogs
) -> None:
    """Both want to close the topic the moment it is loaded; only one of them deletes it."""
    await fill(connect, 1)
    await broker.topics.unload(NAME)

    async def unload_when_loaded() -> None:
        await broker.topics.get(NAME, create=False)
        await broker.topics.unload(NAME)

    unloading = asyncio.get_running_loop().create_task(unload_when_loaded())
    await asyncio.sleep(0)  # It comes first.
    await broker.topics.delete(NAME, force=True)
    await unloading
    assert broker.topics.find(NAME) is None
    assert NAME.managed_ledger_name not in logs.logs


async def test_two_brokers_share_bundles() -> None:
    store = await open_store("memory:")
    lost: list[Bundle] = []
    address = BrokerAddress("a", "pulsar://a:1", "http://a:2", "x")
    bundle = Bundle(NamespaceName("public", "default"), 0, 0xFFFF_FFFF)
    ours = Ownership(store, address, lost.append)
    owned = await ours.require(bundle)
    theirs = Ownership(store, BrokerAddress("b", "pulsar://b:1", "http://b:2", "y"), lost.append)
    assert await theirs.owner(bundle) == address
    with pytest.raises(ServiceNotReady):
        await theirs.require(bundle)
    await ours.release(bundle)
    later = await theirs.require(bundle)
    assert later.epoch > owned.epoch
    await store.delete(f"/namespace/{bundle}")
    await until(lambda: lost == [bundle])
    assert not theirs.holds(bundle)
    await store.close()


async def test_a_lost_bundle_takes_its_topics_along(connect: Connect, broker: Broker) -> None:
    client = await fill(connect, 1)
    bundle = await broker.topics.bundle(NAME)
    await broker.context.metadata.delete(f"/namespace/{bundle}")
    await client.expect("close_producer")
    await client.produce(TOPIC, 101)
    assert broker.ownership.holds(bundle)


async def test_the_last_message_a_broker_takes_is_answered_before_it_stops(
    start_broker: StartBroker, logs: MemoryLogs
) -> None:
    broker = await start_broker()
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await client.produce(TOPIC)
    log = logs.logs[NAME.managed_ledger_name]
    log.hold_appends = True
    client.send(b"last", 1)
    topic = await persistent(broker)
    await until(lambda: any(producer.pending for producer in topic.producers.values()))
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    log.release_appends()
    assert (await client.expect("send_receipt")).sequence_id == 1
    await stopping
    assert await client.is_closed()
    await client.close()
