"""What /metrics tells of topics: how much of it can be chosen, and is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.client.client import Client
from tests.unit.admin.conftest import Platform, open_platform

CONSUMED = {"pulsar_consumer_available_permits", "pulsar_consumer_unacked_messages"}
PRODUCED = {"pulsar_producer_msg_rate_in"}


@asynccontextmanager
async def with_settings(platform: Platform, **settings: Any) -> AsyncIterator[Broker]:
    """The broker of `platform`, with other settings for its metrics."""
    broker = platform.broker
    before = broker.settings
    broker.settings = before.model_copy(update=settings)
    yield broker
    broker.settings = before


@pytest.fixture
async def busy(tmp_path: Any) -> AsyncIterator[Platform]:
    """Three topics of two namespaces, two of them with somebody connected."""
    async with open_platform(tmp_path) as platform:
        assert (await platform.http.put("/admin/v2/namespaces/public/other")).status_code == 204
        client = Client(platform.broker.service_url)
        for name in ("a", "b"):
            await client.subscribe(name, "s")
            producer = await client.create_producer(name)
            await producer.send(b"x" * 10)
        await platform.publish("persistent://public/other/c", b"x")
        yield platform
        await client.close()


def topics(broker: Broker, metric: str) -> list[str]:
    return [sample.labels["topic"] for sample in broker.metric_samples() if sample.name == metric]


def names(broker: Broker) -> set[str]:
    return {sample.name for sample in broker.metric_samples()}


def told(broker: Broker, metric: str, **labels: str) -> float:
    """The one value of a metric with these labels."""
    (value,) = [
        sample.value
        for sample in broker.metric_samples()
        if sample.name == metric and labels.items() <= sample.labels.items()
    ]
    return value


async def test_each_topic_is_told_and_those_connected_only_if_wished(busy: Platform) -> None:
    broker = busy.broker
    assert len(topics(broker, "pulsar_storage_size")) == 3
    assert told(broker, "pulsar_subscription_back_log", topic="persistent://public/default/a") == 1
    assert not names(broker) & (CONSUMED | PRODUCED)
    async with with_settings(busy, consumer_metrics=True, producer_metrics=True):
        assert names(broker) >= CONSUMED | PRODUCED


async def test_beyond_the_limit_topics_count_in_the_sums_only(busy: Platform) -> None:
    async with with_settings(busy, metrics_topics_max=1) as broker:
        assert topics(broker, "pulsar_storage_size") == ["persistent://public/default/a"]
        assert told(broker, "magnetar_metrics_topics_left_out") == 2
        assert told(broker, "pulsar_broker_topics_count") == 3
    async with with_settings(busy, metrics_topics_max=0) as broker:
        assert len(topics(broker, "pulsar_storage_size")) == 3
        assert told(broker, "magnetar_metrics_topics_left_out") == 0


async def test_namespaces_are_told_where_topics_are_not(busy: Platform) -> None:
    async with with_settings(busy, topic_metrics=False) as broker:
        samples = list(broker.metric_samples())
        assert not [sample for sample in samples if "topic" in sample.labels]
        assert told(broker, "pulsar_topics_count", namespace="public/default") == 2
        assert told(broker, "pulsar_msg_backlog", namespace="public/default") == 2
        assert told(broker, "pulsar_storage_size", namespace="public/other") > 0
        seen = [(sample.name, *sorted(sample.labels.items())) for sample in samples]
        assert len(seen) == len(set(seen)), "no series twice"


async def test_logs_are_told_by_namespace(busy: Platform) -> None:
    broker = busy.broker
    assert told(broker, "pulsar_ml_NumberOfMessagesInBacklog", namespace="public/default") == 2
    assert told(broker, "pulsar_ml_cache_used_size") <= told(broker, "magnetar_ml_cache_max_size")
    async with with_settings(busy, managed_ledger_metrics=False):
        assert not any(name.startswith("pulsar_ml_") for name in names(broker))


async def test_transactions_are_told_by_their_coordinator(busy: Platform) -> None:
    client = Client(busy.broker.service_url)
    try:
        transaction = await client.begin_transaction()
        assert sum_of(busy.broker, "pulsar_txn_active_count") == 1
        await transaction.abort()
    finally:
        await client.close()
    assert sum_of(busy.broker, "pulsar_txn_active_count") == 0
    assert sum_of(busy.broker, "pulsar_txn_created_count") == 1
    assert sum_of(busy.broker, "pulsar_txn_aborted_count") == 1


def sum_of(broker: Broker, metric: str) -> float:
    return sum(sample.value for sample in broker.metric_samples() if sample.name == metric)
