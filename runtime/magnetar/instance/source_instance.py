"""An instance of a source: the outside world in, a topic out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import cast

from magnetar.client.client import Compression
from magnetar.client.errors import ClientError
from magnetar.client.producer import Producer
from magnetar.environment.crash import crash_point
from magnetar.functions.config import Guarantee, SourceConfig
from magnetar.functions.process.job import Job
from magnetar.functions.process.wire import RecordGroup, ToHost, read_records
from magnetar.instance.instance import Instance
from magnetar.instance.output_topic import (
    UNPARTITIONED,
    PlainOutput,
    partition_count,
    take_producer,
    topic_of,
)
from magnetar.naming import TopicName
from magnetar.protocol.ids import MessageId


class SourceInstance(Instance):
    """Records with sequences go out under a name of their partition's own, so that the broker knows a repeat.

    That holds for any guarantee; EFFECTIVELY_ONCE insists that the output deduplicates.
    """

    @property
    def _source(self) -> SourceConfig:
        return cast("SourceConfig", self.spec.config)

    def _prepare(self) -> None:
        self._plain: PlainOutput | None = None
        self._producers: dict[tuple[str, int], asyncio.Task[Producer]] = {}
        self._waiting: dict[int, int] = {}
        self._questions: set[asyncio.Task[None]] = set()
        self._pending = 0
        self._finished = asyncio.Event()
        self._drained = asyncio.Event()
        self._drained.set()

    async def _open(self) -> Job:
        config = self._source
        assert config.topic_name is not None  # validate() saw to it.
        self._topic = str(TopicName.parse(config.topic_name))
        self._partitions = await partition_count(self.client, self._topic)
        if config.processing_guarantees is Guarantee.EFFECTIVELY_ONCE:
            await self.require_deduplication(self._topic)
        self._plain = PlainOutput(
            self.client,
            self._topic,
            self._partitions,
            compression=self._compression,
            failed=self.session_failed,
        )
        await self._plain.open()
        return self.job(
            output=self._topic,
            output_partitions=self._partitions,
            configs=dict(config.configs or {}),
        )

    @property
    def _compression(self) -> Compression:
        producer = self._source.producer_config
        return cast("Compression", producer.compression_type.lower()) if producer else "none"

    async def _until_ended(self) -> None:
        await self._finished.wait()
        await self._drained.wait()
        self.log.info("instance.source_ended", written=self.statistics.counts.processed)

    async def _close(self) -> None:
        for question in self._questions:
            question.cancel()
        for opening in self._producers.values():
            if not opening.done():
                opening.cancel()
        opened = await asyncio.gather(*self._producers.values(), return_exceptions=True)
        closing = [producer.close() for producer in opened if isinstance(producer, Producer)]
        await asyncio.gather(*closing, return_exceptions=True)
        if self._plain is not None:
            await self._plain.close()

    def process_ready(self) -> None:
        self.started.set()

    def process_lost(self, reason: str) -> None:
        self._waiting.clear()

    def process_frame(self, kind: int, body: memoryview) -> None:
        if kind == ToHost.RECORDS:
            self._publish(*read_records(body))
        elif kind == ToHost.ASK:
            question = json.loads(bytes(body))
            task = asyncio.get_running_loop().create_task(
                self._tell_last_sequence(question["call"], question["last_sequence"]), name="last sequence"
            )
            self._questions.add(task)
            task.add_done_callback(self._questions.discard)
        elif kind == ToHost.ENDED:
            self._finished.set()
        else:
            super().process_frame(kind, body)

    def _publish(self, number: int, groups: list[RecordGroup]) -> None:
        """Publish what the source has read; it is answered once all of it is stored."""
        self._waiting[number] = len(groups)
        self._pending += len(groups)
        self._drained.clear()
        for group in groups:
            self.statistics.received(group.count)
            stored = partial(self._stored, number, group)
            if group.lowest < 0:
                route = group.route if self._partitions else UNPARTITIONED
                assert self._plain is not None
                self._plain.publish(route, group.payload, group.count, stored)
                continue
            opening = self._producer(group.partition_id, group.route)
            if opening.done():
                self._send(group, stored, opening)
            else:
                opening.add_done_callback(partial(self._send, group, stored))

    def _send(self, group: RecordGroup, stored: Callable[[], None], opening: asyncio.Task[Producer]) -> None:
        if opening.cancelled():
            return
        error = opening.exception()
        if error is not None:
            self.session_failed(error if isinstance(error, Exception) else ClientError(str(error)))
            return
        crash_point("instance.before_publish")
        try:
            future = opening.result().send_encoded_batch_nowait(
                group.payload, group.count, sequence_id=group.lowest, highest_sequence_id=group.highest
            )
        except ClientError as refusal:
            self.session_failed(refusal)
            return
        future.add_done_callback(partial(self._receipt, stored))

    def _receipt(self, stored: Callable[[], None], future: asyncio.Future[MessageId]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self.session_failed(error if isinstance(error, Exception) else ClientError(str(error)))
            return
        crash_point("instance.after_publish")
        stored()

    def _stored(self, number: int, group: RecordGroup) -> None:
        now_ms = self.clock.time_ms()
        self.statistics.ran(group.count, 0, 0, now_ms)
        self._pending -= 1
        if self._pending == 0:
            self._drained.set()
        left = self._waiting.get(number)
        if left is None:
            return  # The source that read it is gone.
        if left > 1:
            self._waiting[number] = left - 1
        else:
            del self._waiting[number]
            self.answer(number)

    def _producer(self, partition_id: str, route: int) -> asyncio.Task[Producer]:
        """The producer for a partition of the source and one of the output."""
        slot = (partition_id, route)
        opening = self._producers.get(slot)
        if opening is None:
            name = f"{self.spec.config.fqfn}-{self.spec.epoch}-{partition_id}"
            opening = asyncio.get_running_loop().create_task(
                take_producer(self.client, topic_of(self._topic, route), name, self._compression),
                name=f"producer {name}",
            )
            self._producers[slot] = opening
        return opening

    async def _tell_last_sequence(self, call: int, partition_id: str) -> None:
        """The sequence up to which everything of a source's partition is stored, in all of the output's."""
        routes = range(self._partitions) if self._partitions else (UNPARTITIONED,)
        try:
            producers = await asyncio.gather(*(self._producer(partition_id, route) for route in routes))
        except ClientError as error:
            self.session_failed(error)
            return
        self.answer(call, sequence=min(producer.last_sequence_id for producer in producers))
