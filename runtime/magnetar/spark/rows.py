"""Rows of a DataFrame as messages, and the columns that messages have there.

The columns are those of the Spark connectors for Pulsar: `value`, then what describes the message behind two
underscores. Times are microseconds in UTC.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from magnetar.client.columns import arrow_schema
from magnetar.spark.errors import OptionMissing

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = (
    "value BINARY, __key BINARY, __topic STRING, __messageId BINARY, __publishTime TIMESTAMP, "
    "__eventTime TIMESTAMP, __messageProperties MAP<STRING, STRING>"
)
"""What `spark.readStream.format("pulsar")` yields, as Spark's DDL."""

ROWS_PER_BATCH = 8192
"""Measured: with 1 KiB values Spark takes in batches of this size almost twice as fast as ones of 1,024 or 65,536."""


def end_row() -> pa.RecordBatch:
    """The row that reports the end: all columns null but `__topic`, which is empty."""
    import pyarrow as pa

    schema = arrow_schema()
    columns = [pa.array([""] if field.name == "__topic" else [None], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True, order=True)
class OutgoingRow:
    """A row as the message it becomes. Ordered, so that a replayed partition yields the same sequence."""

    topic: str
    key: str
    value: bytes
    event_time_ms: int
    properties: tuple[tuple[str, str], ...]


def outgoing_rows(batches: Iterable[pa.RecordBatch], topic: str | None) -> Iterator[OutgoingRow]:
    """Turn rows into messages.

    `value` is the payload (binary, or a string as UTF-8); without such a column the payload is a JSON object of
    all columns whose names do not begin with two underscores.

    Args:
        batches: what Spark hands to a writer.
        topic: where rows go that have no `__topic`.
    Raises:
        OptionMissing: a row has no `__topic` and there is no `topic` either.
    """
    for batch in batches:
        for row in batch.to_pylist():
            target = row.get("__topic") or topic
            if not target:
                raise OptionMissing("topic", "persistent://public/default/results")
            properties = row.get("__messageProperties") or ()
            pairs = properties.items() if isinstance(properties, Mapping) else properties
            yield OutgoingRow(
                target,
                _text(row.get("__key")),
                _payload(row),
                _milliseconds(row.get("__eventTime")),
                tuple(sorted((str(name), str(value)) for name, value in pairs)),
            )


def _payload(row: Mapping[str, Any]) -> bytes:
    if "value" in row:
        value = row["value"]
        return b"" if value is None else value.encode() if isinstance(value, str) else bytes(value)
    fields = {name: value for name, value in row.items() if not name.startswith("__")}
    return json.dumps(fields, default=_plain, separators=(",", ":"), sort_keys=True).encode()


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(
        f"a column of type {type(value).__name__} has no JSON form: cast it, or build `value` yourself"
    )


def _text(key: object) -> str:
    if key is None:
        return ""
    return key.decode() if isinstance(key, bytes | bytearray) else str(key)


def _milliseconds(moment: object) -> int:
    if not isinstance(moment, datetime):
        return 0
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)
