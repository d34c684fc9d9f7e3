"""What survives the broker: messages, subscriptions, marks of deduplication, schemas, epochs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.naming import TopicName
from magnetar.policies.effective import PolicyDefaults
from tests.integration.broker.conftest import BrokerUnderTest, official_client

pytestmark = pytest.mark.integration

EARLIEST = pulsar.InitialPosition.Earliest
TOPIC = "persistent://public/default/t"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[BrokerUnderTest]:
    """One that this test may stop and start; deduplication is on, and saved every few entries."""
    broker = BrokerUnderTest(
        tmp_path, PolicyDefaults(deduplication_enabled=True), deduplication_snapshot_entries=7
    ).start()
    yield broker
    broker.stop()


def restart(platform: BrokerUnderTest) -> None:
    platform.stop()
    platform.start()


def receive(client: pulsar.Client, subscription: str, count: int) -> list[bytes]:
    consumer = client.subscribe(TOPIC, subscription, initial_position=EARLIEST)
    received = []
    for _ in range(count):
        message = consumer.receive(5000)
        consumer.acknowledge(message)
        received.append(message.data())
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    consumer.close()
    return received


IDS = list(range(1, 31))
"""Not from 0 on: the official Python client takes an id of 0 for none."""


def subscribe_only(platform: BrokerUnderTest) -> None:
    """Without a subscription nothing would be kept, and there would be nothing to compare."""
    client = official_client(platform.url)
    client.subscribe(TOPIC, "s", initial_position=EARLIEST)
    client.close()


def publish(producer: pulsar.Producer, ids: list[int]) -> None:
    """Send without waiting in between, and require that each was stored, or was already."""
    results: list[pulsar.Result] = []
    for sequence_id in ids:
        producer.send_async(
            b"%d" % sequence_id, lambda result, _: results.append(result), sequence_id=sequence_id
        )
    producer.flush()
    assert results == [pulsar.Result.Ok] * len(ids)


def test_messages_and_acknowledgements_survive(platform: BrokerUnderTest) -> None:
    client = official_client(platform.url)
    consumer = client.subscribe(TOPIC, "s", consumer_type=pulsar.ConsumerType.Shared)
    producer = client.create_producer(TOPIC)
    for number in range(10):
        producer.send(b"m%d" % number)
    for number in range(10):
        message = consumer.receive(5000)
        if number % 2 == 0:
            consumer.acknowledge(message)
    client.close()
    restart(platform)
    client = official_client(platform.url)
    assert receive(client, "s", 5) == [b"m1", b"m3", b"m5", b"m7", b"m9"]
    client.close()


def test_clients_outlive_the_broker(platform: BrokerUnderTest) -> None:
    client = official_client(platform.url)
    consumer = client.subscribe(TOPIC, "s")
    producer = client.create_producer(TOPIC, producer_name="p")
    producer.send(b"before")
    restart(platform)
    producer.send(b"after")
    received = [consumer.receive(10_000) for _ in range(2)]
    assert [message.data() for message in received][-1] == b"after"
    client.close()


def test_deduplication_survives_snapshot_and_tail(platform: BrokerUnderTest) -> None:
    """20 messages, saved every 7: at each restart some marks come from the snapshot, some from the log."""
    subscribe_only(platform)
    stored = -1
    for upto in (5, 12, 20):
        client = official_client(platform.url)
        producer = client.create_producer(TOPIC, producer_name="p")
        assert producer.last_sequence_id() == stored
        for sequence_id in IDS[:upto]:
            producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
        stored = IDS[upto - 1]
        client.close()
        restart(platform)
    client = official_client(platform.url)
    assert receive(client, "s", 20) == [b"%d" % sequence_id for sequence_id in IDS[:20]]
    client.close()


def test_a_stream_sent_again_in_other_batches(platform: BrokerUnderTest) -> None:
    """The official client numbers batches by their first message: the broker reads the others inside."""
    subscribe_only(platform)
    for size in (7, 4, 10, 3):
        client = official_client(platform.url)
        producer = client.create_producer(
            TOPIC,
            producer_name="p",
            batching_enabled=True,
            batching_max_messages=size,
            batching_max_publish_delay_ms=1000,
            compression_type=pulsar.CompressionType.ZLib,
        )
        publish(producer, IDS)
        client.close()
        if size == 4:
            restart(platform)
    client = official_client(platform.url)
    assert receive(client, "s", 30) == [b"%d" % sequence_id for sequence_id in IDS]
    client.close()


def test_straddling_batches_were_really_cut(platform: BrokerUnderTest) -> None:
    subscribe_only(platform)
    client = official_client(platform.url)
    for count, size in ((10, 10), (20, 20)):
        producer = client.create_producer(
            TOPIC,
            producer_name="p",
            batching_enabled=True,
            batching_max_messages=size,
            batching_max_publish_delay_ms=1000,
        )
        publish(producer, IDS[:count])
        producer.close()
    topic = platform.broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    assert topic.deduplication.cuts == 1
    assert topic.ledger.next_index == 20
    assert receive(client, "s", 20) == [b"%d" % sequence_id for sequence_id in IDS[:20]]
    client.close()


def test_the_topic_epoch_survives(platform: BrokerUnderTest) -> None:
    client = official_client(platform.url)
    client.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.Exclusive).send(b"x")
    client.close()
    restart(platform)
    client = official_client(platform.url)
    client.create_producer(TOPIC, access_mode=pulsar.ProducerAccessMode.Exclusive)
    topic = platform.broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    assert topic.exclusivity.epoch == 1
    client.close()


def test_a_terminated_topic_stays_so(platform: BrokerUnderTest) -> None:
    client = official_client(platform.url)
    client.create_producer(TOPIC).send(b"last")
    topic = platform.broker.topics.find(TopicName.parse(TOPIC))
    assert isinstance(topic, PersistentTopic)
    platform.do(topic.terminate)
    client.close()
    restart(platform)
    client = official_client(platform.url)
    with pytest.raises(pulsar.TopicTerminated):
        client.create_producer(TOPIC)
    assert receive(client, "s", 1) == [b"last"]
    client.close()
