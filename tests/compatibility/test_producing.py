"""What producers ask: names, access, order, large messages, and not to be heard twice."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pulsar
import pytest

from tests.compatibility.conftest import EARLIEST, WAIT_MS, Platform, nothing_more

pytestmark = pytest.mark.integration

Access = pulsar.ProducerAccessMode


def test_a_receipt_names_the_message_that_arrives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    sent = client.create_producer(topic).send(b"hello")
    assert consumer.receive(WAIT_MS).message_id() == sent


def test_members_of_a_batch_have_ids_of_their_own(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    receipts: list[pulsar.MessageId] = []
    for number in range(5):
        producer.send_async(b"%d" % number, lambda _, message_id: receipts.append(message_id))
    producer.flush()
    assert [each.batch_index() for each in receipts] == list(range(5))
    assert len({(each.ledger_id(), each.entry_id()) for each in receipts}) == 1
    assert producer.last_sequence_id() == 4


def test_what_is_written_on_a_message_arrives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(
        b"hello",
        properties={"a": "1", "ü": "ö"},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1234,
        replication_clusters=["standalone"],
    )
    producer.send(b"stays here", disable_replication=True)
    message = consumer.receive(WAIT_MS)
    assert message.properties() == {"a": "1", "ü": "ö"}
    assert (message.partition_key(), message.ordering_key()) == ("key", "order")
    assert message.event_timestamp() == 1234
    assert consumer.receive(WAIT_MS).data() == b"stays here"


@pytest.mark.parametrize("compression", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
def test_compressed_messages_arrive(client: pulsar.Client, topic: str, compression: str) -> None:
    consumer = client.subscribe(topic, "s")
    kind = getattr(pulsar.CompressionType, compression)
    client.create_producer(topic, compression_type=kind).send(b"hello" * 1000)
    assert consumer.receive(WAIT_MS).data() == b"hello" * 1000


def test_a_message_that_is_too_large_costs_nothing_else(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(10 * 1024 * 1024))
    producer.send(b"small")
    assert consumer.receive(WAIT_MS).data() == b"small"


def test_large_messages_come_in_chunks_and_can_be_sought(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, chunking_enabled=True)
    consumer = client.subscribe(
        topic, "s", max_pending_chunked_message=10, auto_ack_oldest_chunked_message_on_queue_full=False
    )
    large = os.urandom(10 * 1024 * 1024)
    sent = producer.send(large)
    message = consumer.receive(WAIT_MS)
    assert message.data() == large
    assert message.message_id() == sent
    consumer.acknowledge(message)
    producer.send(b"after")
    assert consumer.receive(WAIT_MS).data() == b"after"
    consumer.seek(sent)
    assert consumer.receive(WAIT_MS).data() == b"after"
    consumer.seek(pulsar.MessageId.earliest)
    assert consumer.receive(WAIT_MS).data() == large


def test_a_name_is_one_producers_only(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, producer_name="mine")
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic, producer_name="mine")
    first.close()
    assert not first.is_connected()
    assert client.create_producer(topic, producer_name="mine").is_connected()


def test_names_given_by_the_broker_differ(client: pulsar.Client, topic: str) -> None:
    names = {client.create_producer(topic).producer_name() for _ in range(5)}
    assert len(names) == 5


def test_exclusive_access_shuts_others_out(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Access.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        client.create_producer(topic, access_mode=Access.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    first.close()
    client.create_producer(topic, access_mode=Access.Exclusive).send(b"x")


def test_who_waits_for_access_gets_it_next(client: pulsar.Client, topic: str) -> None:
    first = client.create_producer(topic, access_mode=Access.Exclusive)
    came: list[pulsar.Producer] = []

    def wait() -> None:
        came.append(client.create_producer(topic, access_mode=Access.WaitForExclusive))

    waiting = threading.Thread(target=wait)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    first.close()
    waiting.join(5)
    came[0].send(b"x")


def test_who_takes_access_by_force_ends_the_other(
    client: pulsar.Client, new_client: Callable[..., pulsar.Client], topic: str
) -> None:
    first = client.create_producer(topic, access_mode=Access.Exclusive)
    first.send(b"1")
    new_client().create_producer(topic, access_mode=Access.ExclusiveWithFencing).send(b"2")
    with pytest.raises(pulsar.PulsarException):
        first.send(b"3")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(2)] == [b"1", b"2"]
    assert not reader.has_message_available()


def test_nothing_is_heard_twice_of_a_producer_with_a_name(platform: Platform, client: pulsar.Client) -> None:
    namespace = "public/default-2"
    platform.rest("POST", f"namespaces/{namespace}/deduplication", True)
    topic = f"persistent://{namespace}/once-{time.time_ns()}"
    producer = client.create_producer(topic, producer_name="mine")
    assert producer.last_sequence_id() == -1
    consumer = client.subscribe(topic, "s")
    for number in (0, 1, 2, 1, 2):
        producer.send(b"%d" % number, sequence_id=number)
    assert producer.last_sequence_id() == 2
    producer.close()
    producer = client.create_producer(topic, producer_name="mine")
    assert producer.last_sequence_id() == 2
    producer.send(b"2", sequence_id=2)
    producer.send(b"3")
    assert producer.last_sequence_id() == 3
    assert [consumer.receive(WAIT_MS).data() for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    nothing_more(consumer)
    platform.rest("POST", f"namespaces/{namespace}/deduplication", False)


def test_a_topic_that_ended_takes_nothing_more(platform: Platform, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"last")
    platform.rest("POST", f"{topic.replace('://', '/')}/terminate")
    with pytest.raises(pulsar.PulsarException):
        producer.send(b"too late")
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.receive(WAIT_MS).data() == b"last"


def test_a_client_that_shut_down_sends_nothing(new_client: Callable[..., pulsar.Client], topic: str) -> None:
    client = new_client()
    producer = client.create_producer(topic)
    producer.send(b"x")
    client.shutdown()
    with pytest.raises(pulsar.AlreadyClosed):
        producer.send(b"y")
