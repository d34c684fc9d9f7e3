"""What a user may set on the format "pulsar": the names that users of Spark connectors for Pulsar and Kafka know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magnetar.spark.errors import OptionInvalid, OptionMissing

Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]
COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zlib", "zstd", "snappy")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How to read.

    Attributes:
        service_url: `service.url`, required: `pulsar://host:port`.
        admin_url: `admin.url`: `http://host:port`. Needed for limits and to notice the end of a terminated topic.
        topics: `topic` or `topics` (comma-separated).
        starting: `startingOffsets`: "earliest" (also the default of a batch) or "latest" (default of a stream).
        subscription: `predefinedSubscription`: a durable subscription that keeps the entries until the query
            has committed them, and shows its backlog. Without one, entries may be trimmed before they are read.
        max_entries: `maxEntriesPerTrigger` (needs `admin.url`): at most so many entries, batches counted as one.
        fail_on_data_loss: `failOnDataLoss`.
        poll_timeout_s: `pollTimeoutMs`: how long a read may wait for an entry that must be there.
        report_end: `reportEnd`: add one row, of which only `__topic` is set (to ""), after the last row of
            topics that were all terminated. For jobs that close their windows then.
    """

    service_url: str
    admin_url: str | None
    topics: tuple[str, ...]
    starting: str | None
    subscription: str | None
    max_entries: int | None
    fail_on_data_loss: bool
    poll_timeout_s: float
    report_end: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Read the options of `spark.readStream` or `spark.read`.

        Raises:
            OptionMissing, OptionInvalid: naming the option.
        """
        topics = _lookup(options, "topics") or _lookup(options, "topic")
        if not topics:
            raise OptionMissing("topic", "persistent://public/default/flights")
        starting = _lookup(options, "startingOffsets")
        if starting is not None and starting.lower() not in ("earliest", "latest"):
            raise OptionInvalid("startingOffsets", starting, "'earliest' or 'latest'")
        admin_url = _lookup(options, "admin.url")
        limit = _lookup(options, "maxEntriesPerTrigger") or _lookup(options, "maxOffsetsPerTrigger")
        if limit is not None and admin_url is None:
            raise OptionMissing("admin.url", "http://127.0.0.1:8080")
        return cls(
            service_url=required(options, "service.url", "pulsar://127.0.0.1:6650"),
            admin_url=admin_url,
            topics=tuple(topic.strip() for topic in topics.split(",") if topic.strip()),
            starting=starting.lower() if starting else None,
            subscription=_lookup(options, "predefinedSubscription"),
            max_entries=None if limit is None else positive(limit, "maxEntriesPerTrigger"),
            fail_on_data_loss=flag(options, "failOnDataLoss", default=True),
            poll_timeout_s=positive(_lookup(options, "pollTimeoutMs") or "120000", "pollTimeoutMs") / 1000,
            report_end=flag(options, "reportEnd", default=False),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """How to write.

    Attributes:
        service_url: `service.url`, required.
        topic: `topic`, required unless every row has a `__topic`.
        producer_prefix: `producerName`: put before the names of the producers; by default the query's id, which
            stays the same as long as its checkpoint does.
        compression: `compression`: none, lz4, zlib, zstd or snappy.
        sequence_bits: `sequenceBits`: a partition of a micro-batch may hold 2 to this power rows.
    """

    service_url: str
    topic: str | None
    producer_prefix: str | None
    compression: Compression
    sequence_bits: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SinkOptions:
        """Read the options of `df.writeStream` or `df.write`.

        Raises:
            OptionMissing, OptionInvalid: naming the option.
        """
        named = (_lookup(options, "compression") or "none").lower()
        compression = next((known for known in COMPRESSIONS if known == named), None)
        if compression is None:
            raise OptionInvalid("compression", named, "none, lz4, zlib, zstd or snappy")
        bits = positive(_lookup(options, "sequenceBits") or "28", "sequenceBits")
        if not 8 <= bits <= 40:
            raise OptionInvalid("sequenceBits", bits, "a number from 8 to 40")
        return cls(
            service_url=required(options, "service.url", "pulsar://127.0.0.1:6650"),
            topic=_lookup(options, "topic"),
            producer_prefix=_lookup(options, "producerName"),
            compression=compression,
            sequence_bits=bits,
        )


def required(options: Mapping[str, str], name: str, example: str) -> str:
    """The value of an option that has no default."""
    value = _lookup(options, name)
    if not value:
        raise OptionMissing(name, example)
    return value


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A boolean option."""
    value = _lookup(options, name)
    if value is None:
        return default
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise OptionInvalid(name, value, "true or false")


def positive(value: str, name: str) -> int:
    """A whole number above zero."""
    try:
        number = int(value)
    except ValueError:
        number = 0
    if number <= 0:
        raise OptionInvalid(name, value, "a whole number above 0")
    return number


def _lookup(options: Mapping[str, str], name: str) -> str | None:
    if name in options:
        return options[name]
    wanted = name.lower()
    return next((value for key, value in options.items() if key.lower() == wanted), None)
