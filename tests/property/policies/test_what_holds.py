"""The nearer voice wins: topic here, topic everywhere, namespace, platform."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.naming import TopicName
from magnetar.policies.effective import EffectivePolicies, PolicyDefaults, laid_over, resolve
from magnetar.policies.namespace import Policies
from magnetar.policies.topic import TopicPolicies
from tests.property.policies.strategies import field_of, models

TOPIC = TopicName.parse("persistent://public/default/topic")
SYSTEM = TopicName.parse("persistent://public/default/__change_events")

# field of a topic, field of a namespace, what holds
Row = tuple[str, str, Callable[[EffectivePolicies], Any], Callable[[Any], Any]]
SCALARS: list[Row] = [
    ("deduplication_enabled", "deduplication_enabled", lambda e: e.deduplication_enabled, bool),
    ("message_ttl_in_seconds", "message_ttl_in_seconds", lambda e: e.message_ttl_s, lambda v: max(0, v)),
    ("max_producer_per_topic", "max_producers_per_topic", lambda e: e.max_producers_per_topic, lambda v: max(0, v)),
    ("max_consumer_per_topic", "max_consumers_per_topic", lambda e: e.max_consumers_per_topic, lambda v: max(0, v)),
    ("max_consumers_per_subscription", "max_consumers_per_subscription", lambda e: e.max_consumers_per_subscription, lambda v: max(0, v)),
    ("max_subscriptions_per_topic", "max_subscriptions_per_topic", lambda e: e.max_subscriptions_per_topic, lambda v: max(0, v)),
    ("max_unacked_messages_on_consumer", "max_unacked_messages_per_consumer", lambda e: e.max_unacked_messages_per_consumer, lambda v: max(0, v)),
    ("retention_policies", "retention_policies", lambda e: (e.retention_time_s, e.retention_size_bytes), lambda v: (v.time_s, v.size_bytes)),
    ("persistence", "persistence", lambda e: (e.ensemble_size, e.write_quorum, e.ack_quorum, e.mark_delete_rate), lambda v: (v.bookkeeper_ensemble, v.bookkeeper_write_quorum, v.bookkeeper_ack_quorum, v.managed_ledger_max_mark_delete_rate)),
    ("compaction_threshold", "compaction_threshold", lambda e: e.compaction_threshold_bytes, lambda v: v),
    ("delayed_delivery", "delayed_delivery_policies", lambda e: e.delayed_delivery, lambda v: v),
    ("auto_subscription_creation_override", "auto_subscription_creation_override", lambda e: e.auto_subscription_creation, lambda v: v.allow_auto_subscription_creation),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    row=st.sampled_from(SCALARS),
    local=models(TopicPolicies),
    everywhere=models(TopicPolicies),
    namespace=models(Policies),
    data=st.data(),
)
def test_the_nearer_voice_wins(
    row: Row, local: TopicPolicies, everywhere: TopicPolicies, namespace: Policies, data: st.DataObject
) -> None:
    topic_field, namespace_field, holds, as_told = row
    local, everywhere = (
        each.changed(**{topic_field: data.draw(field_of(TopicPolicies, topic_field))})
        for each in (local, everywhere)
    )
    namespace = namespace.changed(**{namespace_field: data.draw(field_of(Policies, namespace_field))})
    defaults = PolicyDefaults()
    said = [
        getattr(local, topic_field),
        getattr(everywhere, topic_field),
        getattr(namespace, namespace_field),
    ]
    nearest = next((value for value in said if value is not None), None)
    effective = resolve(TOPIC, namespace, local, everywhere, defaults)
    if nearest is not None:
        assert holds(effective) == as_told(nearest)
    else:
        assert holds(effective) == holds(
            resolve(TOPIC, Policies(), TopicPolicies(), TopicPolicies(), defaults)
        )


@settings(max_examples=40, deadline=None)
@given(local=models(TopicPolicies), everywhere=models(TopicPolicies), namespace=models(Policies))
def test_everything_can_be_resolved_and_makes_sense(
    local: TopicPolicies, everywhere: TopicPolicies, namespace: Policies
) -> None:
    effective = resolve(TOPIC, namespace, local, everywhere, PolicyDefaults())
    assert len(effective.backlog_quotas) == 2
    assert (
        effective.replication_clusters
        or local.replication_clusters == []
        or everywhere.replication_clusters == []
    )
    assert effective.subscription_types
    assert effective.max_topics_per_namespace >= 0
    assert effective.auto_topic_partitions == 0 or namespace.auto_topic_creation_override is not None
    assert effective == resolve(TOPIC, namespace, local, everywhere, PolicyDefaults())


@settings(max_examples=40, deadline=None)
@given(local=models(TopicPolicies), everywhere=models(TopicPolicies), namespace=models(Policies))
def test_system_topics_know_no_limits(
    local: TopicPolicies, everywhere: TopicPolicies, namespace: Policies
) -> None:
    effective = resolve(SYSTEM, namespace, local, everywhere, PolicyDefaults())
    assert (
        effective.max_producers_per_topic == effective.max_consumers_per_topic == effective.message_ttl_s == 0
    )
    assert effective.max_message_bytes == 0
    assert all(quota.limit_size <= 0 and quota.limit_time <= 0 for quota in effective.backlog_quotas.values())
    assert not effective.encryption_required
    assert not effective.deduplication_enabled


@settings(max_examples=40, deadline=None)
@given(policies=models(TopicPolicies), other=models(TopicPolicies), third=models(TopicPolicies))
def test_laying_over_keeps_what_is_near(
    policies: TopicPolicies, other: TopicPolicies, third: TopicPolicies
) -> None:
    nothing = TopicPolicies()
    assert laid_over(policies, nothing) == laid_over(nothing, policies) == policies
    assert laid_over(policies, policies) == policies
    assert laid_over(laid_over(policies, other), third) == laid_over(policies, laid_over(other, third))


@settings(max_examples=40, deadline=None)
@given(partitions=st.integers(1, 100))
def test_new_topics_are_partitioned_where_the_namespace_says_so(partitions: int) -> None:
    override = {
        "allowAutoTopicCreation": True,
        "topicType": "partitioned",
        "defaultNumPartitions": partitions,
    }
    namespace = Policies.read({"autoTopicCreationOverride": override})
    assert (
        resolve(TOPIC, namespace, TopicPolicies(), TopicPolicies(), PolicyDefaults()).auto_topic_partitions
        == partitions
    )
    plain = Policies.read(
        {"autoTopicCreationOverride": {"allowAutoTopicCreation": True, "topicType": "non-partitioned"}}
    )
    defaults = PolicyDefaults(auto_topic_type="partitioned", auto_topic_partitions=partitions)
    assert resolve(TOPIC, plain, TopicPolicies(), TopicPolicies(), defaults).auto_topic_partitions == 0
    assert (
        resolve(TOPIC, Policies(), TopicPolicies(), TopicPolicies(), defaults).auto_topic_partitions
        == partitions
    )
