"""Messages as Arrow columns: one record batch of many entries, without a Python object for each message's fields later.

    columns = await consumer.receive_columns(max_messages=50_000)
    table = columns.record_batch            # value, __key, __topic, __messageId, ...
    orders = columns.json(pa.schema([("id", pa.int64()), ("price", pa.float64())]))
    consumer.acknowledge(columns)

The columns are named as those of the Spark connectors for Pulsar: `value`, then what describes the message behind two
underscores. Times are microseconds in UTC. Needs pyarrow: `pip install magnetar[arrow]`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar.client.errors import InvalidUse
from magnetar.protocol.errors import ProtocolError

if TYPE_CHECKING:
    import pyarrow as pa

    from magnetar.client.messages import MessageBatch


@dataclass(frozen=True, slots=True)
class Columns:
    """What `Consumer.receive_columns` returns."""

    record_batch: pa.RecordBatch
    batches: Sequence[MessageBatch]
    """The entries it was made of, in its order."""

    def __len__(self) -> int:
        """How many messages."""
        return int(self.record_batch.num_rows)

    def json(self, schema: pa.Schema) -> pa.RecordBatch:
        """The payloads, JSON objects each, as columns of these types; what an object has besides is left out.

        A message without a payload (it deletes its key from a compacted topic) is a row of nulls.

        Raises:
            InvalidUse: a payload is no JSON object, or a field is of another type.
        """
        return json_columns(self.record_batch.column("value"), schema)


class MessageColumns:
    """Gathers messages into record batches."""

    def __init__(self) -> None:
        self._arrow = arrow()
        self._schema = arrow_schema()
        self._clear()

    def _clear(self) -> None:
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._topics: list[str] = []
        self._ids: list[bytes] = []
        self._published: list[int] = []
        self._event_times: list[int | None] = []
        self._properties: list[list[tuple[str, str]]] = []

    def __len__(self) -> int:
        return len(self._values)

    def add(self, batch: MessageBatch) -> None:
        """Take in all messages of one entry, or none.

        Raises:
            CompressionError, BatchUnopenable, BatchCorrupt: the entry is not what its metadata say.
        """
        before = len(self._ids)
        try:
            self._add(batch)
        except ProtocolError:
            for column in (
                self._values,
                self._keys,
                self._topics,
                self._ids,
                self._published,
                self._event_times,
                self._properties,
            ):
                del column[before:]
            raise

    def _add(self, batch: MessageBatch) -> None:
        self._topics += [batch.topic] * len(batch)
        for message in batch.messages:
            self._values.append(message.value)
            key = message.key
            self._keys.append(None if key is None else key.encode())
            self._ids.append(message.message_id.to_bytes())
            self._published.append(message.publish_time * 1000)
            self._event_times.append(message.event_time * 1000 if message.event_time else None)
            self._properties.append(list(message.properties.items()))

    def take(self) -> pa.RecordBatch:
        """What was gathered, as one record batch; gathering begins again."""
        pa = self._arrow
        columns = [
            pa.array(self._values, pa.binary()),
            pa.array(self._keys, pa.binary()),
            pa.array(self._topics, pa.string()),
            pa.array(self._ids, pa.binary()),
            pa.array(self._published, pa.timestamp("us", tz="UTC")),
            pa.array(self._event_times, pa.timestamp("us", tz="UTC")),
            pa.array(self._properties, pa.map_(pa.string(), pa.string())),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def arrow_schema() -> pa.Schema:
    """The columns and their types."""
    pa = arrow()
    return pa.schema(
        [
            ("value", pa.binary()),
            ("__key", pa.binary()),
            ("__topic", pa.string()),
            ("__messageId", pa.binary()),
            ("__publishTime", pa.timestamp("us", tz="UTC")),
            ("__eventTime", pa.timestamp("us", tz="UTC")),
            ("__messageProperties", pa.map_(pa.string(), pa.string())),
        ]
    )


def json_columns(values: pa.Array, schema: pa.Schema) -> pa.RecordBatch:
    """See `Columns.json`."""
    pa = arrow()
    from pyarrow import json as arrow_json

    rows = [b"{}" if value is None else value for value in values.to_pylist()]
    if not rows:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
    options = arrow_json.ParseOptions(
        explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    text = b"\n".join(rows)
    # Its blocks are read one by one; an object must lie in one of them.
    reading = arrow_json.ReadOptions(use_threads=False, block_size=max(1 << 20, len(text) + 1))
    try:
        table = arrow_json.read_json(io.BytesIO(text), read_options=reading, parse_options=options)
    except pa.ArrowInvalid as error:
        raise InvalidUse(f"the payloads are not JSON objects of {schema.names}: {error}") from error
    if table.num_rows != len(rows):
        raise InvalidUse(
            f"{len(rows)} payloads hold {table.num_rows} JSON objects: each message must be exactly one"
        )
    (batch,) = table.combine_chunks().to_batches() or [
        pa.RecordBatch.from_arrays([pa.nulls(len(rows), field.type) for field in schema], schema=schema)
    ]
    return batch.select(schema.names)


def arrow() -> Any:
    """The package pyarrow.

    Raises:
        InvalidUse: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise InvalidUse("columns need pyarrow: pip install 'magnetar[arrow]'") from error
    return pyarrow
