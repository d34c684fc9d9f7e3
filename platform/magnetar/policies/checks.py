"""What policies may not say: each check raises, or returns what it was given. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.naming import InvalidName, TopicName, check_name
from magnetar.policies.creation import NON_PARTITIONED, PARTITIONED, AutoTopicCreation
from magnetar.policies.errors import BadValue, LimitExceeded, PreconditionFailed
from magnetar.policies.quotas import BacklogQuota, BacklogQuotas, BacklogQuotaType
from magnetar.policies.storage import PersistencePolicies, RetentionPolicies


def check_plain_name(kind: str, name: str) -> str:
    """Tenants, namespaces and clusters. Raises PreconditionFailed."""
    try:
        return check_name(kind, name)
    except InvalidName as error:
        raise PreconditionFailed(f"{kind.capitalize()} name is not valid: {error}") from None


def check_partition_count(partitions: int, limit: int) -> int:
    """Raises LimitExceeded."""
    if partitions <= 0:
        raise LimitExceeded("Number of partitions should be more than 0")
    if limit and partitions > limit:
        raise LimitExceeded(
            f"Number of partitions should be less than or equal to {limit}; "
            f"{partitions} were asked for (maxNumPartitionsPerPartitionedTopic)"
        )
    return partitions


def check_growth(partitions: int, wanted: int) -> int:
    """Partitions are never taken away: their messages would be. Raises LimitExceeded."""
    if wanted < partitions:
        raise LimitExceeded(
            f"Number of partitions must not be less than the existing {partitions}: partitions are never removed"
        )
    return wanted


def check_partitioned_name(topic: TopicName) -> TopicName:
    """A partitioned topic's own name. Raises PreconditionFailed."""
    if "-partition-" in topic.local_name:
        raise PreconditionFailed("Partitioned Topic Name should not contain '-partition-'")
    return topic


def check_not_negative(name: str, value: int) -> int:
    """Raises PreconditionFailed."""
    if value < 0:
        raise PreconditionFailed(f"{name} must be 0 or more")
    return value


def check_persistence(persistence: PersistencePolicies) -> PersistencePolicies:
    """Raises BadValue."""
    ensemble = persistence.bookkeeper_ensemble
    write_quorum = persistence.bookkeeper_write_quorum
    ack_quorum = persistence.bookkeeper_ack_quorum
    if not ensemble >= write_quorum >= ack_quorum > 0:
        raise BadValue(
            "Bookkeeper Ensemble >= WriteQuorum >= AckQuorum > 0 does not hold: "
            f"{ensemble}, {write_quorum}, {ack_quorum}"
        )
    if persistence.managed_ledger_max_mark_delete_rate < 0:
        raise BadValue("managedLedgerMaxMarkDeleteRate must be 0 or more")
    return persistence


def quorum_warnings(write_quorum: int, ack_quorum: int) -> list[str]:
    """What may be lost with such quorums, though they are allowed. Empty: nothing that one failure takes."""
    told = []
    if write_quorum < 2:
        told.append("write quorum 1: there is one copy of each entry, and it goes with its bookie")
    elif ack_quorum < 2:
        told.append(
            "ack quorum 1: an acknowledged entry may be on one bookie alone; lost with it if the broker dies, too"
        )
    if 2 * ack_quorum < write_quorum + 1:
        told.append(
            f"ack quorum {ack_quorum} is less than the majority of {write_quorum} copies: recovery needs answers "
            f"from {write_quorum - ack_quorum + 1} of them"
        )
    return told


def persistence_warnings(persistence: PersistencePolicies) -> list[str]:
    """As `quorum_warnings`."""
    return quorum_warnings(persistence.bookkeeper_write_quorum, persistence.bookkeeper_ack_quorum)


def check_retention(retention: RetentionPolicies, quotas: BacklogQuotas) -> RetentionPolicies:
    """Raises PreconditionFailed."""
    minutes = retention.retention_time_in_minutes
    size = retention.retention_size_in_mb
    if minutes < -1 or size < -1:
        raise PreconditionFailed("Invalid retention policy: time and size are -1 (no limit), 0 or more")
    if (minutes == 0) != (size == 0):
        raise PreconditionFailed(
            "Invalid retention policy: setting a single time or size limit to 0 is invalid when one of the "
            "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit"
        )
    for quota_type, quota in quotas.items():
        check_quota_fits(quota_type, quota, retention)
    return retention


def check_quota_fits(
    quota_type: BacklogQuotaType, quota: BacklogQuota, retention: RetentionPolicies | None
) -> BacklogQuota:
    """Whoever keeps what is acknowledged must allow for a larger backlog still. Raises PreconditionFailed."""
    if retention is None or retention == RetentionPolicies():
        return quota
    too_large = (
        quota_type is BacklogQuotaType.destination_storage and 0 < retention.size_bytes <= quota.limit_size
    ) or (quota_type is BacklogQuotaType.message_age and 0 < retention.time_s <= quota.limit_time)
    if too_large:
        raise PreconditionFailed(
            "Backlog Quota exceeds configured retention quota for namespace. "
            "Please increase retention quota and retry"
        )
    return quota


def check_auto_topic_creation(override: AutoTopicCreation, partitions_max: int) -> AutoTopicCreation:
    """Raises PreconditionFailed, LimitExceeded."""
    prefix = "Invalid configuration for autoTopicCreationOverride. the detail is "
    kind = override.topic_type
    partitions = override.default_num_partitions
    if kind is not None and kind not in (PARTITIONED, NON_PARTITIONED):
        raise PreconditionFailed(f"{prefix}Unknown topic type [{kind}].")
    if kind == PARTITIONED:
        if partitions is None:
            raise PreconditionFailed(
                f"{prefix}[defaultNumPartitions] cannot be null when the type is partitioned."
            )
        if partitions < 1:
            raise PreconditionFailed(
                f"{prefix}[defaultNumPartitions] cannot be less than 1 for partition type."
            )
        if partitions_max and partitions > partitions_max:
            raise LimitExceeded(
                f"Number of partitions should be less than or equal to {partitions_max}; "
                f"{partitions} were asked for (maxNumPartitionsPerPartitionedTopic)"
            )
    elif kind == NON_PARTITIONED and partitions is not None:
        raise PreconditionFailed(
            f"{prefix}[defaultNumPartitions] is not allowed to be set when the type is non-partition."
        )
    return override


def check_known(kind: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """Raises PreconditionFailed."""
    unknown = sorted(set(asked) - set(known))
    if unknown:
        raise PreconditionFailed(f"{kind} do not exist: {', '.join(unknown)}")
