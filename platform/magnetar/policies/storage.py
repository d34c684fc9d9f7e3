"""How messages are stored, for how long, and where they go after that."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from magnetar.policies.model import CamelModel, Int32, Int64

MEBIBYTE = 1024 * 1024


class RetentionPolicies(CamelModel):
    """How much that every subscription has acknowledged is kept all the same; -1: without limit.

    A ledger goes once every cursor has passed it and either limit is exceeded; 0 and 0: at once.
    """

    retention_time_in_minutes: Int32 = 0
    retention_size_in_mb: Int64 = Field(default=0, alias="retentionSizeInMB")

    @property
    def time_s(self) -> int:
        return (
            self.retention_time_in_minutes * 60
            if self.retention_time_in_minutes > 0
            else self.retention_time_in_minutes
        )

    @property
    def size_bytes(self) -> int:
        return (
            self.retention_size_in_mb * MEBIBYTE
            if self.retention_size_in_mb > 0
            else self.retention_size_in_mb
        )


class PersistencePolicies(CamelModel):
    """On how many bookies a ledger is spread, how many store an entry, how many must have stored it."""

    bookkeeper_ensemble: Int32 = 2
    bookkeeper_write_quorum: Int32 = 2
    bookkeeper_ack_quorum: Int32 = 2
    managed_ledger_max_mark_delete_rate: float = Field(default=0.0, allow_inf_nan=False)
    managed_ledger_storage_class_name: str | None = None


class BookieAffinity(CamelModel):
    """Which groups of bookies a namespace's ledgers are placed on."""

    bookkeeper_affinity_group_primary: str | None = None
    bookkeeper_affinity_group_secondary: str | None = None


class BookieInfo(CamelModel):
    """Where a bookie stands in the network."""

    rack: str | None = None
    """A path, `/rack` or `/region/rack`."""
    hostname: str | None = None


class InactiveTopicDeleteMode(StrEnum):
    """When a topic counts as inactive."""

    delete_when_no_subscriptions = "delete_when_no_subscriptions"
    delete_when_subscriptions_caught_up = "delete_when_subscriptions_caught_up"


class InactiveTopicPolicies(CamelModel):
    """Whether, and after how long, topics that nobody uses are deleted."""

    inactive_topic_delete_mode: InactiveTopicDeleteMode | None = None
    max_inactive_duration_seconds: Int32 = 0
    delete_while_inactive: bool = False


class OffloadPolicies(CamelModel):
    """When ledgers move to cheap storage, and where that is."""

    offloaders_directory: str | None = None
    managed_ledger_offload_driver: str | None = None
    managed_ledger_offload_max_threads: Int32 | None = None
    managed_ledger_offload_prefetch_rounds: Int32 | None = None
    managed_ledger_offload_threshold_in_bytes: Int64 | None = None
    managed_ledger_offload_threshold_in_seconds: Int64 | None = None
    managed_ledger_offload_deletion_lag_in_millis: Int64 | None = None
    managed_ledger_offloaded_read_priority: str | None = None
    managed_ledger_extra_configurations: dict[str, str] | None = None
    managed_ledger_offload_bucket: str | None = None
    managed_ledger_offload_region: str | None = None
    managed_ledger_offload_service_endpoint: str | None = None
    managed_ledger_offload_max_block_size_in_bytes: Int32 | None = None
    managed_ledger_offload_read_buffer_size_in_bytes: Int32 | None = None
    s3_managed_ledger_offload_region: str | None = Field(default=None, alias="s3ManagedLedgerOffloadRegion")
    s3_managed_ledger_offload_bucket: str | None = Field(default=None, alias="s3ManagedLedgerOffloadBucket")
    s3_managed_ledger_offload_service_endpoint: str | None = Field(
        default=None, alias="s3ManagedLedgerOffloadServiceEndpoint"
    )
    s3_managed_ledger_offload_max_block_size_in_bytes: Int32 | None = Field(
        default=None, alias="s3ManagedLedgerOffloadMaxBlockSizeInBytes"
    )
    s3_managed_ledger_offload_read_buffer_size_in_bytes: Int32 | None = Field(
        default=None, alias="s3ManagedLedgerOffloadReadBufferSizeInBytes"
    )
    s3_managed_ledger_offload_credential_id: str | None = Field(
        default=None, alias="s3ManagedLedgerOffloadCredentialId"
    )
    s3_managed_ledger_offload_credential_secret: str | None = Field(
        default=None, alias="s3ManagedLedgerOffloadCredentialSecret"
    )
    s3_managed_ledger_offload_role: str | None = Field(default=None, alias="s3ManagedLedgerOffloadRole")
    s3_managed_ledger_offload_role_session_name: str | None = Field(
        default=None, alias="s3ManagedLedgerOffloadRoleSessionName"
    )
    gcs_managed_ledger_offload_region: str | None = None
    gcs_managed_ledger_offload_bucket: str | None = None
    gcs_managed_ledger_offload_max_block_size_in_bytes: Int32 | None = None
    gcs_managed_ledger_offload_read_buffer_size_in_bytes: Int32 | None = None
    gcs_managed_ledger_offload_service_account_key_file: str | None = None
    file_system_profile_path: str | None = None
    file_system_uri: str | None = Field(default=None, alias="fileSystemURI")
