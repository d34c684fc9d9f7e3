"""Which policies this platform acts on, and which it only keeps for tools that read them back.

A policy that is kept and not acted upon is told by the header `X-Magnetar-Policy: not-enforced` in every
answer that concerns it, and in docs/admin.md. A test compares this list with what the broker reads.
"""

from __future__ import annotations

from typing import Final

HEADER: Final = "x-magnetar-policy"
NOT_ENFORCED: Final = "not-enforced"

KEPT_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "antiAffinity": (),
    "deduplicationSnapshotInterval": ("deduplication_snapshot_interval_s",),
    "dispatcherPauseOnAckStatePersistent": (),
    "entryFilters": ("entry_filters",),
    "migration": (),
    "namespaceIsolationPolicies": (),
    "offload": ("offload",),
    "permissions": (),
    "replication": ("replication_clusters",),
    "replicatorDispatchRate": ("replicator_dispatch_rate",),
    "resourceQuota": (),
    "shadowTopics": (),
    "subscriptionAuthMode": ("subscription_auth_mode",),
}
"""By the name in paths: the fields of `EffectivePolicies` that nobody reads yet."""

ENFORCED: Final[dict[str, tuple[str, ...]]] = {
    "autoSubscriptionCreation": ("auto_subscription_creation",),
    "autoTopicCreation": ("auto_topic_creation", "auto_topic_partitions"),
    "backlogQuota": ("backlog_quotas",),
    "compactionThreshold": ("compaction_threshold_bytes",),
    "deduplication": ("deduplication_enabled",),
    "delayedDelivery": ("delayed_delivery",),
    "dispatchRate": ("dispatch_rate",),
    "encryptionRequired": ("encryption_required",),
    "inactiveTopicPolicies": ("delete_inactive_topics", "inactive_topic_delete_mode", "inactive_topic_s"),
    "isAllowAutoUpdateSchema": ("allow_auto_update_schema",),
    "maxConsumersPerSubscription": ("max_consumers_per_subscription",),
    "maxConsumersPerTopic": ("max_consumers_per_topic",),
    "maxMessageSize": ("max_message_bytes",),
    "maxProducersPerTopic": ("max_producers_per_topic",),
    "maxSubscriptionsPerTopic": ("max_subscriptions_per_topic",),
    "maxTopicsPerNamespace": ("max_topics_per_namespace",),
    "maxUnackedMessagesPerConsumer": ("max_unacked_messages_per_consumer",),
    "maxUnackedMessagesPerSubscription": ("max_unacked_messages_per_subscription",),
    "messageTTL": ("message_ttl_s",),
    "persistence": ("ensemble_size", "write_quorum", "ack_quorum", "mark_delete_rate"),
    "persistence/bookieAffinity": ("bookie_affinity",),
    "publishRate": ("publish_rate",),
    "resourcegroup": ("resource_group",),
    "retention": ("retention_time_s", "retention_size_bytes"),
    "schemaCompatibilityStrategy": ("schema_compatibility_strategy",),
    "schemaValidationEnforced": ("schema_validation_enforced",),
    "subscribeRate": ("subscribe_rate",),
    "subscriptionDispatchRate": ("subscription_dispatch_rate", "subscription_dispatch_rates"),
    "subscriptionExpirationTime": ("subscription_expiration_s",),
    "subscriptionTypesEnabled": ("subscription_types",),
}
"""By the name in paths: the fields of `EffectivePolicies` that the broker acts on."""


def is_enforced(policy: str) -> bool:
    """Whether anything comes of setting `policy`."""
    return policy not in KEPT_ONLY


def note(policy: str) -> dict[str, str]:
    """The header of an answer that concerns `policy`."""
    return {} if is_enforced(policy) else {HEADER: NOT_ENFORCED}
