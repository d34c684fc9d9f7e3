"""Topics as a source: the driver plans ranges of entries, tasks read them into Arrow batches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from magnetar.spark.admin_api import AdminApi
from magnetar.spark.errors import DataLost
from magnetar.spark.offsets import (
    ENDED,
    EntryPosition,
    Offset,
    TopicExtent,
    TopicRange,
    ends_here,
    extent_from_stats,
    next_offset,
    position_of,
    ranges,
)
from magnetar.spark.options import SourceOptions
from magnetar.spark.rows import ROWS_PER_BATCH, end_row

if TYPE_CHECKING:
    import pyarrow as pa

    from magnetar.client.blocking import BlockingClient


class RangePartition(InputPartition):
    """One task's work: a range of one topic, or (None) the row that reports the end."""

    def __init__(self, work: TopicRange | None) -> None:
        super().__init__(work)


class TopicFollower:
    """What the driver knows of the topics: which there are, how far they reach, whether they ended."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin = AdminApi(options.admin_url) if options.admin_url else None
        self._topics: tuple[str, ...] = ()
        self._subscribed: set[str] = set()

    def topics(self) -> tuple[str, ...]:
        """The topics, partitions on their own; looked up again each time, for partitioned topics grow."""
        self._topics = asyncio.run(self._list_topics())
        return self._topics

    def extents(self) -> dict[str, TopicExtent]:
        """How far each topic reaches now."""
        topics = self.topics()
        if self._admin is not None:
            self._keep_entries(topics)
            return {topic: extent_from_stats(self._admin.internal_stats(topic)) for topic in topics}
        return asyncio.run(self._ask_last_entries(topics))

    def committed(self, end: Mapping[str, str | bool]) -> None:
        """Every entry up to `end` will never be asked for again."""
        if self._admin is None or self._options.subscription is None:
            return
        for topic in (key for key in end if key != ENDED):
            position = position_of(end, topic)
            if position.ledger_id >= 0:
                self._admin.move_subscription(
                    topic, self._options.subscription, position.ledger_id, position.entry_id
                )

    def _keep_entries(self, topics: Sequence[str]) -> None:
        if self._admin is None or self._options.subscription is None:
            return
        for topic in topics:
            if topic not in self._subscribed:
                earliest = bool(self._subscribed) or self._options.starting == "earliest"
                self._admin.create_subscription(topic, self._options.subscription, earliest=earliest)
        self._subscribed.update(topics)

    async def _list_topics(self) -> tuple[str, ...]:
        from magnetar.client import Client

        client = Client(self._options.service_url)
        try:
            return tuple([name for topic in self._options.topics for name in await client.partitions(topic)])
        finally:
            await client.close()

    async def _ask_last_entries(self, topics: Sequence[str]) -> dict[str, TopicExtent]:
        from magnetar.client import Client
        from magnetar.protocol.ids import MessageId

        client = Client(self._options.service_url)
        try:
            found = {}
            for topic in topics:
                reader = await client.create_reader(topic, MessageId.LATEST, receiver_queue_size=1)
                last = await reader.get_last_message_id()
                found[topic] = TopicExtent((), EntryPosition(last.ledger_id, last.entry_id), terminated=False)
                await reader.close()
            return found
        finally:
            await client.close()


class TopicStreamReader(DataSourceStreamReader):
    """A streaming read. Lives on the driver, but for `read`, which runs in tasks and keeps no state."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._follower: TopicFollower | None = None

    def initialOffset(self) -> Offset:  # noqa: N802  # the name is Spark's
        extents = self._follow().extents()
        if self._options.starting == "earliest":
            return dict.fromkeys(extents, "-1:-1")
        return {topic: str(extent.last) for topic, extent in extents.items()}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # the name is Spark's
        return ReadMaxRows(self._options.max_entries) if self._options.max_entries else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: Any) -> Offset:  # noqa: N802  # the name is Spark's
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        offset = next_offset(start, self._follow().extents(), most)
        if not self._options.report_end:
            offset.pop(ENDED, None)
        return offset

    def partitions(self, start: Offset, end: Offset) -> list[RangePartition]:
        planned = [RangePartition(work) for work in ranges(start, end)]
        if ends_here(start, end):
            planned.append(RangePartition(None))
        return planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition.value)

    def commit(self, end: Offset) -> None:
        self._follow().committed(end)

    def stop(self) -> None:
        self._follower = None

    def _follow(self) -> TopicFollower:
        if self._follower is None:
            self._follower = TopicFollower(self._options)
        return self._follower


class TopicBatchReader(DataSourceReader):
    """A batch read of everything that is there when it is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[RangePartition]:
        extents = TopicFollower(self._options).extents()
        end = next_offset({}, extents, None)
        start: Offset = end if self._options.starting == "latest" else {}
        return [RangePartition(work) for work in ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, partition.value)


def read_range(options: SourceOptions, work: TopicRange | None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range in the topic's order.

    Raises:
        DataLost: entries of the range are gone, and `failOnDataLoss` is on.
    """
    if work is None:
        yield end_row()
        return
    from magnetar.client.blocking import BlockingClient

    client = BlockingClient(options.service_url)
    try:
        yield from _read_entries(client, options, work)
    finally:
        client.close()


def _read_entries(
    client: BlockingClient, options: SourceOptions, work: TopicRange
) -> Iterator[pa.RecordBatch]:
    from magnetar.client.columns import MessageColumns
    from magnetar.protocol.ids import MessageId

    start = MessageId(work.after.ledger_id, work.after.entry_id)
    reader = client.create_reader(
        work.topic, start, start_inclusive=False, receiver_queue_size=4 * ROWS_PER_BATCH
    )
    rows = MessageColumns()
    position = work.after
    index: int | None = None
    while position < work.through:
        batch = reader.read_batch(timeout_s=options.poll_timeout_s)
        if batch is None:
            raise DataLost(work.topic, str(position), f"nothing within {options.poll_timeout_s:.0f} s")
        found = EntryPosition(batch.message_id.ledger_id, batch.message_id.entry_id)
        if found > work.through:
            if options.fail_on_data_loss:
                raise DataLost(work.topic, str(position), str(found))
            break
        if found <= position:
            continue  # The entry the range begins after, sent again because a part of it may be wanted.
        if index is not None and batch.index is not None and options.fail_on_data_loss:
            missing = batch.index - len(batch.messages) - index
            if missing > 0:
                raise DataLost(work.topic, str(position), str(found))
        index = batch.index
        position = found
        rows.add(batch)
        if len(rows) >= ROWS_PER_BATCH:
            yield rows.take()
    if len(rows):
        yield rows.take()
