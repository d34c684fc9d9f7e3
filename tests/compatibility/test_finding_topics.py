"""Finding topics: over either protocol, under any name, by lists and by patterns."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pulsar
import pytest

from tests.compatibility.conftest import EARLIEST, SHARED, WAIT_MS, Platform, nothing_more

pytestmark = pytest.mark.integration

NewClient = Callable[..., pulsar.Client]


@pytest.fixture(params=["binary", "http"])
def either(request: pytest.FixtureRequest, new_client: NewClient, platform: Platform) -> pulsar.Client:
    """A client that looks topics up over the binary protocol, and one that does over HTTP."""
    return new_client(platform.service_url if request.param == "binary" else platform.web_url)


def test_a_plain_topic_and_a_partitioned_one(either: pulsar.Client, platform: Platform, topic: str) -> None:
    platform.partitioned(topic, 3)
    partitions = [f"{topic}-partition-{number}" for number in range(3)]
    assert either.get_topic_partitions(topic) == partitions
    assert either.get_topic_partitions(f"{topic}-plain") == [f"{topic}-plain"]
    consumer = either.subscribe(topic, "s", consumer_type=SHARED)
    either.create_producer(topic).send(b"hello")
    message = consumer.receive(WAIT_MS)
    assert message.topic_name() in partitions
    consumer.acknowledge(message)
    nothing_more(consumer)


def test_short_names_lie_in_public_default(either: pulsar.Client, topic: str) -> None:
    short = topic.rpartition("/")[2]
    consumer = either.subscribe(short, "s")
    either.create_producer(topic).send(b"hello")
    assert consumer.receive(WAIT_MS).topic_name() == topic


def test_a_namespace_that_is_not_there(client: pulsar.Client) -> None:
    for name in ("nobody/nothing/t", "public/nothing/t"):
        with pytest.raises(pulsar.TopicNotFound):
            client.create_producer(name)
        with pytest.raises(pulsar.TopicNotFound):
            client.subscribe(name, "s")


def test_a_namespace_that_is_not_there_over_http(new_client: NewClient, platform: Platform) -> None:
    began = time.monotonic()
    with pytest.raises(pulsar.PulsarException):
        new_client(platform.web_url).create_producer("nobody/nothing/t")
    assert time.monotonic() - began < 8, "the client knows at once that asking again is of no use"


def test_a_listener_nobody_advertises_is_refused_at_once(new_client: NewClient, topic: str) -> None:
    client = new_client(listener_name="test")
    began = time.monotonic()
    with pytest.raises(pulsar.ConnectError):
        client.create_producer(topic)
    with pytest.raises(pulsar.ConnectError):
        client.create_reader(topic, pulsar.MessageId.earliest)
    assert time.monotonic() - began < 5


def test_a_list_of_topics_from_several_namespaces(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    topics = [f"{topic}-a", f"{topic}-b", topic.replace("/default/", "/default-2/")]
    for partitions, name in enumerate(topics, 2):
        platform.partitioned(name, partitions)
    consumer = client.subscribe(topics, "s", consumer_type=SHARED, receiver_queue_size=10)
    sent = set()
    for name in topics:
        producer = client.create_producer(name)
        for number in range(30):
            payload = f"{name} {number}".encode()
            producer.send_async(payload, None)
            sent.add(payload)
        producer.flush()
    received = set()
    for _ in sent:
        message = consumer.receive(WAIT_MS)
        consumer.acknowledge(message)
        received.add(message.data())
    assert received == sent
    nothing_more(consumer)


def test_a_pattern_covers_all_partitions(either: pulsar.Client, platform: Platform, topic: str) -> None:
    topics = [f"{topic}-some-{number}" for number in range(3)]
    for partitions, name in enumerate(topics, 2):
        platform.partitioned(name, partitions)
    consumer = either.subscribe(re.compile(f"{topic}-some-.*"), "s", consumer_type=SHARED)
    for name in topics:
        either.create_producer(name).send(name.encode())
    either.create_producer(f"{topic}-other").send(b"not asked for")
    received = {consumer.receive(WAIT_MS).data() for _ in topics}
    assert received == {name.encode() for name in topics}
    nothing_more(consumer)


def test_a_pattern_that_matches_nothing_yet(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(re.compile(f"{topic}-none-.*"), "s")
    nothing_more(consumer)
    consumer.unsubscribe()


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (pulsar.RegexSubscriptionMode.PersistentOnly, {b"kept"}),
        (pulsar.RegexSubscriptionMode.NonPersistentOnly, {b"passing"}),
        (pulsar.RegexSubscriptionMode.AllTopics, {b"kept", b"passing"}),
    ],
    ids=["persistent", "non-persistent", "all"],
)
def test_a_pattern_over_topics_of_either_kind(
    client: pulsar.Client, topic: str, mode: pulsar.RegexSubscriptionMode, expected: set[bytes]
) -> None:
    kept = client.create_producer(f"{topic}-x")
    passing = client.create_producer(f"non-{topic}-x")
    pattern = re.compile(f"{topic.partition('://')[2]}-.*")
    consumer = client.subscribe(pattern, "s", regex_subscription_mode=mode, initial_position=EARLIEST)
    kept.send(b"kept")
    passing.send(b"passing")
    assert {consumer.receive(WAIT_MS).data() for _ in expected} == expected
    nothing_more(consumer)


def test_partitions_only_become_more(client: pulsar.Client, platform: Platform, topic: str) -> None:
    path = f"{topic.replace('://', '/')}/partitions"
    platform.partitioned(topic, 2)
    assert platform.refused("PUT", path, 2) == 409
    platform.rest("POST", path, 4)
    assert len(client.get_topic_partitions(topic)) == 4
    assert platform.refused("POST", path, 3) in (406, 409, 412, 422)


def test_statistics_name_the_client_that_is_connected(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="p", properties={"of": "producer"})
    producer.send(b"x")
    consumer.receive(WAIT_MS)
    told = platform.rest("GET", f"{topic.replace('://', '/')}/stats")
    (publisher,) = told["publishers"]
    assert publisher["producerName"] == "p"
    assert "Pulsar-CPP" in publisher["clientVersion"]
    assert publisher["metadata"] == {"of": "producer"}
    (subscriber,) = told["subscriptions"]["s"]["consumers"]
    assert "Pulsar-CPP" in subscriber["clientVersion"]
    assert told["subscriptions"]["s"]["msgBacklog"] == 1


@pytest.mark.parametrize(
    "authentication", [pulsar.AuthenticationToken("any"), pulsar.AuthenticationBasic("admin", "123456")]
)
def test_whoever_shows_credentials_may_in_where_none_are_asked_for(
    new_client: NewClient, platform: Platform, topic: str, authentication: pulsar.Authentication
) -> None:
    private = topic.replace("public/default", "private/auth")
    for url in (platform.service_url, platform.web_url):
        client = new_client(url, authentication=authentication)
        consumer = client.subscribe(private, "s", initial_position=EARLIEST)
        client.create_producer(private).send(b"hello")
        consumer.acknowledge(consumer.receive(WAIT_MS))
        consumer.close()
