"""A broker's metrics, under the names that Pulsar's dashboards ask for.

Taken from attributes when someone asks. What is told of each topic is in `topic_metrics.py`; how many topics are
told of one by one is bounded, and where they are not, namespaces are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic_metrics import topic_samples
from magnetar.metrics.sample import Sample, counter, gauge

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.broker.topic import Topic


def broker_samples(broker: Broker) -> Iterator[Sample]:
    """One sample after another: a page of many topics is never held whole."""
    settings = broker.settings
    cluster = {"cluster": settings.cluster}
    topics = sorted(broker.topics.loaded(), key=_place)
    yield from _own(broker, cluster)
    yield from _totals(topics, cluster)
    yield from _transactions(broker, cluster)
    if settings.managed_ledger_metrics:
        yield from _logs(broker, topics, cluster)
    told = len(topics)
    if settings.topic_metrics and settings.metrics_topics_max:
        told = min(told, settings.metrics_topics_max)
    yield gauge("magnetar_metrics_topics_left_out", len(topics) - told, cluster)
    if settings.topic_metrics:
        for topic in topics[:told]:
            yield from topic_samples(topic, cluster, settings)
    else:
        yield from _namespaces(topics, cluster)


def _place(topic: Topic) -> tuple[str, str]:
    return str(topic.name.namespace_name), str(topic.name)


def _own(broker: Broker, cluster: Mapping[str, str]) -> Iterator[Sample]:
    yield gauge("pulsar_version_info", 1, {**cluster, "version": "magnetar"})
    yield gauge("pulsar_active_connections", len(broker.connections), cluster)
    yield counter("pulsar_connection_created_total_count", broker.connections_opened, cluster)
    yield counter("pulsar_connection_closed_total_count", broker.connections_closed, cluster)
    yield counter("pulsar_broker_throttled_connections", broker.context.budget.pauses, cluster)
    yield gauge("magnetar_pending_publish_bytes", broker.context.budget.used_bytes, cluster)
    yield counter("pulsar_broker_lookup_count", broker.lookups, cluster)
    yield gauge("magnetar_parked_requests", broker.parking.parked, cluster)
    yield counter("magnetar_parked_requests_refused_total", broker.parking.turned_away, cluster)
    yield counter("magnetar_lease_doubts_total", broker.context.lease.doubts, cluster)
    yield gauge("magnetar_owned_bundles", len(broker.ownership.owned), cluster)
    yield counter("pulsar_topic_load_failed_count", broker.topics.load_failures, cluster)
    yield counter("magnetar_topic_loads", broker.topics.loads, cluster)
    yield counter("magnetar_topics_deleted_total", broker.housekeeper.topics_deleted, cluster)


def _totals(topics: Sequence[Topic], labels: Mapping[str, str]) -> Iterator[Sample]:
    subscriptions = [each for topic in topics for each in topic.subscriptions.values()]
    yield gauge("pulsar_broker_topics_count", len(topics), labels)
    yield gauge("pulsar_broker_subscriptions_count", len(subscriptions), labels)
    yield gauge("pulsar_broker_producers_count", sum(len(topic.producers) for topic in topics), labels)
    yield gauge("pulsar_broker_consumers_count", sum(len(each.consumers) for each in subscriptions), labels)
    yield gauge("pulsar_broker_rate_in", sum(topic.flow_in.messages.rate for topic in topics), labels)
    yield gauge("pulsar_broker_rate_out", sum(topic.flow_out.messages.rate for topic in topics), labels)
    yield gauge("pulsar_broker_throughput_in", sum(topic.flow_in.bytes.rate for topic in topics), labels)
    yield gauge("pulsar_broker_throughput_out", sum(topic.flow_out.bytes.rate for topic in topics), labels)
    yield gauge("pulsar_broker_storage_size", sum(map(_stored_bytes, topics)), labels)
    backlog = sum(each.cursor.backlog for each in subscriptions if isinstance(each, Subscription))
    yield gauge("pulsar_broker_msg_backlog", backlog, labels)


def _stored_bytes(topic: Topic) -> int:
    return topic.ledger.total_size if isinstance(topic, PersistentTopic) else 0


def _transactions(broker: Broker, cluster: Mapping[str, str]) -> Iterator[Sample]:
    for coordinator in broker.transactions.coordinators():
        labels = {**cluster, "coordinator_id": str(coordinator.name.partition)}
        state, latency = coordinator.state, coordinator.execution_latency
        yield gauge("pulsar_txn_active_count", len(state), labels)
        yield counter("pulsar_txn_created_count", state.created, labels)
        yield counter("pulsar_txn_committed_count", state.committed, labels)
        yield counter("pulsar_txn_aborted_count", state.aborted, labels)
        yield counter("pulsar_txn_timeout_count", state.timeouts, labels)
        yield counter("pulsar_txn_append_log_count", coordinator.records.appended, labels)
        yield counter("pulsar_txn_execution_latency_count", sum(latency.counts), labels)
        yield counter("pulsar_txn_execution_latency_sum", latency.sum_ms, labels)


def _logs(broker: Broker, topics: Sequence[Topic], cluster: Mapping[str, str]) -> Iterator[Sample]:
    """The cache that all logs share, and the logs of each namespace."""
    cache = broker.context.ledgers.cache
    persistent = [topic for topic in topics if isinstance(topic, PersistentTopic)]
    yield gauge("pulsar_ml_count", len(persistent), cluster)
    yield gauge("pulsar_ml_cache_used_size", cache.size, cluster)
    yield gauge("magnetar_ml_cache_max_size", cache.max_bytes, cluster)
    yield counter("pulsar_ml_cache_evictions", cache.evicted, cluster)
    yield counter("magnetar_ml_cache_hits_total", cache.hits, cluster)
    yield counter("magnetar_ml_cache_misses_total", cache.misses, cluster)
    for namespace, members in groupby(persistent, key=lambda topic: _place(topic)[0]):
        labels = {**cluster, "namespace": namespace}
        appended = bytes_in = stored = backlog = 0.0
        for topic in members:
            appended += topic.flow_in.entries.rate
            bytes_in += topic.flow_in.bytes.rate
            stored += topic.ledger.total_size
            backlog += sum(each.cursor.backlog for each in topic.subscriptions.values())
        yield gauge("pulsar_ml_AddEntryMessagesRate", appended, labels)
        yield gauge("pulsar_ml_AddEntryBytesRate", bytes_in, labels)
        yield gauge("pulsar_ml_StoredMessagesSize", stored, labels)
        yield gauge("pulsar_ml_NumberOfMessagesInBacklog", backlog, labels)


def _namespaces(topics: Sequence[Topic], cluster: Mapping[str, str]) -> Iterator[Sample]:
    """What is told where topics are not: `topics` are in the order of their names."""
    for namespace, members in groupby(topics, key=lambda topic: _place(topic)[0]):
        yield from _namespace(list(members), {**cluster, "namespace": namespace})


def _namespace(topics: Sequence[Topic], labels: Mapping[str, str]) -> Iterator[Sample]:
    subscriptions = [each for topic in topics for each in topic.subscriptions.values()]
    yield gauge("pulsar_topics_count", len(topics), labels)
    yield gauge("pulsar_subscriptions_count", len(subscriptions), labels)
    yield gauge("pulsar_producers_count", sum(len(topic.producers) for topic in topics), labels)
    yield gauge("pulsar_consumers_count", sum(len(each.consumers) for each in subscriptions), labels)
    yield gauge("pulsar_rate_in", sum(topic.flow_in.messages.rate for topic in topics), labels)
    yield gauge("pulsar_rate_out", sum(topic.flow_out.messages.rate for topic in topics), labels)
    yield gauge("pulsar_throughput_in", sum(topic.flow_in.bytes.rate for topic in topics), labels)
    yield gauge("pulsar_throughput_out", sum(topic.flow_out.bytes.rate for topic in topics), labels)
    yield gauge("pulsar_storage_size", sum(map(_stored_bytes, topics)), labels)
    backlog = sum(each.cursor.backlog for each in subscriptions if isinstance(each, Subscription))
    yield gauge("pulsar_msg_backlog", backlog, labels)
