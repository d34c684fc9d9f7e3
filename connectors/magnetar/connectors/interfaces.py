"""What a connector is: a `Source` yields records, a `Sink` takes them, a context lends them a hand.

Both are called by one thread of the connector's own process and may block there. A batch is the unit: a source
returns as many records as it has at hand, a sink gets what has come: at most 1000 records or 1 MiB, unless one
entry of the input topic holds more.

Source of the shapes: Pulsar IO (`pulsar-io/core`, Source, Sink, Record), narrowed to what a restart needs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from logging import Logger
from types import MappingProxyType
from typing import Any, Protocol

__all__ = ["Record", "Sink", "SinkContext", "Source", "SourceContext"]

NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
NOTHING_PUBLISHED = -1
"""What `SourceContext.last_sequence` answers for a partition that nothing was published from."""


@dataclass(frozen=True, slots=True)
class Record:
    """One message on its way into or out of a topic.

    A source sets `partition_id` and `sequence` where its input can be read again: within a partition sequences
    only grow, and the highest that the broker has stored comes back as `SourceContext.last_sequence`. That is the
    source's whole memory; it needs no offset store.
    """

    value: bytes
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)
    event_time_ms: int | None = None
    topic: str | None = None
    """For a sink: the topic it came from. For a source: unused, the output topic is the component's."""
    message_id: str | None = None
    partition_id: str = ""
    sequence: int | None = None


class ConnectorContext(Protocol):
    """What sources and sinks are both given."""

    @property
    def tenant(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def instance_id(self) -> int: ...
    @property
    def num_instances(self) -> int: ...
    @property
    def logger(self) -> Logger: ...

    def secret(self, name: str) -> str | None:
        """The secret of that name from the component's `secrets`; None if there is none."""

    def record_metric(self, name: str, value: float) -> None:
        """Add `value` to a metric of the component's own, shown in its status and in /metrics."""


class SourceContext(ConnectorContext, Protocol):
    @property
    def output_topic(self) -> str: ...

    def last_sequence(self, partition_id: str) -> int:
        """The highest sequence of that partition which the broker has stored; -1 if there is none.

        Asked once per partition, before its first record. Blocks until the broker has answered.
        """


class SinkContext(ConnectorContext, Protocol):
    @property
    def input_topics(self) -> Sequence[str]: ...

    def reject(self, record: Record, error: Exception) -> None:
        """Give up on one record without failing its batch.

        It is counted, its reason shown in the status, sent to the dead-letter topic where one is configured, and
        acknowledged.
        """


class Source(ABC):
    """Reads the outside world into a topic."""

    @abstractmethod
    def open(self, config: Mapping[str, Any], context: SourceContext) -> None:
        """Check `config` and get ready. Raises ConnectorError with a reason a user can act on."""

    @abstractmethod
    def read(self) -> Record | list[Record] | None:
        """The next records, in order; an empty list if there are none at present; None once there will never be more.

        May block, but for a second or so at most, so that a stop is soon noticed.
        """

    def close(self) -> None:
        """Let go of everything. Called once, also after a failed `open`."""


class Sink(ABC):
    """Writes records from topics to the outside world."""

    @abstractmethod
    def open(self, config: Mapping[str, Any], context: SinkContext) -> None:
        """Check `config` and get ready. Raises ConnectorError with a reason a user can act on."""

    @abstractmethod
    def write(self, records: list[Record]) -> None:
        """Store all of `records`; when it returns they are durable and will be acknowledged.

        Raising fails the whole batch, which will be written again, at once or later, in the same or in smaller
        pieces. A single record that can never be stored goes to `SinkContext.reject` instead.
        """

    def close(self) -> None:
        """Let go of everything. Called once, also after a failed `open`."""
