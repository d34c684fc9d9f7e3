"""What can be set, and what holds where nothing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from magnetar.admin.settings import AdminSettings
from magnetar.bookie.settings import BookieSettings
from magnetar.broker.settings import BrokerSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.policies.effective import PolicyDefaults
from magnetar.worker.settings import WorkerSettings


class PlatformSettings(BaseModel):
    """Where a role listens, where it keeps its data, how it finds the others; and a section for each room."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    cluster: str = "standalone"
    """The name of the cluster."""
    data: Path = Path("data")
    """Everything that is kept lies below this directory. One process at a time."""
    host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 opens the platform to the network: nobody is asked for a password yet."""
    port: int = Field(default=6650, ge=0, le=65535)
    """For Pulsar clients. 0: a free one."""
    web_port: int = Field(default=8080, ge=0, le=65535)
    """For the REST API and /metrics. 0: a free one."""
    bookie_port: int = Field(default=3181, ge=0, le=65535)
    """For `magnetar bookie`. 0: a free one."""
    bookie_id: str = ""
    """What a bookie is called in ledgers' metadata, for ever. Empty: kept in its data directory when first made."""
    metadata_store: str = ""
    """rocksdb:/path or zk:host:2181,host:2181/chroot. Empty: a RocksDB below the data directory."""
    drain_s: float = Field(default=10.0, ge=0)
    """How long a stop may take to store and answer what was accepted."""
    log_level: str = Field(default="INFO", pattern="(?i)^(debug|info|warning|error)$")
    """DEBUG, INFO, WARNING or ERROR."""
    log_json: bool = False
    """One JSON object a line instead of text."""
    entry_cache_bytes: int = Field(default=64 * 1024 * 1024, ge=0)
    """Latest entries of all topics kept in a broker's memory for consumers that keep up."""
    functions: bool = True
    """Whether a function worker runs beside the broker."""

    broker: BrokerSettings = BrokerSettings()
    """The broker: limits, intervals, time-outs."""
    policies: PolicyDefaults = PolicyDefaults()
    """What holds for topics where neither namespace nor topic says otherwise."""
    bookie: BookieSettings
    """The bookie: journal, caches, entry logs."""
    ledger: LedgerClientSettings = LedgerClientSettings()
    """The ledger client: patience and windows."""
    web: AdminSettings = AdminSettings()
    """The REST API: limits and time-outs."""
    worker: WorkerSettings
    """The function worker."""

    @model_validator(mode="before")
    @classmethod
    def _place_directories(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The rooms' directories lie below `data` unless they are named."""
        data = Path(values.get("data", "data"))
        cluster = values.get("cluster", "standalone")
        return {
            **values,
            "bookie": {"directory": data / "bookie", **values.get("bookie", {})},
            "worker": {"data_dir": data / "worker", "cluster": cluster, **values.get("worker", {})},
            "broker": {"cluster": cluster, **values.get("broker", {})},
            "policies": {"cluster": cluster, **values.get("policies", {})},
        }
