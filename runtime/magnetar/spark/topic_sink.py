"""Topics as a sink. A streaming query writes effectively once where the topic's deduplication is on.

A micro-batch may be written twice: a task is tried again, or the driver dies after rows were sent and before
the batch was committed, and the next driver runs the batch again with the same id. So each partition of the
query's last stage has a producer name of its own, made of the query's id and the partition's number, and each
row a sequence id, made of the batch's id and the row's place in the partition. The broker drops what it has.

That is sound only while a replay puts the same rows into the same partition in the same order: the first
Spark promises as long as the number of shuffle partitions stays, the second we see to by sorting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from magnetar.environment.crash import crash_point
from magnetar.spark.driver import driver_process
from magnetar.spark.errors import SequenceSpaceFull, SparkError
from magnetar.spark.options import SinkOptions
from magnetar.spark.rows import OutgoingRow, outgoing_rows

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ID_PROPERTY = "streaming.sql.batchId"
QUERY_ID_PROPERTY = "sql.streaming.queryId"
SEND_TIMEOUT_S = 120.0
"""Long enough for a broker to come back; after that the task fails and Spark decides."""


@dataclass
class RowsSent(WriterCommitMessage):
    """How many rows a task sent and had acknowledged."""

    rows: int


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """The streaming sink. All receipts are in before a task reports success."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsSent:
        context = TaskContext.get()
        batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context else None
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context else None
        if context is None or batch_id is None or query_id is None:
            raise SparkError(
                f"Spark did not tell the task its batch ({BATCH_ID_PROPERTY}) and query ({QUERY_ID_PROPERTY}); "
                "without them a replayed micro-batch could not be recognised. Is this a supported Spark (4.3)?"
            )
        rows = sorted(outgoing_rows(iterator, self._options.topic))
        limit = 1 << self._options.sequence_bits
        if len(rows) > limit:
            raise SequenceSpaceFull(len(rows), limit)
        prefix = self._options.producer_prefix or f"spark-{query_id}"
        producer = f"{prefix}-{context.partitionId()}"
        asyncio.run(_send(self._options, rows, producer, int(batch_id) << self._options.sequence_bits))
        return RowsSent(len(rows))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        crash_point("spark.sink.before_commit", also=driver_process())

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Nothing to undo: what was sent is what the next attempt sends, and is dropped then."""


class TopicBatchWriter(DataSourceArrowWriter):
    """The batch sink: at least once, for a batch query has no identity that would survive its failure."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> RowsSent:
        rows = sorted(outgoing_rows(iterator, self._options.topic))
        asyncio.run(_send(self._options, rows, None, 0))
        return RowsSent(len(rows))


async def _send(
    options: SinkOptions, rows: Sequence[OutgoingRow], producer_name: str | None, first: int
) -> None:
    from magnetar.client import Client

    async with Client(options.service_url) as client:
        sequence = first
        for topic, group in groupby(rows, key=lambda row: row.topic):
            producer = await client.create_producer(
                topic,
                producer_name=producer_name,
                compression=options.compression,
                send_timeout_s=SEND_TIMEOUT_S,
            )
            receipts = []
            for row in group:
                await producer.room()
                receipts.append(
                    producer.send_nowait(
                        row.value,
                        key=row.key or None,
                        event_time=row.event_time_ms or None,
                        properties=dict(row.properties) or None,
                        sequence_id=sequence if producer_name else None,
                    )
                )
                sequence += 1
            await producer.flush()
            await asyncio.gather(*receipts)
            await producer.close()
