"""Habits of official clients that break brokers: each was somebody's bug report.

Source: the checklist of what commonly breaks real clients. What is tried elsewhere, frame by frame, in
`tests/unit/broker`, is not repeated; here stand the habits that only show when frames come in crowds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.settings import BrokerSettings
from magnetar.environment.clock import SystemClock
from magnetar.metadata.opening import open_store
from magnetar.policies.resources import Resources
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import CommandSubscribe, MessageIdData, MessageMetadata
from magnetar.security.authorizer import AllowAll
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient

TOPIC = "persistent://public/default/t"


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    store = await open_store("memory:")
    resources = Resources(store)
    broker = Broker(
        BrokerSettings(failover_delay_s=0.0),
        metadata=store,
        ledgers=MemoryLogs(),  # type: ignore[arg-type]  # It does what the contract says.
        resources=resources,
        authorizer=AllowAll(),
        clock=SystemClock(),
        random=random.Random(1),
    )
    port = await broker.start("127.0.0.1", 0)
    await resources.bootstrap("standalone", "http://127.0.0.1:8080", f"pulsar://127.0.0.1:{port}")
    yield broker
    await broker.stop()
    resources.close()
    await store.close()


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[RawClient]:
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    yield client
    await client.close()


async def test_sends_come_by_the_thousand_in_one_write(client: RawClient) -> None:
    await client.produce(TOPIC)
    for number in range(3000):
        client.send(b"x", number)
    receipts = [await client.expect("send_receipt") for _ in range(3000)]
    assert [each.sequence_id for each in receipts] == list(range(3000))


async def test_receipts_of_one_producer_are_in_order_though_some_are_duplicates(
    client: RawClient, broker: Broker
) -> None:
    """A receipt that overtakes makes clients drop the connection, and send everything again, for ever."""
    from magnetar.naming import TopicName
    from magnetar.policies.topic import TopicPolicies

    def enable(policies: TopicPolicies) -> TopicPolicies:
        return policies.model_copy(update={"deduplication_enabled": True})

    await broker.context.resources.update_topic_policies(TopicName.parse(TOPIC), enable)
    await client.produce(TOPIC, producer_name="p")
    client.send(b"x", 5)
    await client.expect("send_receipt")
    sent = [6, 3, 7, 5, 8]  # 3 and 5 are answered at once, 6, 7 and 8 after they are stored.
    for number in sent:
        client.send(b"x", number)
    receipts = [await client.expect("send_receipt") for _ in sent]
    assert [each.sequence_id for each in receipts] == sent
    nowhere = 2**64 - 1
    assert [each.message_id.entryId == nowhere for each in receipts] == [False, True, False, True, False]


async def test_one_refused_producer_costs_the_others_nothing(client: RawClient) -> None:
    await client.produce(TOPIC, 1, producer_name="x")
    assert (await client.produce(TOPIC, 2, producer_name="x")).error
    assert (await client.produce("persistent://no/such/topic", 3)).error
    client.send(b"x", 1)
    await client.expect("send_receipt")


async def test_many_producers_and_consumers_share_one_connection(client: RawClient) -> None:
    topics = [f"{TOPIC}-{number}" for number in range(20)]
    for number, topic in enumerate(topics):
        await client.produce(topic, number)
        await client.subscribe(topic, "s", number, permits=100)
    for number in range(20):
        client.send(b"%d" % number, 0, number)
    heard = {(await client.expect("message")).consumer_id for _ in range(20)}
    assert heard == set(range(20))


async def test_a_batch_half_acknowledged_costs_half_its_permits(client: RawClient) -> None:
    """The client gives back permits for the members it skips; were they taken too, it would end up with too many."""
    await client.produce(TOPIC)
    client.send_batch([b"x"] * 10, 0)
    await client.expect("send_receipt")
    await client.subscribe(TOPIC, kind=CommandSubscribe.Shared, permits=10)
    await client.expect("message")
    client.ack((1, 0), ack_set=[0b11111])
    client.say("redeliverUnacknowledgedMessages", consumer_id=1)
    await client.hears_nothing("message")
    client.flow(5)
    assert list((await client.expect("message")).ack_set) == [0b11111]
    client.send_batch([b"x"] * 3, 10)
    await client.hears_nothing("message")  # Exactly none were left.
    client.flow(1)
    await client.expect("message")


async def test_java_sends_a_batch_of_one_as_no_batch_and_others_as_a_batch(client: RawClient) -> None:
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=3)
    client.send(b"plain", 0)
    client.send_batch([b"batch of one"], 1)
    client.send(b"third", 2)
    for _ in range(3):
        await client.expect("message")
    answer = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert answer.last_message_id.batch_index == -1
    client.send_batch([b"batch of one"], 3)
    for _ in range(4):
        await client.expect("send_receipt")
    answer = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert answer.last_message_id.batch_index == 0


async def test_permits_do_not_outlive_a_consumer(client: RawClient) -> None:
    await client.produce(TOPIC)
    await client.subscribe(TOPIC, permits=100)
    client.say("close_consumer", consumer_id=1, request_id=50)
    await client.expect("success")
    await client.subscribe(TOPIC)
    client.send()
    await client.hears_nothing("message")


async def test_subscribing_while_the_cursor_moves_waits_instead_of_failing(client: RawClient) -> None:
    await client.produce(TOPIC)
    for number in range(5):
        client.send(b"%d" % number, number)
        await client.expect("send_receipt")
    await client.subscribe(TOPIC, permits=10)
    for _ in range(5):
        await client.expect("message")
    client.say("seek", consumer_id=1, request_id=60, message_id=MessageIdData(ledgerId=1, entryId=3))
    subscribing = asyncio.create_task(client.subscribe(TOPIC, consumer_id=2))
    assert (await client.expect("success", where=lambda body: body.request_id == 60)).request_id == 60
    assert not hasattr(await subscribing, "error")
    client.flow(10, 2)
    assert (await client.expect("message")).message_id.entryId == 3


async def test_what_clients_write_into_metadata_is_kept_byte_for_byte(client: RawClient) -> None:
    """Fields this version does not know included: a message written anew would lose them."""
    await client.produce(TOPIC)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1).SerializeToString()
    unknown = b"\xf2\x3f\x05later"  # Field 1022, of a version to come.
    plain = build_message(MessageMetadata.FromString(metadata), b"hello")
    assert build_message(MessageMetadata.FromString(metadata + unknown), b"hello") != plain
    message = build_message(MessageMetadata.FromString(metadata + unknown), b"hello")
    client.send_raw(message, 0)
    await client.subscribe(TOPIC, permits=1)
    _, data = await client.expect_frame("message")
    assert data == message
