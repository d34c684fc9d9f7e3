"""Transactions whose coordinator, topics and subscriptions are served by different brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.transactions.coordinator_topic import COORDINATOR_TOPIC, CoordinatorTopic
from magnetar.client import Client
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.naming import TopicName
from tests.unit.broker.conftest import StartBroker
from tests.unit.broker.leased_store import LeasedStore
from tests.unit.broker.raw_client import until

IN, OUT = "persistent://public/default/in", "persistent://public/default/out"
QUIET_S = 0.2


@pytest.fixture
async def brokers(start_broker: StartBroker) -> tuple[Broker, Broker]:
    """The first serves the coordinators, the second the topics."""
    ensemble = MemoryEnsemble()
    settings = {
        "lookup_wait_s": 3.0,
        "load_report_interval_s": 0.02,
        "transaction_coordinators": 2,
        "transaction_coordinator_check_s": 0.1,
    }
    one = await start_broker(store=LeasedStore(ensemble), **settings)
    other = await start_broker(store=LeasedStore(ensemble), **settings)
    await until(lambda: bool(one.neighbourhood.members.others) and bool(other.neighbourhood.members.others))
    await one.transactions.ensure_coordinators()
    for number in range(2):
        assert (await one.lookup(COORDINATOR_TOPIC.partition_name(number))).here
    for topic in (IN, OUT):
        assert (await other.lookup(TopicName.parse(topic))).here
    return one, other


@pytest.fixture
async def client(brokers: tuple[Broker, Broker]) -> AsyncIterator[Client]:
    client = Client(brokers[0].service_url, operation_timeout_s=10, backoff_maximum_s=0.1)
    yield client
    await client.close()


async def test_a_coordinator_tells_topics_and_subscriptions_of_other_brokers(
    brokers: tuple[Broker, Broker], client: Client
) -> None:
    one, other = brokers
    source = await client.subscribe(IN, "s", type="shared")
    target = await client.subscribe(OUT, "s")
    first, second = await client.create_producer(IN), await client.create_producer(OUT)
    await first.send(b"work")
    for commit in (False, True):
        message = await source.receive(5)
        assert message is not None
        txn = await client.begin_transaction(timeout_s=30)
        await second.send(b"done %d" % commit, transaction=txn)
        await source.acknowledge(message, transaction=txn)
        assert await target.receive(QUIET_S) is None
        await (txn.commit() if commit else txn.abort())
    message = await target.receive(5)
    assert message is not None
    assert message.data == b"done 1"
    assert await source.receive(QUIET_S) is None
    assert sum(len(each.state) for each in one.transactions.coordinators()) == 0
    assert not list(other.transactions.coordinators())


async def test_ends_that_were_decided_go_on_at_the_next_broker_without_a_client(
    brokers: tuple[Broker, Broker], client: Client
) -> None:
    """The topic cannot be told for a while, and the coordinator moves meanwhile."""
    one, other = brokers
    target = await client.subscribe(OUT, "s")
    producer = await client.create_producer(OUT)
    txn = await client.begin_transaction(timeout_s=30)
    await producer.send(b"in the end", transaction=txn)
    log = (other.topics.find(TopicName.parse(OUT))).ledger  # type: ignore[union-attr]
    log.hold_appends = True
    committing = asyncio.create_task(txn.commit())
    coordinator = next(each for each in one.transactions.coordinators() if each.partition == txn.most)
    await until(lambda: bool(coordinator.state.unfinished))
    await one.unload_bundle(await one.topics.bundle(coordinator.name))
    log.release_appends()
    message = await target.receive(10)
    assert message is not None
    assert message.data == b"in the end"
    await committing  # Asked for again by the client, at whoever coordinates now.

    def finished() -> bool:
        now = [
            each
            for broker in brokers
            for each in broker.transactions.coordinators()
            if each.partition == txn.most and not each.closing
        ]
        return len(now) == 1 and not len(now[0].state)

    await until(finished)
    assert isinstance(coordinator, CoordinatorTopic)
    assert coordinator.closing
