"""What /metrics tells of one topic, its subscriptions, and who is connected to them, under Pulsar's names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from magnetar.broker import latency
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.broker.upkeep import backlog_quota
from magnetar.metrics.sample import Sample, counter, gauge

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.membership import SubscriptionBase
    from magnetar.broker.producer import Producer
    from magnetar.broker.settings import BrokerSettings
    from magnetar.broker.topic import Topic


def topic_samples(topic: Topic, cluster: Mapping[str, str], settings: BrokerSettings) -> Iterator[Sample]:
    """One topic."""
    labels = {**cluster, "namespace": str(topic.name.namespace_name), "topic": str(topic.name)}
    yield from _topic(topic, labels)
    if settings.producer_metrics:
        for producer in list(topic.producers.values()):
            yield from _producer(producer, labels)
    for name, subscription in list(topic.subscriptions.items()):
        of_subscription = {**labels, "subscription": name}
        yield from _subscription(subscription, of_subscription)
        if settings.consumer_metrics:
            for consumer in list(subscription.consumers):
                yield from _consumer(consumer, of_subscription)


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
    yield counter("pulsar_publish_rate_limit_times", topic.rates.publish_times_limited, labels)
    if isinstance(topic, PersistentTopic):
        yield from _storage(topic, labels)
        yield from _backlog(topic, labels)
        yield from _compaction(topic, labels)
        yield from _transactions(topic, labels)


def _storage(topic: PersistentTopic, labels: Mapping[str, str]) -> Iterator[Sample]:
    yield gauge("pulsar_storage_size", topic.ledger.total_size, labels)
    yield gauge("pulsar_storage_logical_size", topic.ledger.total_size, labels)
    yield gauge("pulsar_storage_offloaded_size", 0, labels)
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


def _backlog(topic: PersistentTopic, labels: Mapping[str, str]) -> Iterator[Sample]:
    subscriptions = list(topic.subscriptions.values())
    quotas = topic.policies.backlog_quotas
    age_s = topic.backlog.oldest_age_s
    yield gauge("pulsar_msg_backlog", sum(each.cursor.backlog for each in subscriptions), labels)
    slowest_bytes = max((each.cursor.backlog_bytes for each in subscriptions), default=0)
    yield gauge("pulsar_storage_backlog_size", slowest_bytes, labels)
    yield gauge("pulsar_storage_backlog_quota_limit", backlog_quota.size_limit(quotas) or -1, labels)
    yield gauge("pulsar_storage_backlog_quota_limit_time", backlog_quota.time_limit_s(quotas) or -1, labels)
    yield gauge("pulsar_storage_backlog_age_seconds", -1 if age_s is None else int(age_s), labels)
    for kind, evictions in (
        ("size", topic.backlog.size_evictions),
        ("time", topic.backlog.time_evictions),
    ):
        told = {**labels, "quota_type": kind}
        yield counter("pulsar_storage_backlog_quota_exceeded_evictions_total", evictions, told)
    index_bytes = sum(each.delayed_index_bytes for each in subscriptions)
    yield gauge("pulsar_delayed_message_index_size_bytes", index_bytes, labels)


def _compaction(topic: PersistentTopic, labels: Mapping[str, str]) -> Iterator[Sample]:
    compaction = topic.compaction
    if not (compaction.runs or compaction.current):
        return  # Most topics never are.
    yield gauge("pulsar_compaction_removed_event_count", compaction.removed_messages, labels)
    yield counter("pulsar_compaction_succeed_count", compaction.runs - compaction.failures, labels)
    yield counter("pulsar_compaction_failed_count", compaction.failures, labels)
    yield gauge("pulsar_compaction_duration_time_in_mills", compaction.duration_ms, labels)
    if compaction.current is not None:
        record = compaction.current.record
        yield gauge("pulsar_compaction_compacted_entries_count", record.entries, labels)
        yield gauge("pulsar_compaction_compacted_entries_size", record.size, labels)


def _transactions(topic: PersistentTopic, labels: Mapping[str, str]) -> Iterator[Sample]:
    buffer = topic.transactions
    if buffer is None:
        return
    yield gauge("pulsar_txn_tb_active_total", len(buffer.state.open), labels)
    yield counter("pulsar_txn_tb_committed_total", buffer.committed, labels)
    yield counter("pulsar_txn_tb_aborted_total", buffer.aborted, labels)


def _subscription(subscription: SubscriptionBase, labels: Mapping[str, str]) -> Iterator[Sample]:
    backlog = subscription.cursor.backlog if isinstance(subscription, Subscription) else 0
    dispatcher = subscription.dispatcher
    unacked = dispatcher.unacked if dispatcher is not None else 0
    blocked = any(consumer.stalled for consumer in subscription.consumers)
    yield gauge("pulsar_subscription_back_log", backlog, labels)
    yield gauge("pulsar_subscription_back_log_no_delayed", max(0, backlog - subscription.delayed), labels)
    yield gauge("pulsar_subscription_delayed", subscription.delayed, labels)
    yield gauge("pulsar_subscription_unacked_messages", unacked, labels)
    yield gauge("pulsar_subscription_blocked_on_unacked_messages", int(blocked), labels)
    yield gauge("pulsar_subscription_msg_rate_out", subscription.flow.messages.rate, labels)
    yield gauge("pulsar_subscription_msg_throughput_out", subscription.flow.bytes.rate, labels)
    yield gauge("pulsar_subscription_msg_rate_redeliver", subscription.redelivered.rate, labels)
    yield gauge("pulsar_subscription_msg_ack_rate", subscription.acks.rate, labels)
    yield gauge("pulsar_subscription_msg_rate_expired", subscription.expired.rate, labels)
    yield counter("pulsar_subscription_total_msg_expired", subscription.expired.count, labels)
    if isinstance(subscription, Subscription):
        yield counter("magnetar_subscription_stuck_healed_total", subscription.watchdog.healed, labels)
    yield gauge("pulsar_subscription_consumers_count", len(subscription.consumers), labels)
    yield gauge("pulsar_subscription_last_expire_timestamp", subscription.last_expire_ms, labels)
    yield gauge("pulsar_subscription_last_acked_timestamp", subscription.last_ack_ms, labels)
    yield gauge("pulsar_subscription_last_consumed_timestamp", subscription.last_delivery_ms, labels)


def _consumer(consumer: Consumer, labels: Mapping[str, str]) -> Iterator[Sample]:
    told = {**labels, "consumer_name": consumer.name, "consumer_id": str(consumer.identifier)}
    yield gauge("pulsar_consumer_msg_rate_out", consumer.flow.messages.rate, told)
    yield gauge("pulsar_consumer_msg_throughput_out", consumer.flow.bytes.rate, told)
    yield gauge("pulsar_consumer_msg_rate_redeliver", consumer.redelivered.rate, told)
    yield gauge("pulsar_consumer_msg_ack_rate", consumer.acks.rate, told)
    yield gauge("pulsar_consumer_unacked_messages", consumer.unacked, told)
    yield gauge("pulsar_consumer_blocked_on_unacked_messages", int(consumer.stalled), told)
    yield gauge("pulsar_consumer_available_permits", consumer.permits, told)


def _producer(producer: Producer, labels: Mapping[str, str]) -> Iterator[Sample]:
    told = {**labels, "producer_name": producer.name, "producer_id": str(producer.identifier)}
    yield gauge("pulsar_producer_msg_rate_in", producer.flow.messages.rate, told)
    yield gauge("pulsar_producer_msg_throughput_in", producer.flow.bytes.rate, told)
    yield gauge("pulsar_producer_msg_average_Size", producer.flow.average_message_bytes, told)
