"""What holds for a topic, once cluster, namespace and topic have had their say. Pure.

The nearer voice wins: topic (this cluster), topic (everywhere), namespace, then the platform's defaults.
Source: Pulsar HierarchyTopicPolicies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Final, TypeVar

from magnetar.naming import TopicName
from magnetar.policies.creation import NON_PARTITIONED, PARTITIONED, AutoTopicCreation
from magnetar.policies.delivery import DelayedDelivery
from magnetar.policies.namespace import Policies, SubscriptionAuthMode, SubscriptionType
from magnetar.policies.quotas import BacklogQuota, BacklogQuotaPolicy, BacklogQuotaType
from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate
from magnetar.policies.schemas import SchemaAutoUpdateStrategy, SchemaCompatibilityStrategy
from magnetar.policies.storage import BookieAffinity, InactiveTopicDeleteMode, OffloadPolicies
from magnetar.policies.topic import TopicPolicies

Value = TypeVar("Value")

UNLIMITED: Final = -1
ALL_SUBSCRIPTION_TYPES: Final = tuple(SubscriptionType)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDefaults:
    """What holds where neither namespace nor topic says otherwise. Pulsar's defaults unless a line says why not."""

    cluster: str = "standalone"
    deduplication_enabled: bool = False
    deduplication_snapshot_interval_s: int = 120
    retention_time_s: int = 0
    """-1: without limit."""
    retention_size_bytes: int = 0
    """-1: without limit."""
    message_ttl_s: int = 0
    backlog_quota_bytes: int = UNLIMITED
    backlog_quota_s: int = UNLIMITED
    backlog_quota_policy: BacklogQuotaPolicy = BacklogQuotaPolicy.producer_request_hold
    ensemble_size: int = 1
    """1, 1, 1 as in Pulsar's standalone.conf: a cluster's settings say how many bookies it has."""
    write_quorum: int = 1
    ack_quorum: int = 1
    mark_delete_rate: float = 1.0
    auto_topic_creation: bool = True
    auto_topic_type: str = NON_PARTITIONED
    auto_topic_partitions: int = 1
    auto_subscription_creation: bool = True
    max_partitions_per_topic: int = 1024
    """0: no limit. Pulsar has none, which lets one request with a large number bring down a cluster."""
    max_tenants: int = 0
    max_namespaces_per_tenant: int = 0
    max_topics_per_namespace: int = 0
    max_producers_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions_per_topic: int = 0
    max_unacked_messages_per_consumer: int = 50_000
    max_unacked_messages_per_subscription: int = 200_000
    subscription_expiration_s: int = 0
    publish_rate_messages: int = 0
    """Messages a second that may come in to one topic. 0: no limit, here and in the rates below."""
    publish_rate_bytes: int = 0
    dispatch_rate_messages: int = 0
    """Messages a second that may go out of one topic."""
    dispatch_rate_bytes: int = 0
    dispatch_rate_relative: bool = False
    """Whether what comes in is added to the rates of what may go out."""
    subscription_dispatch_rate_messages: int = 0
    """Messages a second that may go out to one subscription."""
    subscription_dispatch_rate_bytes: int = 0
    subscribe_rate: int = 0
    """How often one consumer may subscribe in a period."""
    subscribe_rate_period_s: int = 30
    schema_compatibility_strategy: SchemaCompatibilityStrategy = SchemaCompatibilityStrategy.FULL
    schema_validation_enforced: bool = False
    allow_auto_update_schema: bool = True
    compaction_threshold_bytes: int = 0
    delayed_delivery: DelayedDelivery = field(default_factory=lambda: DelayedDelivery(active=True))
    delete_inactive_topics: bool = True
    inactive_topic_delete_mode: InactiveTopicDeleteMode = InactiveTopicDeleteMode.delete_when_no_subscriptions
    inactive_topic_s: int = 60
    entry_filters: tuple[str, ...] = ()
    """Filters of users that every message must pass, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicies:
    """What holds for one topic. Counts, rates and times of 0 are off, unless a line says otherwise."""

    deduplication_enabled: bool
    deduplication_snapshot_interval_s: int

    retention_time_s: int
    """-1: without limit."""
    retention_size_bytes: int
    """-1: without limit."""
    message_ttl_s: int
    backlog_quotas: Mapping[BacklogQuotaType, BacklogQuota]
    """Both types, always; a limit of 0 or less is none."""
    compaction_threshold_bytes: int
    offload: OffloadPolicies | None

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    mark_delete_rate: float
    bookie_affinity: BookieAffinity | None
    """The groups of bookies its ledgers are kept to; None: any bookies."""

    auto_topic_creation: bool
    auto_topic_partitions: int
    """Partitions of a topic that comes into being by being asked for. 0: a plain topic."""
    auto_subscription_creation: bool
    delete_inactive_topics: bool
    inactive_topic_delete_mode: InactiveTopicDeleteMode
    inactive_topic_s: int

    max_message_bytes: int
    """0: only the broker's own limit."""
    max_topics_per_namespace: int
    max_producers_per_topic: int
    max_consumers_per_topic: int
    max_consumers_per_subscription: int
    max_subscriptions_per_topic: int
    max_unacked_messages_per_consumer: int
    max_unacked_messages_per_subscription: int
    subscription_types: tuple[SubscriptionType, ...]
    subscription_expiration_s: int
    subscription_auth_mode: SubscriptionAuthMode
    encryption_required: bool

    publish_rate: PublishRate
    dispatch_rate: DispatchRate
    subscription_dispatch_rate: DispatchRate
    subscription_dispatch_rates: Mapping[str, DispatchRate]
    """Of single subscriptions, by name: they go before the one above."""
    replicator_dispatch_rate: DispatchRate
    subscribe_rate: SubscribeRate

    schema_compatibility_strategy: SchemaCompatibilityStrategy
    schema_validation_enforced: bool
    allow_auto_update_schema: bool

    delayed_delivery: DelayedDelivery
    entry_filters: tuple[str, ...]
    replication_clusters: tuple[str, ...]
    resource_group: str | None


def resolve(
    topic: TopicName,
    namespace: Policies,
    local: TopicPolicies,
    everywhere: TopicPolicies,
    defaults: PolicyDefaults,
    bookie_affinity: BookieAffinity | None = None,
) -> EffectivePolicies:
    """What holds for `topic`. System topics are exempt from limits, expiry and quotas."""
    own = laid_over(local, everywhere)
    cluster = defaults.cluster
    spared = topic.is_system
    retention = first_set(own.retention_policies, namespace.retention_policies)
    persistence = first_set(own.persistence, namespace.persistence)
    inactive = first_set(own.inactive_topic_policies, namespace.inactive_topic_policies)
    filters = first_set(own.entry_filters, namespace.entry_filters)
    creating = namespace.auto_topic_creation_override
    subscribing = first_set(
        own.auto_subscription_creation_override, namespace.auto_subscription_creation_override
    )

    def limit(*voices: int | None) -> int:
        return 0 if spared else max(0, nearest(*voices))

    return EffectivePolicies(
        deduplication_enabled=not spared
        and nearest(
            own.deduplication_enabled, namespace.deduplication_enabled, defaults.deduplication_enabled
        ),
        deduplication_snapshot_interval_s=nearest(
            own.deduplication_snapshot_interval_seconds,
            namespace.deduplication_snapshot_interval_seconds,
            defaults.deduplication_snapshot_interval_s,
        ),
        retention_time_s=retention.time_s if retention else defaults.retention_time_s,
        retention_size_bytes=retention.size_bytes if retention else defaults.retention_size_bytes,
        message_ttl_s=limit(
            own.message_ttl_in_seconds, namespace.message_ttl_in_seconds, defaults.message_ttl_s
        ),
        backlog_quotas=MappingProxyType(
            default_backlog_quotas(PolicyDefaults())
            if spared
            else default_backlog_quotas(defaults) | namespace.backlog_quota_map | own.backlog_quota_map
        ),
        compaction_threshold_bytes=nearest(
            own.compaction_threshold, namespace.compaction_threshold, defaults.compaction_threshold_bytes
        ),
        offload=first_set(own.offload_policies, namespace.offload_policies),
        ensemble_size=persistence.bookkeeper_ensemble if persistence else defaults.ensemble_size,
        write_quorum=persistence.bookkeeper_write_quorum if persistence else defaults.write_quorum,
        ack_quorum=persistence.bookkeeper_ack_quorum if persistence else defaults.ack_quorum,
        mark_delete_rate=persistence.managed_ledger_max_mark_delete_rate
        if persistence
        else defaults.mark_delete_rate,
        bookie_affinity=bookie_affinity,
        auto_topic_creation=creating.allow_auto_topic_creation if creating else defaults.auto_topic_creation,
        auto_topic_partitions=_auto_partitions(creating, defaults),
        auto_subscription_creation=subscribing.allow_auto_subscription_creation
        if subscribing
        else defaults.auto_subscription_creation,
        delete_inactive_topics=inactive.delete_while_inactive
        if inactive
        else defaults.delete_inactive_topics,
        inactive_topic_delete_mode=(inactive and inactive.inactive_topic_delete_mode)
        or defaults.inactive_topic_delete_mode,
        inactive_topic_s=inactive.max_inactive_duration_seconds if inactive else defaults.inactive_topic_s,
        max_message_bytes=limit(own.max_message_size, 0),
        max_topics_per_namespace=limit(namespace.max_topics_per_namespace, defaults.max_topics_per_namespace),
        max_producers_per_topic=limit(
            own.max_producer_per_topic, namespace.max_producers_per_topic, defaults.max_producers_per_topic
        ),
        max_consumers_per_topic=limit(
            own.max_consumer_per_topic, namespace.max_consumers_per_topic, defaults.max_consumers_per_topic
        ),
        max_consumers_per_subscription=limit(
            own.max_consumers_per_subscription,
            namespace.max_consumers_per_subscription,
            defaults.max_consumers_per_subscription,
        ),
        max_subscriptions_per_topic=limit(
            own.max_subscriptions_per_topic,
            namespace.max_subscriptions_per_topic,
            defaults.max_subscriptions_per_topic,
        ),
        max_unacked_messages_per_consumer=limit(
            own.max_unacked_messages_on_consumer,
            namespace.max_unacked_messages_per_consumer,
            defaults.max_unacked_messages_per_consumer,
        ),
        max_unacked_messages_per_subscription=limit(
            own.max_unacked_messages_on_subscription,
            namespace.max_unacked_messages_per_subscription,
            defaults.max_unacked_messages_per_subscription,
        ),
        subscription_types=tuple(
            own.subscription_types_enabled or namespace.subscription_types_enabled or ALL_SUBSCRIPTION_TYPES
        ),
        subscription_expiration_s=defaults.subscription_expiration_s
        if namespace.subscription_expiration_time_minutes is None
        else namespace.subscription_expiration_time_minutes * 60,
        subscription_auth_mode=namespace.subscription_auth_mode,
        encryption_required=namespace.encryption_required and not spared,
        publish_rate=nearest(
            own.publish_rate, namespace.publish_max_message_rate.get(cluster), default_publish_rate(defaults)
        ),
        dispatch_rate=nearest(
            own.dispatch_rate,
            namespace.topic_dispatch_rate.get(cluster),
            default_dispatch_rate(
                defaults.dispatch_rate_messages, defaults.dispatch_rate_bytes, defaults.dispatch_rate_relative
            ),
        ),
        subscription_dispatch_rate=nearest(
            own.subscription_dispatch_rate,
            namespace.subscription_dispatch_rate.get(cluster),
            default_dispatch_rate(
                defaults.subscription_dispatch_rate_messages,
                defaults.subscription_dispatch_rate_bytes,
                defaults.dispatch_rate_relative,
            ),
        ),
        subscription_dispatch_rates=MappingProxyType(
            {
                name: said.dispatch_rate
                for name, said in own.subscription_policies.items()
                if said.dispatch_rate is not None
            }
        ),
        replicator_dispatch_rate=nearest(
            own.replicator_dispatch_rate, namespace.replicator_dispatch_rate.get(cluster), DispatchRate()
        ),
        subscribe_rate=nearest(
            own.subscribe_rate,
            namespace.cluster_subscribe_rate.get(cluster),
            SubscribeRate(
                subscribe_throttling_rate_per_consumer=defaults.subscribe_rate or UNLIMITED,
                rate_period_in_second=defaults.subscribe_rate_period_s,
            ),
        ),
        schema_compatibility_strategy=SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE
        if spared
        else schema_strategy(namespace, own, defaults),
        schema_validation_enforced=nearest(
            own.schema_validation_enforced,
            namespace.schema_validation_enforced or defaults.schema_validation_enforced,
        ),
        allow_auto_update_schema=spared
        or nearest(namespace.is_allow_auto_update_schema, defaults.allow_auto_update_schema),
        delayed_delivery=nearest(
            own.delayed_delivery, namespace.delayed_delivery_policies, defaults.delayed_delivery
        ),
        entry_filters=() if spared else filters.names if filters else defaults.entry_filters,
        replication_clusters=tuple(
            nearest(own.replication_clusters, namespace.replication_clusters or [cluster])
        ),
        resource_group=own.resource_group_name or namespace.resource_group_name,
    )


@cache  # Not at import: a model is built when it is first used.
def _nothing_said() -> TopicPolicies:
    return TopicPolicies()


def laid_over(near: TopicPolicies, far: TopicPolicies) -> TopicPolicies:
    """What `near` says, and where it is silent, what `far` says."""
    silence = _nothing_said()
    said = {name: value for name, value in near if value != getattr(silence, name)}
    if near.backlog_quota_map and far.backlog_quota_map:
        said["backlog_quota_map"] = far.backlog_quota_map | near.backlog_quota_map
    return far.changed(**said)


def _auto_partitions(creating: AutoTopicCreation | None, defaults: PolicyDefaults) -> int:
    kind = creating.topic_type if creating and creating.topic_type else defaults.auto_topic_type
    if kind != PARTITIONED:
        return 0
    asked = creating.default_num_partitions if creating else None
    return defaults.auto_topic_partitions if asked is None else asked


def default_backlog_quotas(defaults: PolicyDefaults) -> dict[BacklogQuotaType, BacklogQuota]:
    """The platform's own quotas."""
    return {
        BacklogQuotaType.destination_storage: BacklogQuota(
            limit_size=defaults.backlog_quota_bytes, policy=defaults.backlog_quota_policy
        ),
        BacklogQuotaType.message_age: BacklogQuota(
            limit_time=defaults.backlog_quota_s, policy=defaults.backlog_quota_policy
        ),
    }


def default_publish_rate(defaults: PolicyDefaults) -> PublishRate:
    """The platform's own limit on what comes in."""
    return PublishRate(
        publish_throttling_rate_in_msg=defaults.publish_rate_messages or UNLIMITED,
        publish_throttling_rate_in_byte=defaults.publish_rate_bytes or UNLIMITED,
    )


def default_dispatch_rate(messages: int, size: int, relative: bool) -> DispatchRate:
    """The platform's own limit on what goes out."""
    return DispatchRate(
        dispatch_throttling_rate_in_msg=messages or UNLIMITED,
        dispatch_throttling_rate_in_byte=size or UNLIMITED,
        relative_to_publish_rate=relative,
    )


_FROM_AUTO_UPDATE: Final[Mapping[SchemaAutoUpdateStrategy, SchemaCompatibilityStrategy]] = MappingProxyType(
    {
        SchemaAutoUpdateStrategy.AutoUpdateDisabled: SchemaCompatibilityStrategy.ALWAYS_INCOMPATIBLE,
        SchemaAutoUpdateStrategy.Backward: SchemaCompatibilityStrategy.BACKWARD,
        SchemaAutoUpdateStrategy.Forward: SchemaCompatibilityStrategy.FORWARD,
        SchemaAutoUpdateStrategy.Full: SchemaCompatibilityStrategy.FULL,
        SchemaAutoUpdateStrategy.AlwaysCompatible: SchemaCompatibilityStrategy.ALWAYS_COMPATIBLE,
        SchemaAutoUpdateStrategy.BackwardTransitive: SchemaCompatibilityStrategy.BACKWARD_TRANSITIVE,
        SchemaAutoUpdateStrategy.ForwardTransitive: SchemaCompatibilityStrategy.FORWARD_TRANSITIVE,
        SchemaAutoUpdateStrategy.FullTransitive: SchemaCompatibilityStrategy.FULL_TRANSITIVE,
    }
)


def schema_strategy(
    namespace: Policies, own: TopicPolicies, defaults: PolicyDefaults
) -> SchemaCompatibilityStrategy:
    """UNDEFINED passes the question upwards; a namespace may still say it the older way."""
    for said in (own.schema_compatibility_strategy, namespace.schema_compatibility_strategy):
        if said is not None and said is not SchemaCompatibilityStrategy.UNDEFINED:
            return said
    older = namespace.schema_auto_update_compatibility_strategy
    return defaults.schema_compatibility_strategy if older is None else _FROM_AUTO_UPDATE[older]


def first_set(*voices: Value | None) -> Value | None:
    """The first that is not None."""
    return next((voice for voice in voices if voice is not None), None)


def nearest(*voices: Value | None) -> Value:
    """The first that is not None. The last voice is a default: it always speaks."""
    value = first_set(*voices)
    assert value is not None
    return value
