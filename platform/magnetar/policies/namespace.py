"""A namespace's policies. JSON: Pulsar Policies, whose names are a mixture; each field says its own."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from magnetar.policies.creation import AutoSubscriptionCreation, AutoTopicCreation
from magnetar.policies.delivery import DelayedDelivery, EntryFilters
from magnetar.policies.model import CamelModel, Int32, Int64, PolicyModel
from magnetar.policies.quotas import BacklogQuotas
from magnetar.policies.rates import DispatchRate, PublishRate, SubscribeRate
from magnetar.policies.schemas import SchemaAutoUpdateStrategy, SchemaCompatibilityStrategy
from magnetar.policies.storage import (
    BookieAffinity,
    InactiveTopicPolicies,
    OffloadPolicies,
    PersistencePolicies,
    RetentionPolicies,
)


class AuthAction(StrEnum):
    """What a role can be allowed on a namespace or topic."""

    produce = "produce"
    consume = "consume"
    functions = "functions"
    sources = "sources"
    sinks = "sinks"
    packages = "packages"


class SubscriptionAuthMode(StrEnum):
    """How a subscription's name is bound to a role."""

    NONE = "None"
    PREFIX = "Prefix"


class SubscriptionType(StrEnum):
    """The four ways consumers share a subscription."""

    Exclusive = "Exclusive"
    Shared = "Shared"
    Failover = "Failover"
    Key_Shared = "Key_Shared"


Permissions = dict[str, list[AuthAction]]


class AuthPolicies(PolicyModel):
    """Who may do what in a namespace."""

    namespace_auth: Permissions = Field(default_factory=dict)
    destination_auth: dict[str, Permissions] = Field(default_factory=dict)
    """By the topic's full name."""
    subscription_auth_roles: dict[str, list[str]] = Field(default_factory=dict)


class BundlesData(CamelModel):
    """How a namespace's topics are divided among brokers."""

    boundaries: list[str] = Field(default_factory=list)
    num_bundles: Int32 = 0

    @classmethod
    def even(cls, count: int) -> BundlesData:
        """`count` bundles of one size. Source: Pulsar PoliciesUtil.getBundles."""
        segment = 0x1_0000_0000 // count
        boundaries = [f"0x{segment * index:08x}" for index in range(count)]
        return cls(boundaries=[*boundaries, "0xffffffff"], num_bundles=count)


class LocalPolicies(PolicyModel):
    """What holds for a namespace on this cluster only."""

    bundles: BundlesData | None = None
    bookie_affinity_group: BookieAffinity | None = Field(default=None, alias="bookieAffinityGroup")
    anti_affinity_group: str | None = Field(default=None, alias="namespaceAntiAffinityGroup")
    migrated: bool = False


class Policies(PolicyModel):
    """All that can be said of a namespace. None, an empty map or an empty list: the level above decides."""

    auth_policies: AuthPolicies = Field(default_factory=AuthPolicies)
    replication_clusters: list[str] = Field(default_factory=list)
    allowed_clusters: list[str] = Field(default_factory=list)
    bundles: BundlesData | None = None
    backlog_quota_map: BacklogQuotas = Field(default_factory=dict)
    publish_max_message_rate: dict[str, PublishRate] = Field(
        default_factory=dict, alias="publishMaxMessageRate"
    )
    cluster_dispatch_rate: dict[str, DispatchRate] = Field(default_factory=dict, alias="clusterDispatchRate")
    topic_dispatch_rate: dict[str, DispatchRate] = Field(default_factory=dict, alias="topicDispatchRate")
    subscription_dispatch_rate: dict[str, DispatchRate] = Field(
        default_factory=dict, alias="subscriptionDispatchRate"
    )
    replicator_dispatch_rate: dict[str, DispatchRate] = Field(
        default_factory=dict, alias="replicatorDispatchRate"
    )
    cluster_subscribe_rate: dict[str, SubscribeRate] = Field(
        default_factory=dict, alias="clusterSubscribeRate"
    )
    persistence: PersistencePolicies | None = None
    deduplication_enabled: bool | None = Field(default=None, alias="deduplicationEnabled")
    deduplication_snapshot_interval_seconds: Int32 | None = Field(
        default=None, alias="deduplicationSnapshotIntervalSeconds"
    )
    auto_topic_creation_override: AutoTopicCreation | None = Field(
        default=None, alias="autoTopicCreationOverride"
    )
    auto_subscription_creation_override: AutoSubscriptionCreation | None = Field(
        default=None, alias="autoSubscriptionCreationOverride"
    )
    latency_stats_sample_rate: dict[str, Int32] = Field(default_factory=dict)
    message_ttl_in_seconds: Int32 | None = None
    subscription_expiration_time_minutes: Int32 | None = None
    retention_policies: RetentionPolicies | None = None
    deleted: bool = False
    encryption_required: bool = False
    delayed_delivery_policies: DelayedDelivery | None = None
    inactive_topic_policies: InactiveTopicPolicies | None = None
    subscription_auth_mode: SubscriptionAuthMode = SubscriptionAuthMode.NONE
    max_producers_per_topic: Int32 | None = None
    max_consumers_per_topic: Int32 | None = None
    max_consumers_per_subscription: Int32 | None = None
    max_unacked_messages_per_consumer: Int32 | None = None
    max_unacked_messages_per_subscription: Int32 | None = None
    max_topics_per_namespace: Int32 | None = None
    max_subscriptions_per_topic: Int32 | None = None
    compaction_threshold: Int64 | None = None
    offload_threshold: Int64 = -1
    offload_threshold_in_seconds: Int64 = -1
    offload_deletion_lag_ms: Int64 | None = None
    offload_policies: OffloadPolicies | None = None
    schema_auto_update_compatibility_strategy: SchemaAutoUpdateStrategy | None = None
    schema_compatibility_strategy: SchemaCompatibilityStrategy = SchemaCompatibilityStrategy.UNDEFINED
    is_allow_auto_update_schema: bool | None = None
    schema_validation_enforced: bool = False
    subscription_types_enabled: list[SubscriptionType] = Field(default_factory=list)
    properties: dict[str, str] = Field(default_factory=dict)
    resource_group_name: str | None = None
    entry_filters: EntryFilters | None = Field(default=None, alias="entryFilters")
    dispatcher_pause_on_ack_state_persistent: bool | None = Field(
        default=None, alias="dispatcherPauseOnAckStatePersistentEnabled"
    )
    migrated: bool = False
