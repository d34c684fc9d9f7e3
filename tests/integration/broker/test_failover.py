"""Two brokers over a real ZooKeeper and real bookies: one is killed, stopped, or told to end, under its clients."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.protocol.pulsar_pb2 import BaseCommand
from magnetar.testing.admin_calls import call, keep_everything
from magnetar.testing.cluster import Cluster, ClusterPlan, RoleNode
from tests.unit.broker.raw_client import RawClient

pytestmark = pytest.mark.integration

DEADLINE_S = 40.0
NAMESPACE = "public/default"
PLAN = ClusterPlan(zookeepers=1, bookies=3, brokers=2, autorecoveries=0, tick_ms=500, session_timeout_s=2.0)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), PLAN) as cluster:
        keep_everything(cluster.web_url(), NAMESPACE)
        call(cluster.web_url(), "POST", f"/namespaces/{NAMESPACE}/deduplication", True)
        yield cluster


@pytest.fixture(autouse=True)
def _both_brokers_serve(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        if not broker.alive():
            broker.start()
    until(lambda: len(call(cluster.web_url(), "GET", "/brokers")) == len(cluster.brokers))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def owner(cluster: Cluster, topic: str, *, asking: RoleNode | None = None) -> RoleNode:
    """Who serves a topic, as a broker that runs says."""
    web = asking.urls[1] if asking is not None else cluster.web_url()
    with urllib.request.urlopen(f"{web}/lookup/v2/topic/{topic.replace('://', '/')}", timeout=30) as answer:
        url = json.load(answer)["brokerUrl"]
    return next(broker for broker in cluster.brokers if broker.urls[0] == url)


def other(cluster: Cluster, broker: RoleNode) -> RoleNode:
    return next(each for each in cluster.brokers if each is not broker)


def client_of(url: str) -> pulsar.Client:
    return pulsar.Client(
        url, operation_timeout_seconds=30, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )


class Publisher:
    """Sends numbered messages one after another, from a thread, until told to stop."""

    def __init__(self, url: str, topic: str) -> None:
        self.acknowledged = 0
        self.longest_gap_s = 0.0
        self._url = url
        self._topic = topic
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        client = client_of(self._url)
        try:
            producer = client.create_producer(
                self._topic, "numbered", send_timeout_millis=0, batching_enabled=False
            )
            before = time.monotonic()
            while not self._stop.is_set():
                producer.send(b"%d" % self.acknowledged, sequence_id=self.acknowledged)
                self.acknowledged += 1
                now = time.monotonic()
                self.longest_gap_s, before = max(self.longest_gap_s, now - before), now
                time.sleep(0.002)
        except BaseException as error:
            self._failure = error
        finally:
            client.close()

    def wait_for(self, more: int) -> None:
        """Until so many more are acknowledged."""
        target = self.acknowledged + more
        until(lambda: self.acknowledged >= target or self._failure is not None)
        assert self._failure is None, self._failure

    def end(self) -> int:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure
        return self.acknowledged


def read_all(url: str, topic: str, count: int) -> list[int]:
    """What the topic holds, read anew, and that there is nothing more."""
    client = client_of(url)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [int(reader.read_next(20_000).data()) for _ in range(count)]
    assert not reader.has_message_available()
    client.close()
    return found


def test_killed(cluster: Cluster) -> None:
    """Producer and consumer carry on at the other broker: nothing lost, nothing twice, in order."""
    topic = "persistent://public/default/killed"
    publisher = Publisher(cluster.service_url, topic)
    publisher.wait_for(50)
    victim = owner(cluster, topic)
    time.sleep(2.5)  # So that the other has heard of the topic's clients.
    victim.kill()
    publisher.wait_for(50)
    sent = publisher.end()
    assert publisher.longest_gap_s < 6.0
    assert owner(cluster, topic) is other(cluster, victim)
    assert read_all(cluster.service_url, topic, sent) == list(range(sent))


def test_told_to_end(cluster: Cluster) -> None:
    """Clients are handed over without waiting for any session to end."""
    topic = "persistent://public/default/told-to-end"
    publisher = Publisher(cluster.service_url, topic)
    publisher.wait_for(50)
    leaving = owner(cluster, topic)
    assert leaving.stop() == 0
    publisher.wait_for(50)
    sent = publisher.end()
    assert publisher.longest_gap_s < 1.5, "longer than it takes without a session to end"
    assert read_all(cluster.service_url, topic, sent) == list(range(sent))


def test_handed_over_under_load(cluster: Cluster) -> None:
    """A bundle goes from one broker to the other and back, several times, under a producer."""
    topic = "persistent://public/default/handed-over"
    publisher = Publisher(cluster.service_url, topic)
    publisher.wait_for(20)
    web = cluster.web_url()
    with urllib.request.urlopen(f"{web}/lookup/v2/topic/{topic.replace('://', '/')}/bundle") as answer:
        bundle = answer.read().decode()
    for _ in range(4):
        now = owner(cluster, topic)
        to = other(cluster, now).urls[1].removeprefix("http://")
        call(now.urls[1], "PUT", f"/namespaces/{NAMESPACE}/{bundle}/unload?destinationBroker={to}")
        assert owner(cluster, topic) is not now
        publisher.wait_for(20)
    sent = publisher.end()
    assert publisher.longest_gap_s < 3.0
    assert read_all(cluster.service_url, topic, sent) == list(range(sent))


async def test_stopped_past_its_session_and_woken(cluster: Cluster) -> None:
    """What waits in its sockets when it wakes is of topics that are another broker's: none of it has an effect."""
    topic = "persistent://public/default/stopped"
    sleeper = owner(cluster, topic)
    awake = other(cluster, sleeper)
    host, _, port = sleeper.urls[0].removeprefix("pulsar://").rpartition(":")
    raw = RawClient(*await asyncio.open_connection(host, int(port)))
    await raw.handshake()
    await raw.subscribe(topic, "s", permits=20)
    await raw.produce(topic, producer_name="numbered", user_provided_producer_name=True)
    for number in range(40):
        raw.send(b"%d" % number, number, producer_name="numbered")
        assert (await raw.expect("send_receipt")).sequence_id == number
    got = await raw.messages(20)
    for request, (message, _) in enumerate(got[:5]):
        raw.ack((message.message_id.ledgerId, message.message_id.entryId), request_id=100 + request)
        assert (await raw.expect("ackResponse")).request_id == 100 + request

    sleeper.pause()
    try:
        # All of this is in its sockets, and it will read it first thing.
        for number in range(40, 60):
            raw.send(b"%d" % number, number, producer_name="numbered")
        for request, (message, _) in enumerate(got[5:]):
            raw.ack((message.message_id.ledgerId, message.message_id.entryId), request_id=200 + request)
        raw.flow(1000)
        raw.say("lookupTopic", topic=topic, request_id=900)
        await asyncio.to_thread(until, lambda: owner(cluster, topic, asking=awake) is awake)
        redelivered = await asyncio.to_thread(_take_over, awake.urls[0], topic)
    finally:
        sleeper.resume()
    assert redelivered == list(range(5, 80)), "acknowledged before, or never: nothing in between"

    await asyncio.to_thread(until, lambda: raw.closed.is_set() or _is_let_go(raw))
    await asyncio.sleep(3.0)  # Its session is a new one by now, and its lease good again.
    heard = [frame.command for frame in raw._frames]
    assert not [each for each in heard if each.type == BaseCommand.MESSAGE]
    assert not [each for each in heard if each.type == BaseCommand.SEND_RECEIPT]
    receipts = [each.ackResponse for each in heard if each.type == BaseCommand.ACK_RESPONSE]
    assert all(receipt.HasField("error") for receipt in receipts)
    for each in heard:
        if each.type == BaseCommand.LOOKUP_RESPONSE:
            assert each.lookupTopicResponse.brokerServiceUrl == awake.urls[0]
    await raw.close()
    assert await asyncio.to_thread(read_all, cluster.service_url, topic, 80) == list(range(80))


def _is_let_go(raw: RawClient) -> bool:
    kinds = {frame.command.type for frame in raw._frames}
    return {BaseCommand.CLOSE_CONSUMER, BaseCommand.CLOSE_PRODUCER} <= kinds


def _take_over(url: str, topic: str) -> list[int]:
    """At the new owner: send again what has no receipt, and more; consume and acknowledge all there is."""
    client = client_of(url)
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, "numbered", batching_enabled=False)
    assert producer.last_sequence_id() == 39
    for number in range(producer.last_sequence_id() + 1, 80):
        producer.send(b"%d" % number, sequence_id=number)
    found = []
    for _ in range(75):
        message = consumer.receive(20_000)
        found.append(int(message.data()))
        consumer.acknowledge(message)
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    client.close()
    return found


def test_zookeeper_away_for_a_while(cluster: Cluster, tmp_path: Path) -> None:
    """Publishing goes on, delivery waits; both go on by themselves afterwards."""
    topic = "persistent://public/default/without-zookeeper"
    client = client_of(cluster.service_url)
    consumer = client.subscribe(topic, "s")
    publisher = Publisher(cluster.service_url, topic)
    publisher.wait_for(20)
    for _ in range(20):
        consumer.acknowledge(consumer.receive(10_000))
    keeper = cluster.keepers[0]
    keeper.pause()
    try:
        time.sleep(1.3)  # Longer than the lease, shorter than the session.
        publisher.wait_for(20)
    finally:
        keeper.resume()
    publisher.wait_for(20)
    sent = publisher.end()
    found = {int(consumer.receive(10_000).data()) for _ in range(sent - 20)}
    assert found == set(range(20, sent))
    client.close()
    assert read_all(cluster.service_url, topic, sent) == list(range(sent))
