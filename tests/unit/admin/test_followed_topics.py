"""Our client where topics come and go: patterns, table views, ranges; with await and without."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.client import Client, MessageId
from magnetar.client.blocking import BlockingClient
from magnetar.client.consumer import Consumer
from magnetar.client.errors import AlreadyClosed, BrokerRefused, InvalidUse
from magnetar.client.topic_pattern import TopicPattern
from magnetar.naming import TopicName
from magnetar.protocol.ids import EARLIEST
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata
from tests.unit.admin.conftest import Platform
from tests.unit.broker.compaction.conftest import publish

BASE = "/admin/v2/persistent/public/default"


@pytest.fixture
async def client(platform: Platform) -> AsyncIterator[Client]:
    async with Client(platform.broker.service_url) as opened:
        yield opened


async def received(consumer: Consumer, count: int) -> list[bytes]:
    found: list[bytes] = []
    for _ in range(count):
        message = await consumer.receive(10)
        assert message is not None, f"only {found} came"
        consumer.acknowledge(message)
        found.append(message.data)
    return sorted(found)


@pytest.mark.parametrize("watching", [True, False], ids=["told", "polling"])
async def test_a_pattern_finds_what_is_there_and_what_comes_to_be(
    platform: Platform, client: Client, watching: bool
) -> None:
    await platform.publish("sensor-1", b"before")
    await platform.publish("other", b"never")
    await platform.http.put(f"{BASE}/sensor-2/partitions", json=2)
    # More repetitions than a broker evaluates: the client asks for lists instead.
    expression = "sensor-[0-9]+" if watching else "s*e*n*s*o*r*-[0-9]+"
    consumer = await client.subscribe(
        re.compile(expression), "s", initial="earliest", pattern_discovery_s=60.0 if watching else 0.05
    )
    assert await received(consumer, 1) == [b"before"]
    assert {link.topic.rpartition("/")[2] for link in consumer.links} == {
        "sensor-1", "sensor-2-partition-0", "sensor-2-partition-1",
    }  # fmt: skip
    await platform.publish("sensor-3", b"new", b"newer")
    await platform.publish("sensor-x", b"never")
    await platform.publish("sensor-2", b"partitioned")
    assert await received(consumer, 3) == [b"new", b"newer", b"partitioned"]
    assert (await platform.http.delete(f"{BASE}/sensor-3?force=true")).status_code == 204
    async with asyncio.timeout(10):
        while len(consumer.links) > 3:
            assert await consumer.receive(0.05) is None
    assert (await platform.http.get(f"{BASE}/sensor-3/stats")).status_code == 404, "it came to be again"
    await platform.publish("sensor-3", b"again")
    assert await received(consumer, 1) == [b"again"]
    assert bool(platform.broker.topic_lists.watchers) is watching
    await consumer.close()
    assert await client.topics("public/default")  # What was said before is dealt with.
    assert not platform.broker.topic_lists.watchers


async def test_what_came_of_a_topic_that_is_gone_can_be_acknowledged(
    platform: Platform, client: Client
) -> None:
    consumer = await client.subscribe(re.compile("gone-.*"), "s", type="failover", initial="earliest")
    await platform.publish("gone-1", b"x")
    message = await consumer.receive(10)
    assert message is not None
    assert (await platform.http.delete(f"{BASE}/gone-1?force=true")).status_code == 204
    async with asyncio.timeout(10):
        while consumer.links:
            assert await consumer.receive(0.05) is None
    consumer.acknowledge(message)
    consumer.acknowledge_cumulative(message.batch)
    consumer.negative_acknowledge(message)
    async with client.transaction() as transaction:
        with pytest.raises(AlreadyClosed):
            await consumer.acknowledge(message, transaction=transaction)
    await platform.publish("gone-2", b"y")
    assert await received(consumer, 1) == [b"y"]


async def test_a_pattern_may_match_nothing_yet(platform: Platform, client: Client) -> None:
    consumer = await client.subscribe(re.compile("persistent://public/default/late-.*"), "s")
    assert await consumer.receive(0.05) is None
    await platform.publish("late-1", b"first")
    assert await received(consumer, 1) == [b"first"]


def test_what_a_pattern_may_say() -> None:
    pattern = TopicPattern.parse(re.compile("public/default/a|b"))
    names = ["persistent://public/default/" + name for name in ("a", "b", "b-partition-3", "ab")]
    assert pattern.matching([*names, "non-persistent://public/default/a"]) == names[:3]
    assert TopicPattern.parse(re.compile("non-persistent://t/n/.*")).persistent is False
    assert TopicPattern.parse(re.compile("x.*")).namespace == "public/default"
    for wrong in ("a/b", "persistent://x", "ftp://a/b/c", "t.*/n/x"):
        with pytest.raises(InvalidUse):
            TopicPattern.parse(re.compile(wrong))


async def test_a_table_view_follows_its_topic(platform: Platform, client: Client) -> None:
    await platform.http.put(f"{BASE}/t/partitions", json=2)
    producer = await client.create_producer("t")
    await asyncio.gather(*(producer.send(b"%d" % each, key=f"k{each % 5}") for each in range(20)))
    await producer.send(None, key="k3")
    await producer.send(b"nobody's")
    view = await client.create_table_view("t")
    assert dict(view) == {"k0": b"15", "k1": b"16", "k2": b"17", "k4": b"19"}
    heard: list[tuple[str, bytes | None]] = []
    view.for_each_and_listen(lambda key, value: heard.append((key, value)))
    assert len(heard) == 4
    await producer.send(b"new", key="k9")
    await producer.send(None, key="k0")
    await view.refresh()
    assert ("k9", b"new") in heard
    assert ("k0", None) in heard
    assert sorted(view.keys()) == ["k1", "k2", "k4", "k9"]
    await view.close()
    assert view["k9"] == b"new"


async def test_a_table_view_goes_on_after_what_it_cannot_read_and_listeners_that_fail(
    platform: Platform, client: Client
) -> None:
    producer = await client.create_producer("t", compression="zlib")
    view = await client.create_table_view("t")
    heard: list[str] = []

    def fails(key: str, value: bytes | None) -> None:
        raise ValueError(key)

    view.listen(fails)
    view.listen(lambda key, value: heard.append(key))
    await producer.send(b"1", key="a")
    topic = await platform.broker.topics.get(TopicName.parse("t"), create=False)
    assert isinstance(topic, PersistentTopic)
    encrypted = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    encrypted.encryption_keys.add(key="k", value=b"v")
    await publish(topic, build_message(encrypted, b"secret"), 2)
    await producer.send(b"2", key="b")
    async with asyncio.timeout(10):
        await view.refresh()
    assert dict(view) == {"a": b"1", "b": b"2"}
    assert heard == ["a", "b"]


async def test_encrypted_batches_are_not_taken_for_unreadable_ones(
    platform: Platform, client: Client
) -> None:
    """Of a compacted topic, too: our client has no keys, but whoever carries entries on may."""
    consumer = await client.subscribe("t", "s", read_compacted=True)
    topic = await platform.broker.topics.get(TopicName.parse("t"), create=False)
    assert isinstance(topic, PersistentTopic)
    encrypted = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, num_messages_in_batch=2)
    encrypted.encryption_keys.add(key="k", value=b"v")
    await publish(topic, build_message(encrypted, b"secret"), 2)
    await platform.publish("t", b"next")
    first, second = await consumer.receive_batch(10), await consumer.receive_batch(10)
    assert first is not None
    assert bytes(first.raw[1]) == b"secret"
    assert second is not None
    assert second.payloads == [b"next"]


async def test_a_range_is_read_from_within_batches(platform: Platform, client: Client) -> None:
    producer = await client.create_producer("r")
    ids: list[MessageId] = []
    for start in range(0, 30, 10):
        await producer.send_batch_nowait([b"%d" % each for each in range(start, start + 10)])
        await producer.flush()
    reader = await client.create_reader("r", EARLIEST)
    while len(ids) < 30:
        message = await reader.read(5)
        assert message is not None
        ids.append(message.message_id)

    async def numbers(first: int, last: int) -> list[int]:
        return [int(each.data) async for each in client.read_range("r", ids[first], ids[last])]

    for first, last in ((0, 0), (0, 29), (3, 7), (8, 12), (19, 20), (29, 29)):
        assert await numbers(first, last) == list(range(first, last + 1))
    beyond = MessageId(ids[-1].ledger_id, ids[-1].entry_id + 5, -1)
    assert [int(each.data) async for each in client.read_range("r", ids[28], beyond)] == [28, 29]
    await platform.http.put(f"{BASE}/p/partitions", json=2)
    with pytest.raises(InvalidUse):
        await anext(client.read_range("p", EARLIEST, ids[0]))


async def test_all_of_it_without_await(platform: Platform) -> None:
    await platform.publish("b-1", b"one", b"two")

    def story() -> None:
        with BlockingClient(platform.broker.service_url) as client:
            consumer = client.subscribe(re.compile("b-.*"), "s", initial="earliest")
            first, second = consumer.receive(5), consumer.receive(5)
            assert first is not None
            assert second is not None
            ids = [first.message_id, second.message_id]
            assert [each.data for each in client.read_range("b-1", ids[0], ids[1])] == [b"one", b"two"]
            producer = client.create_producer("b-1")
            producer.send(b"v", key="k")
            view = client.create_table_view("b-1")
            assert dict(view) == {"k": b"v"}
            producer.send(b"w", key="k")
            view.refresh()
            assert view["k"] == b"w"
            view.close()

    await asyncio.to_thread(story)


async def test_a_pattern_in_no_namespace_is_refused_or_empty(client: Client) -> None:
    try:
        consumer = await client.subscribe(re.compile("none/such/.*"), "s")
    except BrokerRefused:
        return
    assert await consumer.receive(0.05) is None


async def test_nobody_watches_any_more_after_a_failed_or_a_short_subscription(
    platform: Platform, client: Client
) -> None:
    await platform.publish("w-1", b"x")
    first = await client.subscribe(re.compile("w-.*"), "s")
    with pytest.raises(BrokerRefused):
        await client.subscribe(re.compile("w-.*"), "s")
    assert await client.topics("public/default")  # What was said before is dealt with.
    assert len(platform.broker.topic_lists.watchers) == 1
    await first.close()
    await (await client.subscribe(re.compile("w-.*"), "s")).close()
    assert await client.topics("public/default")
    assert not platform.broker.topic_lists.watchers
