"""Policies as the official client and the REST interface meet them: set while everything runs, and enforced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess
from tests.compatibility.conftest import EARLIEST, SHARED, WAIT_MS, Platform

pytestmark = pytest.mark.integration

EAGER = {
    "MAGNETAR_BROKER__MESSAGE_EXPIRY_CHECK_INTERVAL_S": "0.2",
    "MAGNETAR_BROKER__BACKLOG_QUOTA_CHECK_INTERVAL_S": "0.2",
    "MAGNETAR_BROKER__INACTIVE_TOPIC_CHECK_INTERVAL_S": "0.2",
}


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One that looks at its policies all the time."""
    with MagnetarProcess.standalone(tmp_path_factory.mktemp("eager"), environment=EAGER) as process:
        yield Platform(process)


def path(topic: str) -> str:
    return topic.replace("://", "/")


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def backlog(platform: Platform, topic: str) -> int:
    told: int = platform.rest("GET", f"{path(topic)}/stats")["subscriptions"]["s"]["msgBacklog"]
    return told


def test_messages_live_as_long_as_they_may(client: pulsar.Client, platform: Platform, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    consumer.close()
    producer = client.create_producer(topic)
    producer.send(b"old")
    assert backlog(platform, topic) == 1
    platform.rest("POST", f"{path(topic)}/messageTTL?messageTTL=1")
    until(lambda: backlog(platform, topic) == 0)
    told = platform.rest("GET", f"{path(topic)}/stats")["subscriptions"]["s"]
    assert told["totalMsgExpired"] == 1
    platform.rest("DELETE", f"{path(topic)}/messageTTL")
    producer.send(b"new")
    assert client.subscribe(topic, "s").receive(WAIT_MS).data() == b"new"


@pytest.mark.parametrize(
    ("policy", "error"),
    [
        ("producer_request_hold", pulsar.ProducerBlockedQuotaExceededError),
        ("producer_exception", pulsar.ProducerBlockedQuotaExceededException),
    ],
)
def test_a_full_topic_takes_no_producers_until_there_is_room(
    new_client: Callable[..., pulsar.Client],
    platform: Platform,
    topic: str,
    policy: str,
    error: type[Exception],
) -> None:
    client = new_client()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    first = client.create_producer(topic)
    for _ in range(10):
        first.send(b"x" * 1000)
    quota = {"limitSize": 5000, "policy": policy}
    platform.rest("POST", f"{path(topic)}/backlogQuota", quota)
    until(lambda: platform.rest("GET", f"{path(topic)}/stats")["publishers"] == [])
    with pytest.raises(error):
        new_client().create_producer(topic)
    for _ in range(10):
        consumer.acknowledge(consumer.receive(WAIT_MS))
    until(lambda: backlog(platform, topic) == 0)
    new_client().create_producer(topic).send(b"there is room")
    assert consumer.receive(WAIT_MS).data() == b"there is room"


def test_the_oldest_go_where_that_is_the_policy(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(20):
        producer.send(b"%04d" % number + b"x" * 1000)
    quota = {"limitSize": 10_000, "policy": "consumer_backlog_eviction"}
    platform.rest("POST", f"{path(topic)}/backlogQuota", quota)
    until(lambda: backlog(platform, topic) < 10)
    consumer = client.subscribe(topic, "s")
    left = backlog(platform, topic)
    assert [int(consumer.receive(WAIT_MS).data()[:4]) for _ in range(left)] == list(range(20 - left, 20))


def test_a_publish_rate_slows_and_loses_nothing(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    platform.rest("POST", f"{path(topic)}/publishRate", {"publishThrottlingRateInMsg": 20})
    producer = client.create_producer(topic, batching_enabled=False)
    began = time.monotonic()
    for number in range(60):
        producer.send(b"%d" % number)
    assert time.monotonic() - began > 1.5, "twenty at once, and twenty a second"
    assert [int(consumer.receive(WAIT_MS).data()) for _ in range(60)] == list(range(60))
    assert platform.rest("GET", f"{path(topic)}/stats")["publishRateLimitedTimes"] > 0


def test_a_dispatch_rate_slows_and_loses_nothing(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(60):
        producer.send_async(b"%d" % number, lambda _result, _id: None)
    producer.flush()
    rate = {"dispatchThrottlingRateInMsg": 20, "ratePeriodInSecond": 1}
    platform.rest("POST", f"{path(topic)}/subscriptionDispatchRate", rate)
    began = time.monotonic()
    consumer = client.subscribe(topic, "s", consumer_type=SHARED, initial_position=EARLIEST)
    assert sorted(int(consumer.receive(WAIT_MS).data()) for _ in range(60)) == list(range(60))
    assert time.monotonic() - began > 1.5


def test_a_topic_that_nobody_uses_goes_and_one_that_somebody_does_stays(
    client: pulsar.Client, platform: Platform, topic: str
) -> None:
    used = f"{topic}-used"
    unused_after_a_second = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": 1,
        "deleteWhileInactive": True,
    }
    client.subscribe(used, "s")
    client.create_producer(topic).close()
    for each in (topic, used):
        platform.rest("POST", f"{path(each)}/inactiveTopicPolicies", unused_after_a_second)
    until(lambda: topic not in platform.rest("GET", "persistent/public/default"))
    assert used in platform.rest("GET", "persistent/public/default")
