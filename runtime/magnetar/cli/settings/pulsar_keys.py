"""Pulsar's own configuration files: `broker.conf`, `standalone.conf`, `bookkeeper.conf`.

The common keys are understood; the others are named once in the log and change nothing, so that an old file
keeps working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from magnetar.cli.errors import SettingsError
from magnetar.cli.settings.setting import Setting
from magnetar.environment.logs import get_logger

_log = get_logger("magnetar.cli")


class Translation(NamedTuple):
    """Our key, and how its value follows from Pulsar's text."""

    key: str
    convert: Callable[[str], Any]


def _scaled(factor: float) -> Callable[[str], float]:
    """Numbers in another unit; a negative one means "no limit" in both and stays."""

    def convert(text: str) -> float:
        number = float(text)
        scaled = number * factor if number > 0 else number
        return int(scaled) if scaled == int(scaled) else scaled

    return convert


def _text(text: str) -> str:
    return text


def _no_limit_is_zero(text: str) -> float:
    """Where Pulsar writes -1 for "off", we write 0."""
    return max(0.0, float(text))


def _store(text: str) -> str:
    """`zk:` before a bare list of hosts."""
    return text if text.partition(":")[0] in ("zk", "rocksdb", "memory") else f"zk:{text}"


def _list(text: str) -> list[str]:
    """Names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


_MIB = _scaled(1024 * 1024)
_MINUTES = _scaled(60)
_MILLISECONDS = _scaled(0.001)


def _same(ours: str) -> Translation:
    return Translation(ours, _text)


def is_taken_as_it_is(translation: Translation) -> bool:
    """Whether Pulsar's value and ours are the same text."""
    return translation.convert is _text


TRANSLATIONS: dict[str, Translation] = {
    # Where and who.
    "clusterName": _same("cluster"),
    "bindAddress": _same("host"),
    "advertisedAddress": _same("broker.advertised_host"),
    "brokerServicePort": _same("port"),
    "webServicePort": _same("web_port"),
    "bookiePort": _same("bookie_port"),
    "bookieId": _same("bookie_id"),
    "metadataStoreUrl": Translation("metadata_store", _store),
    "zookeeperServers": Translation("metadata_store", _store),
    "zkServers": Translation("metadata_store", _store),
    "brokerShutdownTimeoutMs": Translation("drain_s", _MILLISECONDS),
    "managedLedgerCacheSizeMB": Translation("entry_cache_bytes", _MIB),
    "functionsWorkerEnabled": _same("functions"),
    # Transactions.
    "transactionCoordinatorEnabled": _same("broker.transaction_coordinator_enabled"),
    "maxActiveTransactionsPerCoordinator": _same("broker.transactions_per_coordinator_max"),
    "transactionBufferSnapshotMaxTransactionCount": _same("broker.transaction_buffer_snapshot_entries"),
    "transactionBufferSnapshotMinTimeInMillis": Translation(
        "broker.transaction_buffer_snapshot_interval_s", _MILLISECONDS
    ),
    # Broker.
    "maxMessageSize": _same("broker.max_message_bytes"),
    "keepAliveIntervalSeconds": _same("broker.keep_alive_interval_s"),
    "connectionLivenessCheckTimeoutMillis": Translation("broker.liveness_check_timeout_s", _MILLISECONDS),
    "maxPendingPublishRequestsPerConnection": _same("broker.max_pending_publishes_per_connection"),
    "maxMessagePublishBufferSizeInMB": Translation("broker.max_pending_publish_bytes", _MIB),
    "maxSameAddressProducersPerTopic": _same("broker.max_same_address_producers_per_topic"),
    "maxSameAddressConsumersPerTopic": _same("broker.max_same_address_consumers_per_topic"),
    "brokerMaxConnections": _same("broker.max_connections"),
    "managedLedgerMaxEntriesPerLedger": _same("broker.ledger_max_entries"),
    "managedLedgerMaxSizePerLedgerMbytes": Translation("broker.ledger_max_bytes", _MIB),
    "managedLedgerMaxLedgerRolloverTimeMinutes": Translation("broker.ledger_max_age_s", _MINUTES),
    "managedLedgerMinLedgerRolloverTimeMinutes": Translation("broker.ledger_min_age_s", _MINUTES),
    "managedLedgerInactiveLedgerRolloverTimeSeconds": _same("broker.ledger_inactive_s"),
    "autoSkipNonRecoverableData": _same("broker.auto_skip_lost_entries"),
    "dispatcherMaxReadBatchSize": _same("broker.dispatch_entries"),
    "dispatcherMaxReadSizeBytes": _same("broker.dispatch_bytes"),
    "maxUnackedMessagesPerBroker": _same("broker.max_unacked_messages_per_broker"),
    "maxUnackedMessagesPerSubscriptionOnBrokerBlocked": _same("broker.max_unacked_share_when_blocked"),
    "activeConsumerFailoverDelayTimeMillis": Translation("broker.failover_delay_s", _MILLISECONDS),
    "acknowledgmentAtBatchIndexLevelEnabled": _same("broker.batch_index_acknowledgement"),
    "exposingBrokerEntryMetadataToClientEnabled": _same("broker.expose_entry_metadata"),
    "exposeTopicLevelMetricsInPrometheus": _same("broker.topic_metrics"),
    "exposeConsumerLevelMetricsInPrometheus": _same("broker.consumer_metrics"),
    "exposeProducerLevelMetricsInPrometheus": _same("broker.producer_metrics"),
    "exposeManagedLedgerMetricsInPrometheus": _same("broker.managed_ledger_metrics"),
    "topicCompactionRetainNullKey": _same("broker.compaction_retain_keyless"),
    "brokerDeduplicationEntriesInterval": _same("broker.deduplication_snapshot_entries"),
    "brokerDeduplicationMaxNumberOfProducers": _same("broker.deduplication_max_producers"),
    "brokerDeduplicationProducerInactivityTimeoutMinutes": Translation(
        "broker.deduplication_inactivity_s", _MINUTES
    ),
    "messageExpiryCheckIntervalInMinutes": Translation("broker.message_expiry_check_interval_s", _MINUTES),
    "backlogQuotaCheckIntervalInSeconds": _same("broker.backlog_quota_check_interval_s"),
    "brokerDeleteInactiveTopicsFrequencySeconds": _same("broker.inactive_topic_check_interval_s"),
    "brokerDeleteInactivePartitionedTopicMetadataEnabled": _same(
        "broker.delete_inactive_partitioned_metadata"
    ),
    "subscriptionExpiryCheckIntervalInMinutes": Translation(
        "broker.subscription_expiry_check_interval_s", _MINUTES
    ),
    "brokerServiceCompactionMonitorIntervalInSeconds": _same("broker.compaction_check_interval_s"),
    "topicLoadTimeoutSeconds": _same("broker.topic_load_timeout_s"),
    "maxConsumerMetadataSize": _same("broker.metadata_bytes_max"),
    "subscriptionPatternMaxLength": _same("broker.pattern_length_max"),
    # REST API.
    "httpMaxRequestHeaderSize": _same("web.header_bytes_max"),
    "maxHttpServerConnections": _same("web.connections_max"),
    "maxConcurrentHttpRequests": _same("web.requests_max"),
    "forceDeleteNamespaceAllowed": _same("web.force_delete_allowed"),
    # What holds for topics.
    "brokerDeduplicationEnabled": _same("policies.deduplication_enabled"),
    "brokerDeduplicationSnapshotIntervalSeconds": _same("policies.deduplication_snapshot_interval_s"),
    "defaultRetentionTimeInMinutes": Translation("policies.retention_time_s", _MINUTES),
    "defaultRetentionSizeInMB": Translation("policies.retention_size_bytes", _MIB),
    "ttlDurationDefaultInSeconds": _same("policies.message_ttl_s"),
    "backlogQuotaDefaultLimitBytes": _same("policies.backlog_quota_bytes"),
    "backlogQuotaDefaultLimitSecond": _same("policies.backlog_quota_s"),
    "backlogQuotaDefaultRetentionPolicy": _same("policies.backlog_quota_policy"),
    "managedLedgerDefaultEnsembleSize": _same("policies.ensemble_size"),
    "managedLedgerDefaultWriteQuorum": _same("policies.write_quorum"),
    "managedLedgerDefaultAckQuorum": _same("policies.ack_quorum"),
    "managedLedgerDefaultMarkDeleteRateLimit": _same("policies.mark_delete_rate"),
    # The ledger client.
    "bookkeeperClientHealthCheckIntervalSeconds": _same("ledger.quarantine_interval_s"),
    "bookkeeperClientHealthCheckErrorThresholdPerInterval": _same("ledger.quarantine_errors"),
    "bookkeeperClientHealthCheckQuarantineTimeInSeconds": _same("ledger.quarantine_max_s"),
    "bookkeeperClientQuarantineRatio": _same("ledger.quarantine_ratio"),
    "bookkeeperExplicitLacIntervalInMills": Translation("ledger.explicit_lac_s", _MILLISECONDS),
    "bookkeeper_diskWeightBasedPlacementEnabled": _same("ledger.placement_by_free_space"),
    "bookkeeper_bookieMaxWeightMultipleForWeightBasedPlacement": _same("ledger.placement_weight_max"),
    "bookkeeperClientSpeculativeReadTimeoutInMillis": Translation("ledger.speculative_read_s", _MILLISECONDS),
    "bookkeeper_delayEnsembleChange": _same("ledger.delay_ensemble_change"),
    "allowAutoTopicCreation": _same("policies.auto_topic_creation"),
    "allowAutoTopicCreationType": _same("policies.auto_topic_type"),
    "defaultNumPartitions": _same("policies.auto_topic_partitions"),
    "allowAutoSubscriptionCreation": _same("policies.auto_subscription_creation"),
    "maxNumPartitionsPerPartitionedTopic": _same("policies.max_partitions_per_topic"),
    "maxTenants": _same("policies.max_tenants"),
    "maxNamespacesPerTenant": _same("policies.max_namespaces_per_tenant"),
    "maxTopicsPerNamespace": _same("policies.max_topics_per_namespace"),
    "maxProducersPerTopic": _same("policies.max_producers_per_topic"),
    "maxConsumersPerTopic": _same("policies.max_consumers_per_topic"),
    "maxConsumersPerSubscription": _same("policies.max_consumers_per_subscription"),
    "maxSubscriptionsPerTopic": _same("policies.max_subscriptions_per_topic"),
    "maxUnackedMessagesPerConsumer": _same("policies.max_unacked_messages_per_consumer"),
    "maxUnackedMessagesPerSubscription": _same("policies.max_unacked_messages_per_subscription"),
    "subscriptionExpirationTimeMinutes": Translation("policies.subscription_expiration_s", _MINUTES),
    "schemaCompatibilityStrategy": _same("policies.schema_compatibility_strategy"),
    "isSchemaValidationEnforced": _same("policies.schema_validation_enforced"),
    "isAllowAutoUpdateSchemaEnabled": _same("policies.allow_auto_update_schema"),
    "brokerServiceCompactionThresholdInBytes": _same("policies.compaction_threshold_bytes"),
    "brokerDeleteInactiveTopicsEnabled": _same("policies.delete_inactive_topics"),
    "brokerDeleteInactiveTopicsMode": _same("policies.inactive_topic_delete_mode"),
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": _same("policies.inactive_topic_s"),
    "entryFilterNames": Translation("policies.entry_filters", _names),
    "entryFiltersDirectory": _same("broker.entry_filters_directory"),
    "dispatcherEntryFilterRescheduledMessageDelay": Translation(
        "broker.entry_filter_reschedule_s", _MILLISECONDS
    ),
    "delayedDeliveryEnabled": _same("policies.delayed_delivery.active"),
    "delayedDeliveryTickTimeMillis": _same("policies.delayed_delivery.tick_time"),
    "delayedDeliveryMaxDelayInMillis": _same("policies.delayed_delivery.max_delivery_delay_in_millis"),
    "maxPublishRatePerTopicInMessages": _same("policies.publish_rate_messages"),
    "maxPublishRatePerTopicInBytes": _same("policies.publish_rate_bytes"),
    "dispatchThrottlingRatePerTopicInMsg": _same("policies.dispatch_rate_messages"),
    "dispatchThrottlingRatePerTopicInByte": _same("policies.dispatch_rate_bytes"),
    "dispatchThrottlingRateRelativeToPublishRate": _same("policies.dispatch_rate_relative"),
    "dispatchThrottlingRatePerSubscriptionInMsg": _same("policies.subscription_dispatch_rate_messages"),
    "dispatchThrottlingRatePerSubscriptionInByte": _same("policies.subscription_dispatch_rate_bytes"),
    "subscribeThrottlingRatePerConsumer": _same("policies.subscribe_rate"),
    "subscribeRatePeriodPerConsumerInSecond": _same("policies.subscribe_rate_period_s"),
    "brokerPublisherThrottlingMaxMessageRate": _same("broker.publish_rate_messages"),
    "brokerPublisherThrottlingMaxByteRate": _same("broker.publish_rate_bytes"),
    "dispatchThrottlingRateInMsg": _same("broker.dispatch_rate_messages"),
    "dispatchThrottlingRateInByte": _same("broker.dispatch_rate_bytes"),
    "dispatchThrottlingOnBatchMessageEnabled": _same("broker.dispatch_rate_by_entry"),
    "dispatchThrottlingOnNonBacklogConsumerEnabled": _same("broker.dispatch_rate_for_caught_up"),
    # Bookie.
    "journalDirectories": Translation("bookie.journal_directories", _list),
    "journalDirectory": Translation("bookie.journal_directories", _list),
    "ledgerDirectories": Translation("bookie.ledger_directories", _list),
    "journalMaxSizeMB": Translation("bookie.journal_segment_bytes", _MIB),
    "dbStorage_writeCacheMaxSizeMb": Translation("bookie.write_cache_bytes", _MIB),
    "dbStorage_readAheadCacheMaxSizeMb": Translation("bookie.read_cache_bytes", _MIB),
    "logSizeLimit": _same("bookie.entry_log_bytes"),
    "flushInterval": Translation("bookie.flush_interval_s", _MILLISECONDS),
    "gcOverreplicatedLedgerWaitTime": Translation("bookie.gc_over_replicated_interval_s", _MILLISECONDS),
    "gcWaitTime": Translation("bookie.gc_interval_s", _MILLISECONDS),
    "minUsableSizeForEntryLogCreation": _same("bookie.free_bytes_min"),
    "diskUsageThreshold": _same("bookie.disk_full_usage"),
    "diskUsageWarnThreshold": _same("bookie.disk_warn_usage"),
    "diskUsageLwmThreshold": _same("bookie.disk_low_usage"),
    # Autorecovery.
    "lostBookieRecoveryDelay": _same("autorecovery.lost_bookie_recovery_delay_s"),
    "openLedgerRereplicationGracePeriod": Translation("autorecovery.open_ledger_grace_s", _MILLISECONDS),
    "rereplicationEntryBatchSize": _same("autorecovery.copy_batch_entries"),
    "replicationRateByBytes": Translation("autorecovery.copy_bytes_per_s", _no_limit_is_zero),
    "auditorPeriodicBookieCheckInterval": Translation(
        "autorecovery.bookie_check_interval_s", _no_limit_is_zero
    ),
    "auditorPeriodicCheckInterval": Translation("autorecovery.ledger_check_interval_s", _no_limit_is_zero),
    "auditorPeriodicPlacementPolicyCheckInterval": Translation(
        "autorecovery.placement_check_interval_s", _no_limit_is_zero
    ),
    "auditorLedgerVerificationPercentage": Translation("autorecovery.ledger_check_share", _scaled(0.01)),
    "auditorMaxNumberOfConcurrentOpenLedgerOperations": _same("autorecovery.ledger_check_concurrency"),
    "lockReleaseOfFailedLedgerGracePeriod": Translation("autorecovery.retry_max_s", _MILLISECONDS),
    "autoRecoveryDaemonEnabled": _same("bookie_autorecovery"),
}


def read_pulsar_file(path: Path, text: str) -> Iterator[Setting]:
    """The settings of a `key=value` file. Keys without a value mean Pulsar's default, and are passed over.

    Raises:
        SettingsError: a line that is none, or a value that cannot be converted.
    """
    ignored = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        if not equals:
            raise SettingsError(f"{path}:{number}: expected key=value, found {line!r}")
        if not value:
            continue
        translation = TRANSLATIONS.get(key)
        if translation is None:
            ignored.append(key)
            continue
        try:
            converted = translation.convert(value)
        except ValueError:
            raise SettingsError(f"{path}:{number}: {key}: expected a number, not {value!r}") from None
        yield Setting(translation.key, converted, f"{path}:{number} ({key})")
    if ignored:
        _log.info("settings.keys_without_effect", file=str(path), keys=",".join(ignored))
