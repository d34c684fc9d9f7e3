"""What can be set, and what holds where nothing is said.

Each section is a room's own settings class, a pydantic model or a plain dataclass; both are validated by pydantic.
What nobody has set is not validated, only constructed: most starts set three values, and a user waits for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import PydanticCustomError

from magnetar.admin.settings import AdminSettings
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.bookie.settings import BookieSettings
from magnetar.broker.settings import BrokerSettings
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.policies.effective import PolicyDefaults
from magnetar.worker.settings import WorkerSettings


def _level(text: str) -> str:
    if text.upper() not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise PydanticCustomError("level", "expected DEBUG, INFO, WARNING or ERROR")
    return text


Port = Annotated[int, Field(ge=0, le=65535)]
Level = Annotated[str, AfterValidator(_level)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlatformSettings:
    """Where a role listens, where it keeps its data, how it finds the others; and a section for each room."""

    cluster: str = "standalone"
    """The name of the cluster. The roles of a cluster take it from the metadata store."""
    data: Path = Path("data")
    """Everything that is kept lies below this directory. One process at a time."""
    host: str = "127.0.0.1"
    """The address to listen on. 0.0.0.0 opens the platform to the network: nobody is asked for a password yet."""
    port: Port = 6650
    """For Pulsar clients. 0: a free one."""
    web_port: Port = 8080
    """For the REST API and /metrics. 0: a free one."""
    bookie_port: Port = 3181
    """For `magnetar bookie`. 0: a free one."""
    bookie_web_port: Annotated[int, Field(ge=-1, le=65535)] = -1
    """For `magnetar bookie --web-port`: /metrics and /status.html. 0: a free one, -1: none."""
    autorecovery_port: Port = 0
    """For `magnetar autorecovery`: /metrics and /status.html. 0: a free one."""
    worker_port: Annotated[int, Field(ge=-1, le=65535)] = -1
    """For `magnetar worker`: a further port for its REST API. 0: a free one, -1: none."""
    bookie_id: str = ""
    """What a bookie is called in ledgers' metadata, for ever. Empty: kept in its data directory when first made."""
    metadata_store: str = ""
    """rocksdb:/path, zk:host:2181,host:2181/chroot or etcd:host:2379/prefix. Empty: a RocksDB below the data directory."""
    bookie_metadata_store: str = ""
    """Where ledgers and bookies are recorded, if that is another store than the brokers'. Empty: the same."""
    session_expired_policy: Literal["reconnect", "shutdown"] = "reconnect"
    """When the metadata store has given up on this process: go on with a new session, or end with status 75."""
    bookie_autorecovery: bool = True
    """Whether `magnetar bookie` also looks for lost copies and makes new ones. False: run `magnetar autorecovery`."""
    drain_s: Seconds = 10.0
    """How long a stop may take to store and answer what was accepted."""
    log_level: Level = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    log_json: bool = False
    """One JSON object a line instead of text."""
    entry_cache_bytes: NotNegative = 64 * 1024 * 1024
    """Latest entries of all topics kept in a broker's memory for consumers that keep up."""
    functions: bool = True
    """Whether a function worker runs beside the broker."""

    broker: BrokerSettings
    """The broker: limits, intervals, time-outs."""
    policies: PolicyDefaults
    """What holds for topics where neither namespace nor topic says otherwise."""
    bookie: BookieSettings
    """The bookie: journal, caches, entry logs."""
    ledger: LedgerClientSettings
    """The ledger client: patience and windows."""
    autorecovery: AutorecoverySettings
    """Autorecovery: how soon lost copies are made anew, and how fast."""
    web: AdminSettings
    """The REST API: limits and time-outs."""
    worker: WorkerSettings
    """The function worker."""


def in_cluster(settings: PlatformSettings, cluster: str) -> PlatformSettings:
    """The settings of a process of `cluster`, whose name the metadata store has told."""
    return dataclasses.replace(
        settings,
        cluster=cluster,
        broker=settings.broker.model_copy(update={"cluster": cluster}),
        policies=dataclasses.replace(settings.policies, cluster=cluster),
        worker=dataclasses.replace(settings.worker, cluster=cluster),
    )


class InvalidSettings(Exception):
    """Values of the wrong type or out of bounds: (key, what is wrong) for each."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{key}: {message}" for key, message in problems))
        self.problems = problems


def build(given: Mapping[str, Any]) -> PlatformSettings:
    """The settings, with `given` for what is not to be as usual; sections are mappings.

    Raises:
        InvalidSettings: a value is not what its field takes.
    """
    problems: list[tuple[str, str]] = []
    sections = {name: value for name, value in given.items() if isinstance(value, Mapping)}
    chosen: dict[str, Any] = {}
    hints = get_type_hints(PlatformSettings, include_extras=True)
    for name, value in given.items():
        if name not in sections:
            chosen[name] = _checked(hints[name], value, name, problems)
    data = chosen.get("data") or Path("data")
    cluster = chosen.get("cluster", "standalone")
    # What follows another setting unless it is set itself.
    followers: dict[str, dict[str, Any]] = {
        "broker": {"cluster": cluster},
        "policies": {"cluster": cluster},
        "bookie": {"directory": data / "bookie"},
        "ledger": {},
        "autorecovery": {},
        "web": {},
        "worker": {"data_dir": data / "worker", "cluster": cluster},
    }
    for name, values in followers.items():
        if name in sections:
            chosen[name] = _checked(hints[name], {**values, **sections[name]}, name, problems)
        else:
            chosen[name] = hints[name](**values)
    if problems:
        raise InvalidSettings(problems)
    return PlatformSettings(**chosen)


def _checked(kind: Any, value: Any, key: str, problems: list[tuple[str, str]]) -> Any:
    if type(value) is kind:
        return value
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        for problem in error.errors():
            path = ".".join((key, *(str(part) for part in problem["loc"])))
            problems.append((path, problem["msg"][:1].lower() + problem["msg"][1:]))
        return None
