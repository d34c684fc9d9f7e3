"""Messages for later, as the official client asks for them."""

from __future__ import annotations

import time
from datetime import timedelta

import pulsar
import pytest

from tests.compatibility.conftest import EARLIEST, SHARED, WAIT_MS, Platform

pytestmark = pytest.mark.integration


def now_ms() -> int:
    return round(time.time() * 1000)


def test_shared_consumers_get_a_message_at_its_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 600
    producer.send(b"at", deliver_at=due_ms)
    producer.send(b"after", deliver_after=timedelta(milliseconds=300))
    producer.send(b"now")
    received = []
    for _ in range(3):
        message = consumer.receive(WAIT_MS)
        received.append((message.data(), now_ms() >= due_ms))
        consumer.acknowledge(message)
    assert received == [(b"now", False), (b"after", False), (b"at", True)]


def test_others_do_not_wait(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"x", deliver_after=timedelta(hours=1))
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    assert consumer.receive(WAIT_MS).data() == b"x"


def test_what_waits_is_told_and_outlives_an_unload(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", consumer_type=SHARED)
    due_ms = now_ms() + 1500
    client.create_producer(topic).send(b"x", deliver_at=due_ms)
    path = topic.replace("://", "/")
    deadline = time.monotonic() + 1
    while platform.rest("GET", f"{path}/stats")["subscriptions"]["s"]["msgDelayed"] != 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    platform.rest("PUT", f"{path}/unload")
    assert consumer.receive(WAIT_MS).data() == b"x"
    assert now_ms() >= due_ms
