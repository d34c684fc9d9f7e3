"""Dynamic configuration: broker settings that may be changed while the platform runs.

Keys and values are those of Pulsar's broker.conf. Most are kept for tools that read them back; those in
`_APPLIED` change what holds for topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pydantic import Field

from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.model import PolicyModel
from magnetar.policies.quotas import BacklogQuotaPolicy
from magnetar.policies.schemas import SchemaCompatibilityStrategy


def _truth(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
    raise ValueError("write true or false")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("write 0 or more")
    return number


def _minutes(text: str) -> int:
    return _count(text) * 60


_APPLIED: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "allowAutoTopicCreation": ("auto_topic_creation", _truth),
    "allowAutoTopicCreationType": ("auto_topic_type", str),
    "defaultNumPartitions": ("auto_topic_partitions", _count),
    "allowAutoSubscriptionCreation": ("auto_subscription_creation", _truth),
    "maxNumPartitionsPerPartitionedTopic": ("max_partitions_per_topic", _count),
    "maxTenants": ("max_tenants", _count),
    "maxNamespacesPerTenant": ("max_namespaces_per_tenant", _count),
    "maxTopicsPerNamespace": ("max_topics_per_namespace", _count),
    "maxProducersPerTopic": ("max_producers_per_topic", _count),
    "maxConsumersPerTopic": ("max_consumers_per_topic", _count),
    "maxConsumersPerSubscription": ("max_consumers_per_subscription", _count),
    "maxSubscriptionsPerTopic": ("max_subscriptions_per_topic", _count),
    "maxUnackedMessagesPerConsumer": ("max_unacked_messages_per_consumer", _count),
    "maxUnackedMessagesPerSubscription": ("max_unacked_messages_per_subscription", _count),
    "subscriptionExpirationTimeMinutes": ("subscription_expiration_s", _minutes),
    "ttlDurationDefaultInSeconds": ("message_ttl_s", _count),
    "brokerDeduplicationEnabled": ("deduplication_enabled", _truth),
    "brokerDeduplicationSnapshotIntervalSeconds": ("deduplication_snapshot_interval_s", _count),
    "backlogQuotaDefaultLimitBytes": ("backlog_quota_bytes", int),
    "backlogQuotaDefaultLimitSecond": ("backlog_quota_s", int),
    "backlogQuotaDefaultRetentionPolicy": ("backlog_quota_policy", BacklogQuotaPolicy),
    "schemaCompatibilityStrategy": ("schema_compatibility_strategy", SchemaCompatibilityStrategy),
    "isSchemaValidationEnforced": ("schema_validation_enforced", _truth),
    "isAllowAutoUpdateSchemaEnabled": ("allow_auto_update_schema", _truth),
    "brokerDeleteInactiveTopicsEnabled": ("delete_inactive_topics", _truth),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": ("inactive_topic_s", _count),
    "maxPublishRatePerTopicInMessages": ("publish_rate_messages", _count),
    "maxPublishRatePerTopicInBytes": ("publish_rate_bytes", _count),
    "dispatchThrottlingRatePerTopicInMsg": ("dispatch_rate_messages", _count),
    "dispatchThrottlingRatePerTopicInByte": ("dispatch_rate_bytes", _count),
    "dispatchThrottlingRateRelativeToPublishRate": ("dispatch_rate_relative", _truth),
    "dispatchThrottlingRatePerSubscriptionInMsg": ("subscription_dispatch_rate_messages", _count),
    "dispatchThrottlingRatePerSubscriptionInByte": ("subscription_dispatch_rate_bytes", _count),
    "subscribeThrottlingRatePerConsumer": ("subscribe_rate", _count),
    "subscribeRatePeriodPerConsumerInSecond": ("subscribe_rate_period_s", _count),
}

# Kept and read back only; the brokers of this version do not act on them.
_KEPT: Final = (
    "loadBalancerSheddingExcludedNamespaces",
    "loadBalancerSheddingEnabled",
    "loadBalancerAutoBundleSplitEnabled",
    "loadBalancerDebugModeEnabled",
    "loadManagerClassName",
    "brokerPublisherThrottlingMaxMessageRate",
    "brokerPublisherThrottlingMaxByteRate",
    "maxConcurrentLookupRequest",
    "maxConcurrentTopicLoadRequest",
    "superUserRoles",
    "topicLevelPoliciesEnabled",
    "retentionCheckIntervalInSeconds",
    "backlogQuotaCheckIntervalInSeconds",
    "forceDeleteNamespaceAllowed",
    "forceDeleteTenantAllowed",
)

DYNAMIC_KEYS: Final[tuple[str, ...]] = tuple(sorted((*_APPLIED, *_KEPT)))


class DynamicConfiguration(PolicyModel):
    """Which settings have been changed, as text."""

    values: dict[str, str] = Field(default_factory=dict)

    def with_value(self, key: str, value: str | None) -> DynamicConfiguration:
        others = {name: text for name, text in self.values.items() if name != key}
        return self.changed(values=others if value is None else {**others, key: value})

    def applied_to(self, defaults: PolicyDefaults) -> PolicyDefaults:
        """The defaults with these settings. A value that makes no sense leaves its setting as it was."""
        changes: dict[str, Any] = {}
        for key, text in self.values.items():
            if key in _APPLIED:
                name, read = _APPLIED[key]
                with suppress(ValueError):
                    changes[name] = read(text)
        return replace(defaults, **changes) if changes else defaults
