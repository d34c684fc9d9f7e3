"""How a worker is set up."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from magnetar.worker.scheduling import SchedulingRules

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    data_dir: Path
    """Packages, logs and working files of components go below it."""
    worker_id: str = "standalone"
    cluster: str = "standalone"
    hostname: str = "127.0.0.1"
    package_bytes_max: int = 512 * MIB
    """A larger upload or download is refused."""
    config_bytes_max: int = MIB
    log_bytes_max: int = 10 * MIB
    """A component's log is turned over at this size."""
    logs_kept: int = 5
    start_timeout_s: float = 60.0
    spark_start_timeout_s: float = 180.0
    stop_timeout_s: float = 20.0
    """How long a stop, restart or delete waits for the process before it answers."""
    health_check_interval_s: float = 30.0
    health_checks_failed_max: int = 3
    """A process that so often in a row did not answer is replaced."""
    file_urls_allowed: bool = True
    """Packages may be named by file: URLs, files as this process can read them."""
    scheduling: SchedulingRules = field(default_factory=SchedulingRules)
