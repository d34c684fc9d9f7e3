"""A broker's metrics, under the names that Pulsar's dashboards ask for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from magnetar.broker import latency
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.metrics.sample import Sample, counter, gauge

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.broker.membership import SubscriptionBase
    from magnetar.broker.topic import Topic


def broker_samples(broker: Broker) -> Iterator[Sample]:
    """One sample after another: a page of many topics is never held whole."""
    cluster = {"cluster": broker.settings.cluster}
    topics = list(broker.topics.loaded())
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
    yield from _totals(topics, cluster)
    for topic in topics:
        labels = {**cluster, "namespace": str(topic.name.namespace_name), "topic": str(topic.name)}
        yield from _topic(topic, labels)
        for name, subscription in list(topic.subscriptions.items()):
            yield from _subscription(subscription, {**labels, "subscription": name})


def _totals(topics: list[Topic], labels: Mapping[str, str]) -> Iterator[Sample]:
    subscriptions = [each for topic in topics for each in topic.subscriptions.values()]
    yield gauge("pulsar_broker_topics_count", len(topics), labels)
    yield gauge("pulsar_broker_subscriptions_count", len(subscriptions), labels)
    yield gauge("pulsar_broker_producers_count", sum(len(topic.producers) for topic in topics), labels)
    yield gauge("pulsar_broker_consumers_count", sum(len(each.consumers) for each in subscriptions), labels)
    yield gauge("pulsar_broker_rate_in", sum(topic.flow_in.messages.rate for topic in topics), labels)
    yield gauge("pulsar_broker_rate_out", sum(topic.flow_out.messages.rate for topic in topics), labels)
    yield gauge("pulsar_broker_throughput_in", sum(topic.flow_in.bytes.rate for topic in topics), labels)
    yield gauge("pulsar_broker_throughput_out", sum(topic.flow_out.bytes.rate for topic in topics), labels)
    backlog = sum(each.cursor.backlog for each in subscriptions if isinstance(each, Subscription))
    yield gauge("pulsar_broker_msg_backlog", backlog, labels)


def _topic(topic: Topic, labels: Mapping[str, str]) -> Iterator[Sample]:
    flow_in, flow_out = topic.flow_in, topic.flow_out
    consumers = sum(len(each.consumers) for each in topic.subscriptions.values())
    yield gauge("pulsar_topics_count", 1, labels)
    yield gauge("pulsar_subscriptions_count", len(topic.subscriptions), labels)
    yield gauge("pulsar_producers_count", len(topic.producers), labels)
    yield gauge("pulsar_consumers_count", consumers, labels)
    yield gauge("pulsar_rate_in", flow_in.messages.rate, labels)
    yield gauge("pulsar_rate_out", flow_out.messages.rate, labels)
    yield gauge("pulsar_throughput_in", flow_in.bytes.rate, labels)
    yield gauge("pulsar_throughput_out", flow_out.bytes.rate, labels)
    yield gauge("pulsar_average_msg_size", flow_in.average_message_bytes, labels)
    yield counter("pulsar_in_bytes_total", flow_in.bytes.count, labels)
    yield counter("pulsar_in_messages_total", flow_in.messages.count, labels)
    yield counter("pulsar_out_bytes_total", flow_out.bytes.count, labels)
    yield counter("pulsar_out_messages_total", flow_out.messages.count, labels)
    if isinstance(topic, PersistentTopic):
        yield from _storage(topic, labels)


def _storage(topic: PersistentTopic, labels: Mapping[str, str]) -> Iterator[Sample]:
    cursors = [each.cursor for each in topic.subscriptions.values()]
    yield gauge("pulsar_storage_size", topic.ledger.total_size, labels)
    yield gauge("pulsar_storage_logical_size", topic.ledger.total_size, labels)
    yield gauge(
        "pulsar_storage_backlog_size", max((cursor.backlog_bytes for cursor in cursors), default=0), labels
    )
    yield gauge("pulsar_storage_offloaded_size", 0, labels)
    yield gauge("pulsar_msg_backlog", sum(cursor.backlog for cursor in cursors), labels)
    yield gauge("pulsar_storage_write_rate", topic.flow_in.entries.rate, labels)
    yield gauge("pulsar_storage_read_rate", topic.flow_out.entries.rate, labels)
    buckets = topic.write_latency
    for name, count in zip(latency.NAMES, buckets.counts, strict=True):
        suffix = name if name == "overflow" else f"le_{name}"
        yield counter(f"pulsar_storage_write_latency_{suffix}", count, labels)
    yield counter("pulsar_storage_write_latency_count", sum(buckets.counts), labels)
    yield counter("pulsar_storage_write_latency_sum", buckets.sum_ms, labels)
    yield counter("magnetar_deduplication_duplicates_total", topic.deduplication.duplicates, labels)
    yield counter("magnetar_deduplication_cut_batches_total", topic.deduplication.cuts, labels)


def _subscription(subscription: SubscriptionBase, labels: Mapping[str, str]) -> Iterator[Sample]:
    backlog = subscription.cursor.backlog if isinstance(subscription, Subscription) else 0
    dispatcher = subscription.dispatcher
    unacked = dispatcher.unacked if dispatcher is not None else 0
    blocked = any(consumer.stalled for consumer in subscription.consumers)
    yield gauge("pulsar_subscription_back_log", backlog, labels)
    yield gauge("pulsar_subscription_back_log_no_delayed", backlog, labels)
    yield gauge("pulsar_subscription_delayed", 0, labels)
    yield gauge("pulsar_subscription_unacked_messages", unacked, labels)
    yield gauge("pulsar_subscription_blocked_on_unacked_messages", int(blocked), labels)
    yield gauge("pulsar_subscription_msg_rate_out", subscription.flow.messages.rate, labels)
    yield gauge("pulsar_subscription_msg_throughput_out", subscription.flow.bytes.rate, labels)
    yield gauge("pulsar_subscription_msg_rate_redeliver", subscription.redelivered.rate, labels)
    yield gauge("pulsar_subscription_msg_ack_rate", subscription.acks.rate, labels)
    yield gauge("pulsar_subscription_msg_rate_expired", subscription.expired.rate, labels)
    yield counter("pulsar_subscription_total_msg_expired", subscription.expired.count, labels)
    yield gauge("pulsar_subscription_consumers_count", len(subscription.consumers), labels)
    yield gauge("pulsar_subscription_last_expire_timestamp", subscription.last_expire_ms, labels)
    yield gauge("pulsar_subscription_last_acked_timestamp", subscription.last_ack_ms, labels)
    yield gauge("pulsar_subscription_last_consumed_timestamp", subscription.last_delivery_ms, labels)
