"""The official client under asyncio: the same core, driven by callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pulsar
import pytest
from pulsar.asyncio import Client, Producer, PulsarException

from tests.compatibility.conftest import EARLIEST, SHARED, Platform

pytestmark = pytest.mark.integration

WAIT_S = 5.0


@pytest.fixture
async def aclient(platform: Platform) -> AsyncIterator[Client]:
    """A client of the test's own loop."""
    client = Client(platform.service_url, operation_timeout_seconds=5)
    yield client
    await client.close()


async def send(producer: Producer, count: int) -> list[pulsar.MessageId]:
    return [await producer.send(b"%d" % number) for number in range(count)]


async def test_sends_that_run_together_make_one_batch(aclient: Client, topic: str) -> None:
    producer = await aclient.create_producer(topic, producer_name="mine")
    assert (producer.topic(), producer.producer_name()) == (topic, "mine")
    ids = await asyncio.gather(*(producer.send(b"%d" % number) for number in range(5)))
    assert [each.batch_index() for each in ids] == list(range(5))
    assert len({each.entry_id() for each in ids}) == 1
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    async with asyncio.timeout(WAIT_S):
        assert [(await consumer.receive()).data() for _ in range(5)] == [b"%d" % n for n in range(5)]


async def test_refusals_have_their_reason(aclient: Client, topic: str) -> None:
    with pytest.raises(PulsarException) as refused:
        await aclient.create_producer("nobody/nothing/t")
    assert refused.value.error() == pulsar.Result.TopicNotFound
    producer = await aclient.create_producer(topic)
    with pytest.raises(PulsarException) as refused:
        await producer.send(bytes(10 * 1024 * 1024))
    assert refused.value.error() == pulsar.Result.MessageTooBig
    await producer.close()
    with pytest.raises(PulsarException) as refused:
        await producer.close()
    assert refused.value.error() == pulsar.Result.AlreadyClosed


async def test_acknowledgements_are_remembered(aclient: Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", consumer_type=SHARED)
    producer = await aclient.create_producer(topic)
    await send(producer, 5)
    async with asyncio.timeout(WAIT_S):
        messages = [await consumer.receive() for _ in range(5)]
    for message in messages[::2]:
        await consumer.acknowledge(message)
    await consumer.close()
    consumer = await aclient.subscribe(topic, "s", consumer_type=SHARED)
    async with asyncio.timeout(WAIT_S):
        assert [(await consumer.receive()).data() for _ in range(2)] == [b"1", b"3"]


async def test_seeks_by_message_and_by_time(aclient: Client, topic: str) -> None:
    producer = await aclient.create_producer(topic)
    ids = []
    for number in range(5):
        await asyncio.sleep(0.003)  # No two are of the same millisecond.
        ids.append(await producer.send(b"%d" % number))
    consumer = await aclient.subscribe(topic, "s", initial_position=EARLIEST)
    async with asyncio.timeout(WAIT_S):
        times = [(await consumer.receive()).publish_timestamp() for _ in ids]
        await consumer.seek(ids[2])
        assert (await consumer.receive()).data() == b"3"
        await consumer.seek(times[1])
        assert (await consumer.receive()).data() == b"1"
        reader = await aclient.create_reader(topic, pulsar.MessageId.latest)
        assert not await reader.has_message_available()
        await reader.seek(times[4])
        assert await reader.has_message_available()
        assert (await reader.read_next()).data() == b"4"
        assert not await reader.has_message_available()


async def test_several_topics_by_list_and_by_pattern(aclient: Client, topic: str) -> None:
    topics = [f"{topic}-{number}" for number in range(2)]
    producers = [await aclient.create_producer(each) for each in topics]
    consumer = await aclient.subscribe(topics, "list")
    for number, producer in enumerate(producers):
        await producer.send(b"%d" % number)
    pattern = f"{topic.partition('://')[2]}-.*"
    other = await aclient.subscribe(pattern, "pattern", is_pattern_topic=True, initial_position=EARLIEST)
    async with asyncio.timeout(WAIT_S):
        for each in (consumer, other):
            assert {(await each.receive()).data() for _ in topics} == {b"0", b"1"}


async def test_the_last_message_can_be_asked_for_and_acknowledged(aclient: Client, topic: str) -> None:
    consumer = await aclient.subscribe(topic, "s", consumer_type=SHARED)
    producer = await aclient.create_producer(topic)
    for number in range(3):
        await producer.send(b"x")
        last = await consumer.get_last_message_id()
        assert last.entry_id() == number
        await consumer.acknowledge(last)
    await consumer.unsubscribe()
    await (await aclient.subscribe(topic, "s")).close()
