"""Our codec against the official client's: what one writes the other reads, in every compression."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pulsar
import pytest

from magnetar.client import Client, Message, MessageId, OutgoingMessage
from tests.integration.broker.conftest import BrokerUnderTest, official_client

pytestmark = pytest.mark.integration

COMPRESSIONS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


@pytest.fixture
def official(platform: BrokerUnderTest) -> Iterator[pulsar.Client]:
    client = official_client(platform.url)
    yield client
    client.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("batching", [True, False])
async def test_the_official_client_writes_and_we_read(
    official: pulsar.Client, client: Client, topic: str, compression: str, batching: bool
) -> None:
    def produce() -> list[str]:
        producer = official.create_producer(
            topic,
            producer_name="official",
            compression_type=COMPRESSIONS[compression],
            batching_enabled=batching,
            batching_max_publish_delay_ms=50,
        )
        ids: list[str] = []
        for number in range(20):
            producer.send_async(
                b"%d" % number * 30,
                lambda result, message_id: ids.append(str(message_id)),
                properties={"n": str(number)},
                partition_key=f"key-{number}",
                event_timestamp=1000 + number,
                sequence_id=number * 2,
            )
        producer.flush()
        producer.close()
        return ids

    await asyncio.to_thread(produce)
    reader = await client.create_reader(topic, MessageId.EARLIEST)
    messages: list[Message] = []
    while len(messages) < 20:
        batch = await reader.read_batch(10)
        assert batch is not None
        assert (batch.size > 0) == batching
        messages += batch.messages
    for number, message in enumerate(messages):
        assert message.data == b"%d" % number * 30
        assert message.properties == {"n": str(number)}
        assert message.key == f"key-{number}"
        assert message.event_time == 1000 + number
        assert message.sequence_id == number * 2
        assert message.producer_name == "official"


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_we_write_and_the_official_client_reads(
    official: pulsar.Client, client: Client, topic: str, compression: str
) -> None:
    producer = await client.create_producer(topic, compression=compression)  # type: ignore[arg-type]
    ids = await producer.send_batch_nowait(
        [
            b"plain" * 50,
            OutgoingMessage(
                b"full" * 50, key="k", ordering_key=b"o", properties={"a": "b", "c": "d"}, event_time=77
            ),
            OutgoingMessage(b"keyed", key="k2"),
        ]
    )
    ids.append(await producer.send(b"alone" * 50, key="single", properties={"x": "y"}))

    def consume() -> list[pulsar.Message]:
        consumer = official.subscribe(topic, "official", initial_position=pulsar.InitialPosition.Earliest)
        received = [consumer.receive(timeout_millis=10_000) for _ in range(4)]
        for message in received:
            consumer.acknowledge(message)
        consumer.close()
        return received

    plain, full, keyed, alone = await asyncio.to_thread(consume)
    assert (plain.data(), plain.partition_key(), plain.properties()) == (b"plain" * 50, "", {})
    assert (full.data(), full.partition_key(), full.properties()) == (b"full" * 50, "k", {"a": "b", "c": "d"})
    assert full.ordering_key() == "o"
    assert full.event_timestamp() == 77
    assert (keyed.data(), keyed.partition_key()) == (b"keyed", "k2")
    assert (alone.data(), alone.partition_key(), alone.properties()) == (b"alone" * 50, "single", {"x": "y"})
    for message, message_id in zip((plain, full, keyed, alone), ids, strict=True):
        official_id = message.message_id()
        assert (official_id.ledger_id(), official_id.entry_id()) == message_id[:2]
        assert official_id.batch_index() == message_id.batch_index
        read = MessageId.from_bytes(official_id.serialize())
        assert read[:2] == message_id[:2]
        back = pulsar.MessageId.deserialize(message_id.to_bytes())
        assert (back.ledger_id(), back.entry_id()) == message_id[:2]


async def test_chunks_of_the_official_client(official: pulsar.Client, client: Client, topic: str) -> None:
    payload = bytes(range(256)) * (6 * 1024 * 4)

    def produce() -> None:
        producer = official.create_producer(topic, chunking_enabled=True)
        producer.send(payload)
        producer.close()

    consumer = await client.subscribe(topic, "s", initial="earliest")
    await asyncio.to_thread(produce)
    message = await consumer.receive(20)
    assert message is not None
    assert message.data == payload
    assert len(message.batch.chunk_ids) == 2


async def test_our_chunks_with_the_official_client(
    official: pulsar.Client, client: Client, topic: str
) -> None:
    payload = bytes(range(256)) * (6 * 1024 * 4)
    producer = await client.create_producer(topic, chunking=True, compression="none")
    await producer.send(payload)

    def consume() -> bytes:
        consumer = official.subscribe(topic, "official", initial_position=pulsar.InitialPosition.Earliest)
        message = consumer.receive(timeout_millis=20_000)
        consumer.acknowledge(message)
        consumer.close()
        data: bytes = message.data()
        return data

    assert await asyncio.to_thread(consume) == payload
