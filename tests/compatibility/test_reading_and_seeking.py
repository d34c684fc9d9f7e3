"""Readers and seeks: by message, by time, to the ends; what is still to come; tables of the newest values."""

from __future__ import annotations

import time

import pulsar
import pytest

from tests.compatibility.conftest import EARLIEST, QUIET_MS, SHARED, WAIT_MS, Platform, nothing_more

pytestmark = pytest.mark.integration

OLDEST, NEWEST = pulsar.MessageId.earliest, pulsar.MessageId.latest


class Published:
    """Twenty messages of different times, their ids and their times."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        producer = client.create_producer(topic)
        self.ids = []
        for number in range(20):
            time.sleep(0.003)  # No two are of the same millisecond.
            self.ids.append(producer.send(b"%d" % number))
        reader = client.create_reader(topic, OLDEST)
        self.times = [reader.read_next(WAIT_MS).publish_timestamp() for _ in self.ids]
        reader.close()


@pytest.fixture
def published(client: pulsar.Client, topic: str) -> Published:
    return Published(client, topic)


def test_a_consumer_seeks_again_and_again(client: pulsar.Client, topic: str, published: Published) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    for _ in published.ids:
        consumer.acknowledge(consumer.receive(WAIT_MS))
    for target, expected in (
        (OLDEST, 0),
        (published.ids[10], 11),
        (published.times[5], 5),
        (published.ids[2], 3),
    ):
        consumer.seek(target)
        assert consumer.receive(WAIT_MS).data() == b"%d" % expected
    consumer.seek(NEWEST)
    nothing_more(consumer)


@pytest.mark.parametrize("start", [OLDEST, NEWEST], ids=["from the start", "from the end"])
def test_a_reader_seeks_again_and_again(
    client: pulsar.Client, topic: str, published: Published, start: pulsar.MessageId
) -> None:
    reader = client.create_reader(topic, start)
    for target, expected in (
        (published.times[15], 15),
        (OLDEST, 0),
        (published.ids[7], 8),
        (published.times[3], 3),
        (published.times[12], 12),
    ):
        reader.seek(target)
        received = [reader.read_next(WAIT_MS).data() for _ in range(2)]
        assert received == [b"%d" % expected, b"%d" % (expected + 1)]


def test_seeks_may_include_the_message_they_name(
    client: pulsar.Client, topic: str, published: Published
) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=True)
    consumer.seek(published.ids[10])
    assert consumer.receive(WAIT_MS).data() == b"10"
    reader = client.create_reader(topic, NEWEST, start_message_id_inclusive=True)
    reader.seek(published.ids[4])
    assert reader.read_next(WAIT_MS).data() == b"4"


def test_readers_begin_after_a_message_even_within_a_batch(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    first = client.create_reader(topic, OLDEST)
    ids = [first.read_next(WAIT_MS).message_id() for _ in range(10)]
    assert len({(each.ledger_id(), each.entry_id()) for each in ids}) == 1, "they came as one batch"
    second = client.create_reader(topic, ids[4])
    assert [second.read_next(WAIT_MS).data() for _ in range(5)] == [b"%d" % n for n in range(5, 10)]
    assert not second.has_message_available()


def test_what_is_still_to_come(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    reader = client.create_reader(topic, NEWEST)
    assert not reader.has_message_available()
    for number in range(5):
        producer.send(b"%d" % number)
    assert reader.has_message_available()
    for _ in range(5):
        reader.read_next(WAIT_MS)
    assert not reader.has_message_available()
    reader.seek(OLDEST)
    assert reader.has_message_available()
    reader.seek(NEWEST)
    assert not reader.has_message_available()
    producer.send(b"new")
    assert reader.has_message_available()
    assert reader.read_next(WAIT_MS).data() == b"new"


def test_the_newest_message_can_be_asked_for(client: pulsar.Client, topic: str) -> None:
    sent = client.create_producer(topic).send(b"newest")
    assert not client.create_reader(topic, NEWEST).has_message_available()
    reader = client.create_reader(topic, NEWEST, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert reader.read_next(WAIT_MS).message_id() == sent


def test_the_last_id_follows_the_producer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    for number in range(3):
        sent = producer.send(b"%d" % number)
        last = consumer.get_last_message_id()
        assert (last.ledger_id(), last.entry_id()) == (sent.ledger_id(), sent.entry_id())


def test_readers_leave_nothing_behind(client: pulsar.Client, platform: Platform, topic: str) -> None:
    reader = client.create_reader(topic, OLDEST)
    client.create_producer(topic).send(b"x")
    reader.read_next(WAIT_MS)
    reader.seek(OLDEST)
    assert reader.read_next(WAIT_MS).data() == b"x"
    reader.close()
    path = f"{topic.replace('://', '/')}/subscriptions"
    deadline = time.monotonic() + 5
    while platform.rest("GET", path):
        assert time.monotonic() < deadline, "the subscription of a closed reader is gone"
        time.sleep(0.02)


def test_tables_hold_the_newest_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    table = client.create_table_view(topic)
    producer = client.create_producer(topic)
    for key, value in (("a", b"1"), ("b", b"\xba\xd0"), ("a", b"2"), ("last", b"")):
        producer.send(value, partition_key=key)
    producer.send(b"end", partition_key="end")
    deadline = time.monotonic() + 5
    while table.get("end") is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert (table.get("a"), table.get("b"), table.get("last")) == (b"2", b"\xba\xd0", None)
    table.close()


def test_reading_with_a_time_limit(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, OLDEST)
    assert reader.is_connected()
    with pytest.raises(pulsar.Timeout):
        reader.read_next(QUIET_MS)
    reader.close()
    assert not reader.is_connected()
