"""A topic's own policies and the record of a partitioned topic. JSON: Pulsar TopicPolicies."""

from __future__ import annotations

from pydantic import Field

from magnetar.policies.creation import AutoSubscriptionCreation
from magnetar.policies.delivery import DelayedDelivery, EntryFilters
from magnetar.policies.model import CamelModel, Int32, Int64
from magnetar.policies.namespace import SubscriptionType
from magnetar.policies.quotas import BacklogQuotas
from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate
from magnetar.policies.schemas import SchemaCompatibilityStrategy
from magnetar.policies.storage import (
    InactiveTopicPolicies,
    OffloadPolicies,
    PersistencePolicies,
    RetentionPolicies,
)


class SubscriptionPolicies(CamelModel):
    """What a topic says about one of its subscriptions."""

    dispatch_rate: DispatchRate | None = None


class TopicPolicies(CamelModel):
    """All that can be said of one topic, all its partitions included. Not set: the namespace decides."""

    backlog_quota_map: BacklogQuotas = Field(default_factory=dict, alias="backLogQuotaMap")
    subscription_types_enabled: list[SubscriptionType] = Field(default_factory=list)
    replication_clusters: list[str] | None = None
    persistence: PersistencePolicies | None = None
    retention_policies: RetentionPolicies | None = None
    deduplication_enabled: bool | None = None
    deduplication_snapshot_interval_seconds: Int32 | None = None
    message_ttl_in_seconds: Int32 | None = Field(default=None, alias="messageTTLInSeconds")
    max_producer_per_topic: Int32 | None = None
    max_consumer_per_topic: Int32 | None = None
    max_consumers_per_subscription: Int32 | None = None
    max_subscriptions_per_topic: Int32 | None = None
    max_unacked_messages_on_consumer: Int32 | None = None
    max_unacked_messages_on_subscription: Int32 | None = None
    max_message_size: Int32 | None = None
    delayed_delivery: DelayedDelivery | None = None
    offload_policies: OffloadPolicies | None = None
    inactive_topic_policies: InactiveTopicPolicies | None = None
    dispatch_rate: DispatchRate | None = None
    subscription_dispatch_rate: DispatchRate | None = None
    replicator_dispatch_rate: DispatchRate | None = None
    publish_rate: PublishRate | None = None
    subscribe_rate: SubscribeRate | None = None
    compaction_threshold: Int64 | None = None
    schema_compatibility_strategy: SchemaCompatibilityStrategy | None = None
    schema_validation_enforced: bool | None = None
    auto_subscription_creation_override: AutoSubscriptionCreation | None = None
    entry_filters: EntryFilters | None = None
    dispatcher_pause_on_ack_state_persistent: bool | None = Field(
        default=None, alias="dispatcherPauseOnAckStatePersistentEnabled"
    )
    subscription_policies: dict[str, SubscriptionPolicies] = Field(default_factory=dict)
    shadow_topics: list[str] | None = None
    resource_group_name: str | None = None


class TopicPoliciesRecord(CamelModel):
    """What is stored for a topic: what holds here, and what holds on every cluster it is replicated to."""

    local: TopicPolicies = Field(default_factory=TopicPolicies)
    everywhere: TopicPolicies = Field(default_factory=TopicPolicies, alias="global")


class PartitionedTopicMetadata(CamelModel):
    """How many partitions a topic has."""

    partitions: Int32 = 0
    deleted: bool = False
    properties: dict[str, str] | None = None
