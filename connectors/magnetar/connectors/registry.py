"""The connectors that come with Magnetar, by the archive names `builtin://file` and `builtin://sql`.

Reading the registry imports no connector: the worker lists, describes and checks them from here, and only the
process that runs one loads its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeAlias, cast

from magnetar.connectors.errors import UnknownConnector
from magnetar.connectors.interfaces import Sink, Source
from magnetar.connectors.settings import Field

SCHEME = "builtin://"
Kind: TypeAlias = Literal["source", "sink"]


@dataclass(frozen=True, slots=True)
class ConnectorDefinition:
    """What is known of a connector without loading it."""

    name: str
    description: str
    settings_module: str
    """Holds `FIELDS` and `check(configs)`; imports the standard library only."""
    source_class: str | None = None
    sink_class: str | None = None
    sequenced: bool = False
    """The source's records carry sequences: its output topic needs deduplication."""

    def definition(self) -> dict[str, Any]:
        """Pulsar's ConnectorDefinition."""
        return {
            "name": self.name,
            "description": self.description,
            "sourceClass": self.source_class,
            "sinkClass": self.sink_class,
            "sourceConfigClass": self.settings_module if self.source_class else None,
            "sinkConfigClass": self.settings_module if self.sink_class else None,
        }

    def fields(self) -> tuple[Field, ...]:
        return cast("tuple[Field, ...]", import_module(self.settings_module).FIELDS)

    def check(self, configs: Mapping[str, Any]) -> None:
        """Raises InvalidSetting for what can be seen to be wrong without opening the connector."""
        import_module(self.settings_module).check(configs)


_DEFINITIONS = (
    ConnectorDefinition(
        name="file",
        description="Reads CSV and JSON-lines files, each row a JSON message; resumes where it stopped",
        settings_module="magnetar.connectors.file.settings",
        source_class="magnetar.connectors.file.source.FileSource",
        sequenced=True,
    ),
    ConnectorDefinition(
        name="sql",
        description="Writes JSON messages to a table of any database SQLAlchemy speaks to; idempotent by key",
        settings_module="magnetar.connectors.sql.settings",
        sink_class="magnetar.connectors.sql.sink.SqlSink",
    ),
)


def builtin_connectors(kind: Kind | None = None) -> list[ConnectorDefinition]:
    """All built-in connectors, or those that can be a source, or a sink, by name."""
    return [
        definition
        for definition in _DEFINITIONS
        if kind is None or (definition.source_class if kind == "source" else definition.sink_class)
    ]


def builtin_connector(name: str, kind: Kind) -> ConnectorDefinition:
    """The connector of that name or archive. Raises UnknownConnector."""
    bare = name.removeprefix(SCHEME)
    known = builtin_connectors(kind)
    for definition in known:
        if definition.name == bare:
            return definition
    raise UnknownConnector(bare, [definition.name for definition in known])


def create_source(archive: str) -> Source:
    """A new source of the built-in connector `archive`, not yet opened."""
    return cast(Source, _load(builtin_connector(archive, "source").source_class))


def create_sink(archive: str) -> Sink:
    """A new sink of the built-in connector `archive`, not yet opened."""
    return cast(Sink, _load(builtin_connector(archive, "sink").sink_class))


def _load(class_path: str | None) -> object:
    assert class_path is not None  # builtin_connector() looked among those of the right kind only.
    module, _, name = class_path.rpartition(".")
    return getattr(import_module(module), name)()
