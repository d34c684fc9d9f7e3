"""What a broker does while it cannot know whether its bundles are still its own."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.errors import ServiceNotReady
from magnetar.broker.lease import Lease
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import CommandLookupTopicResponse, CommandSubscribe, ServerError
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.leased_store import LeasedStore
from tests.unit.broker.memory_log import MemoryLog, MemoryLogs
from tests.unit.broker.raw_client import RawClient, until

TOPIC = "persistent://public/default/leased"
NAME = TopicName.parse(TOPIC)


class Hand:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return round(self.now * 1000)


@pytest.fixture
def store() -> LeasedStore:
    return LeasedStore()


@pytest.fixture
async def leased(start_broker: StartBroker, store: LeasedStore) -> Broker:
    return await start_broker(store=store, lookup_wait_s=2.0, parked_requests_max=2)


async def test_the_lease_is_sure_until_its_instant(store: LeasedStore) -> None:
    clock = Hand()
    lease = Lease(store, clock)
    store.lease_until = 5.0
    clock.now = 4.99
    assert lease.sure
    clock.now = 5.0
    assert not lease.sure
    store.lease_until = -math.inf
    assert not lease.sure


async def test_whoever_asks_to_be_told_is_told_once(store: LeasedStore) -> None:
    clock = Hand()
    clock.now = 10.0
    lease = Lease(store, clock)
    store.lease_until = 10.0
    told: list[None] = []

    def tell() -> None:
        told.append(None)

    for _ in range(3):
        lease.when_sure(tell)
    assert not await lease.until_sure(0.05)
    assert told == []
    store.lease_until = 11.0
    assert await lease.until_sure(5.0)
    await until(lambda: told == [None])
    assert lease.doubts == 1


async def test_in_doubt_publishing_goes_on_and_dispatch_waits(
    leased: Broker, store: LeasedStore, connect: Connect
) -> None:
    client: RawClient = await connect(to=leased)
    await client.subscribe(TOPIC, permits=10)
    await client.produce(TOPIC)
    client.send(b"before", 0)
    assert [payload[-6:] for _, payload in await client.messages(1)] == [b"before"]
    store.lease_until = 0.0
    client.send(b"during", 1)
    await client.expect("send_receipt", where=lambda receipt: receipt.sequence_id == 1)
    await client.hears_nothing("message")
    store.lease_until = math.inf
    assert [payload[-6:] for _, payload in await client.messages(1)] == [b"during"]


async def test_what_was_queued_before_the_lease_ran_out_is_not_sent_after_it(
    leased: Broker, store: LeasedStore, connect: Connect
) -> None:
    """As after a stop between dispatch and the write at the end of the loop's turn."""
    client: RawClient = await connect(to=leased)
    await client.subscribe(TOPIC)
    (connection,) = leased.connections
    connection.send_parts((commands.message(1, 1, 0, 3), b"old"))
    store.lease_until = 0.0
    assert await client.is_closed()
    assert not [frame for frame in client._frames if frame.command.HasField("message")]


async def test_a_receipt_waits_for_the_lease(leased: Broker, store: LeasedStore, connect: Connect) -> None:
    client: RawClient = await connect(to=leased)
    await client.subscribe(TOPIC, permits=10)
    await client.produce(TOPIC)
    client.send(b"m", 0)
    ((message, _),) = await client.messages(1)
    store.lease_until = 0.0
    client.ack((message.message_id.ledgerId, message.message_id.entryId), request_id=7)
    await client.hears_nothing("ackResponse")
    store.lease_until = math.inf
    answer = await client.expect("ackResponse")
    assert answer.request_id == 7
    assert not answer.HasField("error")


async def test_nothing_of_a_lost_bundle_is_delivered_or_receipted(
    leased: Broker, store: LeasedStore, connect: Connect
) -> None:
    """It was stopped, and wakes: its session is another one, its lease good, its topics not yet closed."""
    client: RawClient = await connect(to=leased)
    await client.subscribe(TOPIC, permits=1)
    await client.produce(TOPIC)
    client.send(b"m", 0)
    ((message, _),) = await client.messages(1)
    store.lease_until = 0.0
    client.ack((message.message_id.ledgerId, message.message_id.entryId), request_id=7)
    client.send(b"n", 1)
    client.flow(10)
    await client.expect("send_receipt", where=lambda receipt: receipt.sequence_id == 1)
    bundle = await leased.topics.bundle(NAME)
    leased.topics.lose_bundle(bundle)
    store.lease_until = math.inf
    answer = await client.expect("ackResponse")
    assert answer.error == ServerError.ServiceNotReady
    await client.hears_nothing("message")


async def test_a_topic_of_a_lost_bundle_closes_at_once_though_writes_hang(
    leased: Broker, store: LeasedStore, connect: Connect, logs: MemoryLogs
) -> None:
    client: RawClient = await connect(to=leased)
    await client.subscribe(TOPIC, permits=1)
    await client.produce(TOPIC)
    logs.logs[NAME.managed_ledger_name].hold_appends = True
    client.send(b"hangs", 0)
    bundle = await leased.topics.bundle(NAME)
    topic = leased.topics.find(NAME)
    assert topic is not None
    await until(lambda: any(producer.pending for producer in topic.producers.values()))
    await store.delete(f"/namespace/{bundle}")
    await client.expect("close_producer")
    await client.expect("close_consumer")


async def test_lookups_are_parked_and_answered_when_the_lease_is_back(
    leased: Broker, store: LeasedStore, connect: Connect
) -> None:
    client: RawClient = await connect(to=leased)
    store.lease_until = 0.0
    client.say("lookupTopic", topic=TOPIC, request_id=1)
    client.say("getTopicsOfNamespace", namespace="public/default", request_id=2)
    await client.hears_nothing("lookupTopicResponse", "getTopicsOfNamespaceResponse")
    client.say("lookupTopic", topic=TOPIC, request_id=3)  # More than may wait.
    refused = await client.expect("lookupTopicResponse")
    assert (refused.request_id, refused.error) == (3, ServerError.TooManyRequests)
    store.lease_until = math.inf
    answer = await client.expect("lookupTopicResponse")
    assert (answer.request_id, answer.response) == (1, CommandLookupTopicResponse.Connect)
    assert (await client.expect("getTopicsOfNamespaceResponse")).request_id == 2


async def test_a_lookup_is_refused_when_the_doubt_lasts(start_broker: StartBroker, connect: Connect) -> None:
    store = LeasedStore()
    broker = await start_broker(store=store, lookup_wait_s=0.05)
    client: RawClient = await connect(to=broker)
    store.lease_until = 0.0
    client.say("lookupTopic", topic=TOPIC, request_id=1)
    refused = await client.expect("lookupTopicResponse")
    assert refused.error == ServerError.MetadataError
    assert broker.parking.parked == 0


async def test_a_shared_subscription_loses_nothing_over_a_doubt(
    leased: Broker, store: LeasedStore, connect: Connect
) -> None:
    client: RawClient = await connect(to=leased)
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=100)
    await client.produce(TOPIC)
    for number in range(20):
        store.lease_until = 0.0 if number % 3 == 0 else math.inf
        client.send(b"%02d" % number, number)
        await client.expect("send_receipt")
        await asyncio.sleep(0)
    store.lease_until = math.inf
    assert [payload[-2:] for _, payload in await client.messages(20)] == [b"%02d" % n for n in range(20)]


async def test_a_topic_opened_before_its_bundle_was_lost_and_had_again_is_not_used(
    leased: Broker, store: LeasedStore, logs: MemoryLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another may have owned it, and written, between the two."""
    open_log = logs.open
    reached, opened = asyncio.Event(), asyncio.Event()

    async def open_late(*arguments: Any, **options: Any) -> MemoryLog:
        log = await open_log(*arguments, **options)
        reached.set()
        await opened.wait()
        return log

    monkeypatch.setattr(logs, "open", open_late)
    loading = asyncio.create_task(leased.topics.get(NAME, create=True))
    await reached.wait()
    bundle = await leased.topics.bundle(NAME)
    before = await leased.ownership.require(bundle)
    store.session.expire()
    after = await leased.ownership.require(bundle)
    assert after.epoch > before.epoch
    opened.set()
    with pytest.raises(ServiceNotReady, match="was lost"):
        await loading
    assert leased.topics.find(NAME) is None
    assert await leased.topics.get(NAME, create=False)
