"""What consumers ask: to get things again, to give them up, to share them by key, to leave."""

from __future__ import annotations

import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest

from tests.compatibility.conftest import EARLIEST, SHARED, WAIT_MS, nothing_more

pytestmark = pytest.mark.integration

KEY_SHARED = pulsar.ConsumerType.KeyShared


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def publish(producer: pulsar.Producer, count: int) -> None:
    for payload in numbered(count):
        producer.send_async(payload, None)
    producer.flush()


def test_what_is_refused_comes_again_in_order(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=300)
    publish(client.create_producer(topic), 10)
    for expected in numbered(10):
        message = consumer.receive(WAIT_MS)
        assert message.data() == expected
        consumer.negative_acknowledge(message)
    for expected in numbered(10):
        message = consumer.receive(WAIT_MS)
        assert message.data() == expected
        consumer.acknowledge(message)
    nothing_more(consumer)


def test_redeliveries_are_counted(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, negative_ack_redelivery_delay_ms=100)
    client.create_producer(topic).send(b"x")
    counts = []
    for _ in range(4):
        message = consumer.receive(WAIT_MS)
        counts.append(message.redelivery_count())
        consumer.negative_acknowledge(message)
    assert counts == [0, 1, 2, 3]
    consumer.unsubscribe()


def test_dead_letters_go_where_a_subscription_waits_for_them(client: pulsar.Client, topic: str) -> None:
    dead = f"{topic}-dead"
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead, "made-with-the-producer")
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, dead_letter_policy=policy)
    publish(client.create_producer(topic), 10)
    for _ in range(3):
        received = sorted(consumer.receive(WAIT_MS).data() for _ in range(10))
        assert received == numbered(10)
        consumer.redeliver_unacknowledged_messages()
    nothing_more(consumer)
    late = client.subscribe(dead, "made-with-the-producer", consumer_type=SHARED)
    assert sorted(late.receive(WAIT_MS).data() for _ in range(10)) == numbered(10)
    nothing_more(late)


def test_dead_letters_have_a_topic_by_default(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(
        topic,
        "s",
        consumer_type=SHARED,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(1),
        negative_ack_redelivery_delay_ms=100,
    )
    dead = client.subscribe(f"{topic}-s-DLQ", "dead", consumer_type=SHARED)
    client.create_producer(topic).send(b"bad", properties={"mine": "kept"})
    for _ in range(2):
        consumer.negative_acknowledge(consumer.receive(WAIT_MS))
    message = dead.receive(WAIT_MS)
    assert message.data() == b"bad"
    assert message.properties()["mine"] == "kept"


def test_members_of_a_batch_are_acknowledged_alone(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, batch_index_ack_enabled=True)
    publish(client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000), 10)
    messages = [consumer.receive(WAIT_MS) for _ in range(10)]
    assert len({message.message_id().entry_id() for message in messages}) == 1, "they came as one batch"
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.close()
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, batch_index_ack_enabled=True)
    assert [consumer.receive(WAIT_MS).data() for _ in range(5)] == [b"1", b"3", b"5", b"7", b"9"]
    nothing_more(consumer)


def test_a_consumer_without_a_queue_gets_one_message_at_a_time(client: pulsar.Client, topic: str) -> None:
    first, second = (
        client.subscribe(topic, "s", consumer_type=SHARED, receiver_queue_size=0, initial_position=EARLIEST)
        for _ in range(2)
    )
    producer = client.create_producer(topic)
    for payload in numbered(4):
        producer.send(payload)
    received = [each.receive().data() for each in (first, second, first, second)]
    assert sorted(received) == numbered(4)


def test_many_at_once(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, -1)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy)
    publish(client.create_producer(topic), 10)
    assert [message.data() for message in consumer.batch_receive()] == numbered(10)


def test_acknowledgements_up_to_a_message_outlive_the_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    publish(client.create_producer(topic), 5)
    messages = [consumer.receive(WAIT_MS) for _ in range(5)]
    consumer.acknowledge_cumulative(messages[2])
    consumer.close()
    consumer = client.subscribe(topic, "s")
    assert [consumer.receive(WAIT_MS).data() for _ in range(2)] == [b"3", b"4"]


def test_a_subscription_that_was_given_up_begins_anew(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    publish(client.create_producer(topic), 3)
    consumer.acknowledge(consumer.receive(WAIT_MS))
    consumer.unsubscribe()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert [consumer.receive(WAIT_MS).data() for _ in range(3)] == numbered(3)


def test_topics_that_keep_nothing(client: pulsar.Client, topic: str) -> None:
    passing = f"non-{topic}"
    producer = client.create_producer(passing)
    producer.send(b"heard by nobody")
    consumer = client.subscribe(passing, "s", initial_position=EARLIEST)
    for payload in numbered(5):
        producer.send(payload)
    assert [consumer.receive(WAIT_MS).data() for _ in range(5)] == numbered(5)
    consumer.unsubscribe()
    consumer = client.subscribe(passing, "s")
    nothing_more(consumer)


def test_who_comes_second_to_an_exclusive_subscription_is_refused(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "s").close()
    first = client.subscribe(topic, "s")
    for kind in (pulsar.ConsumerType.Exclusive, SHARED, pulsar.ConsumerType.Failover):
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "s", consumer_type=kind)
    first.close()
    client.subscribe(topic, "s", consumer_type=SHARED)


def test_keys_stay_together_and_in_order(client: pulsar.Client, topic: str) -> None:
    taken: dict[str, list[tuple[str, int]]] = defaultdict(list)
    lock = threading.Lock()
    all_taken = threading.Event()

    def take(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        with lock:
            taken[message.partition_key()].append((consumer.consumer_name(), int(message.data())))
            if sum(map(len, taken.values())) == 200:
                all_taken.set()
        consumer.acknowledge(message)

    for number in range(3):
        client.subscribe(
            topic, "s", consumer_type=KEY_SHARED, consumer_name=f"c{number}", message_listener=take
        )
    producer = client.create_producer(topic, batching_type=pulsar.BatchingType.KeyBased)
    for number in range(200):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 20}")
    producer.flush()
    assert all_taken.wait(10)
    assert all(len({name for name, _ in each}) == 1 for each in taken.values())
    assert all(
        [number for _, number in each] == sorted(number for _, number in each) for each in taken.values()
    )
    assert len({each[0][0] for each in taken.values()}) > 1


def test_ranges_of_keys_do_not_overlap(client: pulsar.Client, topic: str) -> None:
    def subscribe(first: int, last: int) -> pulsar.Consumer:
        policy = pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(first, last)])
        return client.subscribe(topic, "s", consumer_type=KEY_SHARED, key_shared_policy=policy)

    subscribe(0, 32767)
    with pytest.raises(pulsar.PulsarException):
        subscribe(30000, 65535)
    subscribe(32768, 65535)


def test_encrypted_messages_pass_through(client: pulsar.Client, topic: str, tmp_path: Path) -> None:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    subprocess.run(["openssl", "genrsa", "-out", private, "2048"], check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", private, "-pubout", "-out", public], check=True, capture_output=True
    )
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    consumer = client.subscribe(topic, "s", crypto_key_reader=keys)
    producer = client.create_producer(topic, encryption_key="mine", crypto_key_reader=keys)
    producer.send(b"secret")
    assert consumer.receive(WAIT_MS).data() == b"secret"
    reader = client.create_reader(topic, pulsar.MessageId.earliest, crypto_key_reader=keys)
    assert reader.read_next(WAIT_MS).data() == b"secret"
    without = client.subscribe(
        topic,
        "without",
        initial_position=EARLIEST,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME,
    )
    assert b"secret" not in without.receive(WAIT_MS).data()


def test_clients_come_and_go(new_client: Callable[..., pulsar.Client], topic: str) -> None:
    for _ in range(20):
        client = new_client()
        client.create_producer(topic).send(b"x")
        client.close()
    reader = new_client().create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(20)] == [b"x"] * 20
    assert not reader.has_message_available()
