"""Which policies this platform acts on, which it only keeps for tools that read them back, and which it refuses.

A policy that is kept and not acted upon is told by the header `X-Magnetar-Policy: not-enforced` in every
answer that concerns it, and in docs/admin.md. A test compares this list with what the broker reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.policies.errors import PreconditionFailed

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.policies.delivery import EntryFilters

HEADER: Final = "x-magnetar-policy"
NOT_ENFORCED: Final = "not-enforced"

KEPT_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "antiAffinity": (),
    "namespaceIsolationPolicies": (),
    "offload": ("offload",),
    "permissions": (),
    "replication": ("replication_clusters",),
    "replicatorDispatchRate": ("replicator_dispatch_rate",),
    "resourceQuota": (),
}
"""By the name in paths: the fields of `EffectivePolicies` that nobody reads yet."""

ENFORCED: Final[dict[str, tuple[str, ...]]] = {
    "autoSubscriptionCreation": ("auto_subscription_creation",),
    "autoTopicCreation": ("auto_topic_creation", "auto_topic_partitions"),
    "backlogQuota": ("backlog_quotas",),
    "compactionThreshold": ("compaction_threshold_bytes",),
    "deduplication": ("deduplication_enabled",),
    "deduplicationSnapshotInterval": ("deduplication_snapshot_interval_s",),
    "delayedDelivery": ("delayed_delivery",),
    "dispatcherPauseOnAckStatePersistent": (),  # Cursors leave nothing out of what they store.
    "dispatchRate": ("dispatch_rate",),
    "encryptionRequired": ("encryption_required",),
    "entryFilters": ("entry_filters",),
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
    "subscriptionAuthMode": ("subscription_auth_mode",),
    "subscriptionDispatchRate": ("subscription_dispatch_rate", "subscription_dispatch_rates"),
    "subscriptionExpirationTime": ("subscription_expiration_s",),
    "subscriptionTypesEnabled": ("subscription_types",),
}
"""By the name in paths: the fields of `EffectivePolicies` that the broker acts on."""


REFUSED: Final[dict[str, str]] = {
    "migration": "namespaces are not migrated to other clusters by this version",
    "shadowTopics": "shadow topics are not served by this version: subscribe to the topic itself",
}
"""By the name in paths: what setting it is answered with. Reading it, or taking it back, tells that nothing is set."""


def is_enforced(policy: str) -> bool:
    """Whether anything comes of setting `policy`."""
    return policy in ENFORCED


def check_filters(call: Call, said: EntryFilters) -> None:
    """
    Raises:
        PreconditionFailed: the broker has no such filters, so that nothing could pass them.
    """
    missing = call.admin.broker.context.entry_filters.missing(said.names)
    if missing:
        raise PreconditionFailed(
            f"Entry filters {', '.join(missing)} do not exist on this broker: put them, as NAME.py, into the "
            f"directory that entry_filters_directory names"
        )


def note(policy: str) -> dict[str, str]:
    """The header of an answer that concerns `policy`."""
    return {HEADER: NOT_ENFORCED} if policy in KEPT_ONLY else {}
