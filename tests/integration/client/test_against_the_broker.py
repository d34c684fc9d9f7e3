"""Our client and our broker on its real log: every feature, cut connections, and a restart in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.client import Client, DeadLetterPolicy, MessageId, OutgoingMessage
from magnetar.client.consumer import Consumer
from magnetar.client.producer import DUPLICATE
from magnetar.naming import TopicName
from magnetar.policies.effective import PolicyDefaults
from tests.integration.broker.conftest import BrokerUnderTest
from tests.integration.client.chaos_proxy import ChaosProxy

pytestmark = pytest.mark.integration


async def drain(consumer: Consumer, count: int) -> list[bytes]:
    received: list[bytes] = []
    while len(received) < count:
        batch = await consumer.receive_batch(10)
        assert batch is not None, f"only {len(received)} of {count} came"
        received += batch.payloads
        consumer.acknowledge(batch)
    return received


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
async def test_batches_come_back_with_their_index(client: Client, topic: str, compression: str) -> None:
    producer = await client.create_producer(topic, compression=compression)  # type: ignore[arg-type]
    payloads = [b"%d" % number * 20 for number in range(100)]
    await producer.send_batch_nowait(payloads[:60])
    await asyncio.gather(*(producer.send_nowait(payload, key="k") for payload in payloads[60:]))
    consumer = await client.subscribe(topic, "s", initial="earliest")
    indexes: list[int | None] = []
    received: list[bytes] = []
    while len(received) < 100:
        batch = await consumer.receive_batch(10)
        assert batch is not None
        assert batch.broker_timestamp is not None
        indexes += [message.index for message in batch.messages]
        received += [message.data for message in batch.messages]
    assert received == payloads
    assert indexes == list(range(100))


async def test_acknowledged_members_of_a_batch_stay_away(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(topic, "s", type="shared")
    await producer.send_batch_nowait([b"%d" % number for number in range(70)])
    batch = await consumer.receive_batch(10)
    assert batch is not None
    for message in batch.messages[::2]:
        consumer.acknowledge(message)
    await consumer.flush_acknowledgements()
    consumer.redeliver_unacknowledged()
    again = await consumer.receive_batch(10)
    assert again is not None
    assert again.payloads == [b"%d" % number for number in range(1, 70, 2)]
    assert again.redelivery_count == 1
    for message in again.messages:
        consumer.acknowledge(message)
    await consumer.flush_acknowledgements()
    consumer.redeliver_unacknowledged()
    assert await consumer.receive_batch(0.2) is None


async def test_poison_is_delivered_as_often_as_allowed_and_then_set_aside(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    consumer = await client.subscribe(
        topic,
        "s",
        type="shared",
        negative_ack_delay_s=0.05,
        dead_letter=DeadLetterPolicy(max_redeliver_count=2),
    )
    letters = await client.subscribe(f"{topic}-s-DLQ", "letters", initial="earliest")
    await producer.send(b"poison")
    deliveries = 0
    while (message := await consumer.receive(1.0)) is not None:
        deliveries += 1
        consumer.negative_acknowledge(message)
    assert deliveries == 3
    letter = await letters.receive(10)
    assert letter is not None
    assert letter.data == b"poison"
    assert letter.properties["REAL_TOPIC"] == topic


async def test_seeking_by_message_and_by_time(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    first = await producer.send_batch_nowait([b"0", b"1", b"2"])
    await asyncio.sleep(0.02)
    second = await producer.send_batch_nowait([b"3", b"4"])
    consumer = await client.subscribe(topic, "s", initial="earliest")
    assert await drain(consumer, 5) == [b"0", b"1", b"2", b"3", b"4"]
    await consumer.seek(first[1])
    assert await drain(consumer, 3) == [b"2", b"3", b"4"]
    await consumer.seek(first[1], inclusive=True)
    batch = await consumer.receive_batch(10)
    assert batch is not None
    assert batch.payloads == [b"1", b"2"]
    at = (await consumer.receive_batch(10)).broker_timestamp  # type: ignore[union-attr]
    assert at is not None
    reader = await client.create_reader(topic, MessageId.EARLIEST)
    await reader.seek(at)
    assert await reader.has_message_available()
    message = await reader.read(10)
    assert message is not None
    assert (message.data, message.message_id) == (b"3", second[0])
    await consumer.seek(at)
    assert await drain(consumer, 2) == [b"3", b"4"]
    await consumer.seek(MessageId.LATEST)
    assert await consumer.receive_batch(0.1) is None
    await producer.send(b"5")
    assert await drain(consumer, 1) == [b"5"]


async def test_a_reader_comes_to_the_end_and_goes_on(client: Client, topic: str) -> None:
    reader = await client.create_reader(topic, MessageId.EARLIEST)
    assert not await reader.has_message_available()
    latest = await client.create_reader(topic, MessageId.LATEST)
    producer = await client.create_producer(topic)
    await producer.send_batch_nowait([b"%d" % number for number in range(10)])
    for each in (reader, latest):
        found = []
        while await each.has_message_available():
            message = await each.read(10)
            assert message is not None
            found.append(message.data)
        assert found == [b"%d" % number for number in range(10)]
    assert (await reader.get_last_message_id()).batch_index == 9


async def test_partitions_keys_and_several_consumers(
    client: Client, platform: BrokerUnderTest, topic: str
) -> None:
    name = TopicName.parse(topic)
    platform.do(lambda: platform.resources.create_partitioned(name, 3, {}))
    assert len(await client.partitions(topic)) == 3
    producer = await client.create_producer(topic)
    consumers = [await client.subscribe(topic, "s", type="shared", initial="earliest") for _ in range(2)]
    futures = [producer.send_nowait(b"%d" % number, key=f"k{number % 7}") for number in range(200)]
    ids = await asyncio.gather(*futures)
    assert {message_id.partition for message_id in ids} == {0, 1, 2}
    received: list[bytes] = []
    while len(received) < 200:
        for consumer in consumers:
            batch = await consumer.receive_batch(0.05)
            if batch is not None:
                received += batch.payloads
                consumer.acknowledge(batch)
    assert sorted(received, key=int) == [b"%d" % number for number in range(200)]
    await asyncio.gather(*(consumer.flush_acknowledgements() for consumer in consumers))


async def test_failover_hands_the_subscription_on(client: Client, topic: str) -> None:
    producer = await client.create_producer(topic)
    first = await client.subscribe(topic, "s", type="failover", consumer_name="a")
    second = await client.subscribe(topic, "s", type="failover", consumer_name="b")
    await producer.send_batch_nowait([b"0", b"1"])
    active, passive = first, second
    batch = await active.receive_batch(1.0)
    if batch is None:
        active, passive = second, first
        batch = await active.receive_batch(5)
    assert batch is not None
    active.acknowledge_cumulative(batch)
    await producer.send(b"2")
    await active.close()
    assert await drain(passive, 1) == [b"2"]


async def test_the_end_of_a_terminated_topic(client: Client, platform: BrokerUnderTest, topic: str) -> None:
    producer = await client.create_producer(topic)
    await producer.send_batch_nowait([b"0", b"1"])
    consumer = await client.subscribe(topic, "s", initial="earliest")
    reader = await client.create_reader(topic, MessageId.EARLIEST)

    async def terminate() -> None:
        loaded = await platform.broker.topics.get(TopicName.parse(topic), create=False)
        assert isinstance(loaded, PersistentTopic)
        await loaded.terminate()

    platform.do(terminate)
    assert await drain(consumer, 2) == [b"0", b"1"]
    await consumer.flush_acknowledgements()
    async with asyncio.timeout(10):
        await consumer.ended.wait()
        while not reader.ended.is_set():
            await reader.read_batch(0.1)
    assert await consumer.receive_batch() is None


async def test_chunks_pass_through(platform: BrokerUnderTest, topic: str) -> None:
    payload = Random(1).randbytes(12 * 1024 * 1024)
    async with Client(platform.url) as client:
        producer = await client.create_producer(topic, chunking=True)
        consumer = await client.subscribe(topic, "s")
        await producer.send(payload)
        message = await consumer.receive(20)
        assert message is not None
        assert message.data == payload
        assert len(message.batch.chunk_ids) == 3
        consumer.acknowledge(message)
        await consumer.flush_acknowledgements()


@pytest.mark.parametrize("shift", [0, 1, 3, 7])
async def test_a_replay_of_everything_adds_nothing(client: Client, topic: str, shift: int) -> None:
    """As a source does that begins anew: same name, same sequence ids, batches cut elsewhere."""
    numbers = range(0, 400, 4)  # With gaps, as functions number their outputs.
    messages = [OutgoingMessage(b"%d" % number, sequence_id=number) for number in numbers]
    first = await client.create_producer(topic, producer_name="source")
    for start in range(0, 60, 10):
        await first.send_batch_nowait(messages[start : start + 10])
    await first.close()
    again = await client.create_producer(topic, producer_name="source")
    assert again.last_sequence_id == 59 * 4
    cuts = [messages[:shift], *(messages[start : start + 10] for start in range(shift, len(messages), 10))]
    results = [message_id for cut in cuts for message_id in await again.send_batch_nowait(cut)]
    assert results.count(DUPLICATE) == 60
    reader = await client.create_reader(topic, MessageId.EARLIEST)
    stored = []
    while await reader.has_message_available():
        message = await reader.read(10)
        assert message is not None
        stored.append(message.data)
    assert stored == [message.payload for message in messages]


@pytest.fixture
async def proxy(platform: BrokerUnderTest) -> AsyncIterator[ChaosProxy]:
    proxy = ChaosProxy(int(platform.url.rpartition(":")[2]), Random(7), frames_between_cuts=(5, 60))
    await proxy.start()
    yield proxy
    await proxy.stop()


async def test_cut_connections_lose_repeat_and_reorder_nothing(
    client: Client, proxy: ChaosProxy, topic: str
) -> None:
    """A thousand entries through a line that is cut every few frames, in both directions."""
    random = Random(11)
    total = 4000
    async with Client(proxy.url, backoff_initial_s=0.005, backoff_maximum_s=0.05) as unlucky:
        producer = await unlucky.create_producer(topic, producer_name="p", batching_max_delay_ms=0.5)
        consumer = await unlucky.subscribe(topic, "s", initial="earliest", ack_group_ms=5)
        receiving = asyncio.ensure_future(first_occurrences(consumer, total))
        each: list[asyncio.Future[MessageId]] = []
        whole: list[asyncio.Future[list[MessageId]]] = []
        number = 0
        while number < total:
            size = min(random.randint(1, 12), total - number)
            payloads = [b"%d" % n for n in range(number, number + size)]
            if random.random() < 0.5:
                whole.append(producer.send_batch_nowait(payloads))
            else:
                each += [producer.send_nowait(payload) for payload in payloads]
            number += size
            if random.random() < 0.4:
                await asyncio.sleep(0.001)
        await producer.flush()
        results = await asyncio.gather(*each)
        for ids in await asyncio.gather(*whole):
            results += ids
        assert await receiving == [b"%d" % n for n in range(total)]
        cuts = proxy.cuts
        proxy.calm = True
        await consumer.flush_acknowledgements()
    assert cuts >= 20
    assert len(results) == total
    assert DUPLICATE in results  # Some receipts were lost, and their messages sent again in vain.
    reader = await client.create_reader(topic, MessageId.EARLIEST)
    stored: list[bytes] = []
    while await reader.has_message_available():
        batch = await reader.read_batch(10)
        assert batch is not None
        stored += batch.payloads
    assert stored == [b"%d" % n for n in range(total)]
    rest = await client.subscribe(topic, "s")
    assert await rest.receive_batch(0.2) is None


async def first_occurrences(consumer: Consumer, total: int) -> list[bytes]:
    """Messages in the order in which they first came; repeats are what an exclusive subscription allows."""
    seen: dict[bytes, None] = {}
    while len(seen) < total:
        batch = await consumer.receive_batch(30)
        assert batch is not None, f"only {len(seen)} of {total} came"
        seen.update(dict.fromkeys(batch.payloads))
        consumer.acknowledge_cumulative(batch)
    return list(seen)


async def test_a_restart_in_the_middle(tmp_path_factory: pytest.TempPathFactory, topic: str) -> None:
    broker = BrokerUnderTest(
        tmp_path_factory.mktemp("restarted"), PolicyDefaults(deduplication_enabled=True)
    ).start()
    try:
        async with Client(broker.url, backoff_maximum_s=0.2) as client:
            producer = await client.create_producer(topic, producer_name="p")
            consumer = await client.subscribe(topic, "s", initial="earliest")
            await client.subscribe(topic, "keeps everything", initial="earliest")
            futures = [producer.send_nowait(b"%d" % number) for number in range(500)]
            await asyncio.sleep(0.005)
            await asyncio.to_thread(broker.stop)
            futures += [producer.send_nowait(b"%d" % number) for number in range(500, 1000)]
            await asyncio.to_thread(broker.start)
            await asyncio.gather(*futures)
            assert await first_occurrences(consumer, 1000) == [b"%d" % number for number in range(1000)]
            await consumer.flush_acknowledgements()
            reader = await client.create_reader(topic, MessageId.EARLIEST)
            stored: list[bytes] = []
            while await reader.has_message_available():
                batch = await reader.read_batch(10)
                assert batch is not None
                stored += batch.payloads
            assert stored == [b"%d" % number for number in range(1000)]
    finally:
        await asyncio.to_thread(broker.stop)
