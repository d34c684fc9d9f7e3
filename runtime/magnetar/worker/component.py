"""A deployed function, source or sink, as a value, and as it is kept in the metadata store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from magnetar.worker.errors import PlatformUnavailable

FORMAT_VERSION = 1


class Kind(Enum):
    FUNCTION = "function"
    SOURCE = "source"
    SINK = "sink"

    @property
    def title(self) -> str:
        return self.value.capitalize()


@dataclass(frozen=True, slots=True, order=True)
class ComponentName:
    tenant: str
    namespace: str
    name: str

    def __str__(self) -> str:
        """The fully qualified name."""
        return f"{self.tenant}/{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Package:
    """A component's code. `kind`: py, zip, whl, cloudpickle; or builtin, with the archive's name as its path."""

    kind: str
    filename: str
    sha256: str = ""

    @property
    def builtin(self) -> bool:
        return self.kind == "builtin"


@dataclass(frozen=True, slots=True)
class Component:
    """What was deployed, and what its user wants of it."""

    kind: Kind
    name: ComponentName
    config: Mapping[str, Any]
    """Pulsar's JSON: FunctionConfig, SourceConfig or SinkConfig."""
    package: Package | None
    epoch: int
    """Constant through updates and restarts, higher each time the component is created anew."""
    created_ms: int
    revision: int = 0
    """Counts updates."""
    stopped: frozenset[int] = frozenset()
    """Instances that its user stopped."""
    ended: tuple[Mapping[str, Any], ...] | None = None
    """Once all its input has ended: the last status of each instance."""
    deleting: bool = False
    """Deleted, but its subscriptions may be left still."""
    metadata_version: int = field(default=-1, compare=False)

    @property
    def parallelism(self) -> int:
        return int(self.config.get("parallelism") or 1)

    @property
    def running_instances(self) -> tuple[int, ...]:
        if self.deleting:
            return ()
        return tuple(number for number in range(self.parallelism) if number not in self.stopped)

    def begun_again(self, **changes: Any) -> Component:
        """As it is after an update, a start or a restart: an end that was reached no longer counts."""
        return replace(self, ended=None, **changes)

    def to_json(self) -> bytes:
        package = self.package
        return json.dumps(
            {
                "version": FORMAT_VERSION,
                "kind": self.kind.value,
                "config": self.config,
                "package": package
                and {"kind": package.kind, "filename": package.filename, "sha256": package.sha256},
                "epoch": self.epoch,
                "created_ms": self.created_ms,
                "revision": self.revision,
                "stopped": sorted(self.stopped),
                "ended": self.ended,
                "deleting": self.deleting,
            }
        ).encode()

    @classmethod
    def from_json(cls, name: ComponentName, data: bytes, metadata_version: int) -> Component:
        """Raises PlatformUnavailable: written by a newer release, or damaged."""
        try:
            fields = json.loads(data)
            if fields["version"] != FORMAT_VERSION:
                raise PlatformUnavailable(
                    f"{name} is stored in format {fields['version']}; this release reads {FORMAT_VERSION}"
                )
            package = fields["package"]
            if package and not all(isinstance(value, str) for value in package.values()):
                raise TypeError(f"package is {package!r}")
            component = cls(
                kind=Kind(fields["kind"]),
                name=name,
                config=dict(fields["config"].items()),
                package=Package(**package) if package else None,
                epoch=fields["epoch"],
                created_ms=fields["created_ms"],
                revision=fields["revision"],
                stopped=frozenset(fields["stopped"]),
                ended=None if fields["ended"] is None else tuple(fields["ended"]),
                deleting=fields["deleting"],
                metadata_version=metadata_version,
            )
            if component.parallelism < 1:
                raise ValueError(f"parallelism is {component.parallelism}")
            return component
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlatformUnavailable(f"what is stored of {name} cannot be read: {error!r}") from error
