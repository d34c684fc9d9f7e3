"""The official Python client, unmodified, against the broker over its real log."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections import Counter
from contextlib import suppress

import pulsar
import pytest
from pulsar.schema import Integer, JsonSchema, Record, String

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.naming import TopicName
from magnetar.policies.topic import TopicPolicies
from tests.integration.broker.conftest import BrokerUnderTest, official_client

pytestmark = pytest.mark.integration

EARLIEST = pulsar.InitialPosition.Earliest
WAIT_MS = 5000
QUIET_MS = 400


def payloads(consumer: pulsar.Consumer, count: int, *, acknowledge: bool = True) -> list[bytes]:
    received = []
    for _ in range(count):
        message = consumer.receive(WAIT_MS)
        received.append(message.data())
        if acknowledge:
            consumer.acknowledge(message)
    return received


def rest(consumer: pulsar.Consumer) -> list[bytes]:
    """Everything until nothing comes any more."""
    received: list[bytes] = []
    while True:
        try:
            message = consumer.receive(QUIET_MS)
        except pulsar.Timeout:
            return received
        consumer.acknowledge(message)
        received.append(message.data())


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(start, start + count)]


def loaded(broker: BrokerUnderTest, topic: str) -> PersistentTopic:
    found = broker.broker.topics.find(TopicName.parse(topic))
    assert isinstance(found, PersistentTopic)
    return found


def test_what_is_sent_is_received_in_order(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(payload, properties={"k": "v"}, partition_key="key") for payload in numbered(20)]
    assert ids == sorted(ids, key=lambda each: (each.ledger_id(), each.entry_id()))
    message = consumer.receive(WAIT_MS)
    assert (message.data(), message.properties(), message.partition_key()) == (b"m0", {"k": "v"}, "key")
    assert payloads(consumer, 19) == numbered(19, 1)


def test_batches_of_thousands(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=500, max_pending_messages=20_000
    )
    receipts: list[object] = []
    for payload in numbered(10_000):
        producer.send_async(payload, lambda result, _: receipts.append(result))
    producer.flush()
    assert payloads(consumer, 10_000) == numbered(10_000)
    assert Counter(receipts) == {pulsar.Result.Ok: 10_000}


@pytest.mark.parametrize(
    "compression",
    [
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    ],
    ids=["lz4", "zlib", "zstd", "snappy"],
)
def test_compressions(client: pulsar.Client, topic: str, compression: pulsar.CompressionType) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, compression_type=compression, batching_enabled=True)
    for payload in numbered(100):
        producer.send_async(payload * 100, None)
    producer.flush()
    assert payloads(consumer, 100) == [payload * 100 for payload in numbered(100)]


def test_a_payload_of_the_largest_size(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    payload = os.urandom(5 * 1024 * 1024 - 1024)
    client.create_producer(topic).send(payload)
    assert consumer.receive(WAIT_MS).data() == payload


def test_readers(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    ids = [producer.send(payload) for payload in numbered(10)]
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(10)] == numbered(10)
    assert not reader.has_message_available()
    latest = client.create_reader(topic, pulsar.MessageId.latest)
    assert not latest.has_message_available()
    producer.send(b"late")
    assert latest.has_message_available()
    assert latest.read_next(WAIT_MS).data() == b"late"
    middle = client.create_reader(topic, ids[4])
    assert middle.read_next(WAIT_MS).data() == b"m5"
    middle.seek(ids[2])
    assert middle.read_next(WAIT_MS).data() == b"m3"
    inclusive = client.create_reader(topic, ids[4], start_message_id_inclusive=True)
    assert inclusive.read_next(WAIT_MS).data() == b"m4"


def test_a_reader_starts_within_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    ids: list[pulsar.MessageId] = []
    for payload in numbered(10):
        producer.send_async(payload, lambda _, message_id: ids.append(message_id))
    producer.flush()
    reader = client.create_reader(topic, ids[6])
    assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == numbered(3, 7)


def test_seek_by_id_and_by_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    ids = [producer.send(payload) for payload in numbered(5)]
    time.sleep(0.05)  # So that the next five are younger, by the clock.
    between_ms = time.time_ns() // 1_000_000  # Rounded up, it could be later than what is sent next.
    ids += [producer.send(payload) for payload in numbered(5, 5)]
    assert payloads(consumer, 10) == numbered(10)
    consumer.seek(pulsar.MessageId.earliest)
    assert payloads(consumer, 10) == numbered(10)
    consumer.seek(ids[6])
    assert payloads(consumer, 3) == numbered(3, 7)
    consumer.seek(between_ms)
    assert payloads(consumer, 5) == numbered(5, 5)
    consumer.seek(pulsar.MessageId.latest)
    assert rest(consumer) == []
    producer.send(b"new")
    assert payloads(consumer, 1) == [b"new"]


def test_partitions(client: pulsar.Client, broker_under_test: BrokerUnderTest, topic: str) -> None:
    broker_under_test.do(lambda: broker_under_test.resources.create_partitioned(TopicName.parse(topic), 4))
    assert client.get_topic_partitions(topic) == [f"{topic}-partition-{index}" for index in range(4)]
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
    )
    for payload in numbered(40):
        producer.send(payload)
    assert sorted(payloads(consumer, 40)) == sorted(numbered(40))
    for index in range(4):
        assert loaded(broker_under_test, f"{topic}-partition-{index}").ledger.number_of_entries == 10


def test_shared_consumers_share(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared, receiver_queue_size=10)
        for _ in range(3)
    ]
    producer = client.create_producer(topic)
    for payload in numbered(60):
        producer.send(payload)
    parts = [rest(consumer) for consumer in consumers]
    assert sorted(itertools.chain(*parts)) == sorted(numbered(60))
    assert all(parts)


def test_failover_hands_over_what_is_left(client: pulsar.Client, topic: str) -> None:
    first, second = (
        client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Failover, consumer_name=name)
        for name in ("a", "b")
    )
    producer = client.create_producer(topic)
    for payload in numbered(6):
        producer.send(payload)
    assert payloads(first, 3) == numbered(3)
    first.close()
    assert payloads(second, 3) == numbered(3, 3)


def test_key_shared_keeps_keys_together(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared) for _ in range(3)]
    producer = client.create_producer(topic)
    for number in range(300):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 30}")
    producer.flush()
    owners: dict[int, int] = {}
    last: dict[int, int] = {}
    total = 0
    for index, consumer in enumerate(consumers):
        for payload in rest(consumer):
            number = int(payload)
            key = number % 30
            assert owners.setdefault(key, index) == index
            assert last.get(key, -1) < number
            last[key] = number
            total += 1
    assert total == 300
    assert len(set(owners.values())) == 3


def test_chunks_of_one_message_come_together(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared) for _ in range(2)]
    producer = client.create_producer(topic, chunking_enabled=True, batching_enabled=False)
    large = [os.urandom(12 * 1024 * 1024) for _ in range(2)]
    for payload in large:
        producer.send(payload)
    producer.send(b"small")
    received = list(itertools.chain(*(rest(consumer) for consumer in consumers)))
    assert set(received) == {*large, b"small"}
    assert len(received) == 3


def test_negative_acknowledgements_are_counted(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100
    )
    client.create_producer(topic).send(b"again")
    for count in range(4):
        message = consumer.receive(WAIT_MS)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    assert rest(consumer) == []


def test_dead_letters(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerDeadLetterPolicy(max_redeliver_count=2, initial_subscription_name="graves")
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=pulsar.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=100,
        dead_letter_policy=policy,
    )
    client.create_producer(topic).send(b"poison")
    for _ in range(3):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    graves = client.subscribe(f"{topic}-s-DLQ", "graves", initial_position=EARLIEST)
    assert payloads(graves, 1) == [b"poison"]


def test_cumulative_acknowledgement_and_redelivery(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for payload in numbered(6):
        producer.send(payload)
    messages = [consumer.receive(WAIT_MS) for _ in range(6)]
    consumer.acknowledge_cumulative(messages[2])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert payloads(again, 3) == numbered(3, 3)


def test_single_members_of_a_batch_are_acknowledged(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=200)
    for payload in numbered(10):
        producer.send_async(payload, None)
    producer.flush()
    for number in range(10):
        message = consumer.receive(WAIT_MS)
        if number % 2 == 0:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(
        topic, "s", consumer_type=pulsar.ConsumerType.Shared, batch_index_ack_enabled=True
    )
    assert payloads(again, 5) == [b"m1", b"m3", b"m5", b"m7", b"m9"]
    assert rest(again) == []


def test_acknowledgement_receipts(
    client: pulsar.Client, broker_under_test: BrokerUnderTest, topic: str
) -> None:
    reliable = pulsar.Client(broker_under_test.url, operation_timeout_seconds=5)
    consumer = reliable.subscribe(topic, "s")
    reliable.create_producer(topic).send(b"x")
    consumer.acknowledge(consumer.receive(WAIT_MS))
    reliable.close()


def test_patterns_find_topics(client: pulsar.Client, topic: str) -> None:
    producers = [client.create_producer(f"{topic}-{number}") for number in range(3)]
    client.create_producer(f"{topic}x")
    consumer = client.subscribe(re.compile(f"{topic}-[0-9]+"), "s")
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    assert sorted(payloads(consumer, 3)) == [b"0", b"1", b"2"]


class Example(Record):  # type: ignore[misc]  # The official client is not typed.
    a = String()
    b = Integer()


class Incompatible(Record):  # type: ignore[misc]  # Likewise.
    a = Integer(required=True)


def test_schemas(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, schema=JsonSchema(Example))
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Example), initial_position=EARLIEST)
    producer.send(Example(a="one", b=1))
    value = consumer.receive(WAIT_MS).value()
    assert (value.a, value.b) == ("one", 1)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=JsonSchema(Incompatible))


def test_exclusive_consumers_and_producers(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "s")
    consumer.unsubscribe()
    client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)


def test_fencing_takes_the_topic(broker_under_test: BrokerUnderTest, topic: str) -> None:
    first, second = official_client(broker_under_test.url), official_client(broker_under_test.url)
    old = first.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)
    old.send(b"old")
    new = second.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)
    new.send(b"new")
    with pytest.raises((pulsar.ProducerFenced, pulsar.AlreadyClosed)):
        old.send(b"too late")
    with suppress(pulsar.AlreadyClosed):  # Its producer was closed by the broker: the client says so again.
        first.close()
    second.close()


def test_a_producers_name_is_its_own(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="me")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="me")


def test_non_persistent_topics(client: pulsar.Client, topic: str) -> None:
    name = topic.replace("persistent://", "non-persistent://")
    consumer = client.subscribe(name, "s")
    client.create_producer(name).send(b"now")
    assert payloads(consumer, 1) == [b"now"]


def test_an_unload_goes_unnoticed(
    client: pulsar.Client, broker_under_test: BrokerUnderTest, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(b"m%d" % number)
        if number % 3 == 0:
            broker_under_test.do(lambda: broker_under_test.broker.topics.unload(TopicName.parse(topic)))
    assert list(dict.fromkeys(rest(consumer))) == numbered(10)


def test_a_message_nobody_may_send_fails(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(b"x" * (5 * 1024 * 1024 + 1))
    producer.send(b"fine")


def test_deduplication_drops_what_comes_twice(
    client: pulsar.Client, broker_under_test: BrokerUnderTest, topic: str
) -> None:
    def enable(policies: TopicPolicies) -> TopicPolicies:
        return policies.model_copy(update={"deduplication_enabled": True})

    resources = broker_under_test.resources
    broker_under_test.do(lambda: resources.update_topic_policies(TopicName.parse(topic), enable))
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p", initial_sequence_id=0)
    for sequence_id in (1, 2, 3, 2, 3, 4):
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    assert producer.last_sequence_id() == 4
    producer.close()
    assert rest(consumer) == [b"1", b"2", b"3", b"4"]
    again = client.create_producer(topic, producer_name="p")
    assert again.last_sequence_id() == 4
    assert loaded(broker_under_test, topic).deduplication.duplicates == 2


def test_stats_after_real_traffic(
    client: pulsar.Client, broker_under_test: BrokerUnderTest, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for payload in numbered(5):
        producer.send(payload)
    payloads(consumer, 5)

    async def stats() -> dict[str, object]:
        return loaded(broker_under_test, topic).stats()

    told = broker_under_test.do(stats)
    assert told["msgInCounter"] == 5
    assert told["msgOutCounter"] == 5
    assert told["storageSize"]
