"""What a user process is told to run: the JOB frame, as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Job:
    """One instance of a function, source or sink. JSON through and through."""

    component: Literal["function", "source", "sink"]
    tenant: str
    namespace: str
    name: str
    instance_id: int
    num_instances: int
    version: int
    """Counts re-creations."""
    package: str
    """Path of the package: a module, a pickled function; empty for a built-in connector."""
    kind: str
    """py, zip, whl, cloudpickle, builtin"""
    class_name: str
    """`module.Class`; for a built-in connector its archive (`builtin://file`)."""
    paths: tuple[str, ...] = ()
    """For the module path, before everything else."""
    guarantee: str = "ATLEAST_ONCE"
    ordered: bool = False
    """Stop at a message that fails, until it is sent again. Not in force where failures are final."""
    failures_are_final: bool = False
    sequenced: bool = False
    """Give each result the sequence id that its input's index demands."""
    inputs: tuple[str, ...] = ()
    output: str = ""
    output_partitions: int = 0
    """How many partitions the output has; 0: it is not partitioned."""
    input_codecs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Input topic → {"schema": …, "serde": …, "type": …}."""
    output_codec: Mapping[str, Any] = field(default_factory=dict)
    forward_properties: bool = True
    user_config: Mapping[str, Any] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)
    secrets: Mapping[str, Any] = field(default_factory=dict)
    log_file: str = ""
    log_to_topic: bool = False
    record_class: str = "magnetar.connectors.interfaces.Record"
    connector_registry: str = "magnetar.connectors.registry"
    beat_every_s: float = 1.0
    """How often a long entry reports where it has got to."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.items()}
        return cls(**fields)

    @property
    def fqfn(self) -> str:
        return f"{self.tenant}/{self.namespace}/{self.name}"
