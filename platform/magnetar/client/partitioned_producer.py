"""The producer of a partitioned topic: one producer a partition, and a choice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from magnetar.client.errors import AlreadyClosed, ClientError, InvalidUse
from magnetar.client.outgoing import OutgoingMessage
from magnetar.client.producer import Producer
from magnetar.client.topic_producer import TopicProducer
from magnetar.client.transactions import Transaction
from magnetar.environment.logs import get_logger
from magnetar.protocol.ids import MessageId
from magnetar.protocol.routing import partition_for_key

log = get_logger("magnetar.client")


class PartitionedProducer(Producer):
    """Messages with a key go to the partition of their key; those without one to each in turn.

    A turn lasts until the partition's batch is sent, so that batches stay full.
    """

    def __init__(
        self,
        topic: str,
        producers: Sequence[TopicProducer],
        *,
        update_s: float,
        more_partitions: Callable[[int], Awaitable[Sequence[TopicProducer]]],
    ) -> None:
        self.topic = topic
        self.name = producers[0].name
        self._producers = list(producers)
        self._turn = 0
        self._more_partitions = more_partitions
        self._updates: asyncio.Task[None] | None = None
        self._closed = False
        if update_s > 0:
            self._updates = asyncio.get_running_loop().create_task(
                self._keep_up_to_date(update_s), name=f"partitions of {topic}"
            )

    @property
    def last_sequence_id(self) -> int:
        return max(producer.last_sequence_id for producer in self._producers)

    @property
    def topics(self) -> list[str]:
        """The partitions that are produced to."""
        return [producer.topic for producer in self._producers]

    @property
    def closed(self) -> bool:
        return self._closed

    def send_nowait(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        transaction: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        return self._choose(key).send_nowait(
            payload,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            transaction=transaction,
        )

    def send_batch_nowait(
        self, messages: Sequence[OutgoingMessage | bytes], *, transaction: Transaction | None = None
    ) -> asyncio.Future[list[MessageId]]:
        keys = {message.key for message in messages if isinstance(message, OutgoingMessage)}
        chosen = {id(self._choose(key)) for key in keys if key is not None}
        if len(chosen) > 1:
            raise InvalidUse("a batch is one entry, and these keys belong to several partitions")
        key = next((key for key in sorted(filter(None, keys))), None)
        return self._choose(key).send_batch_nowait(messages, transaction=transaction)

    def send_encoded_batch_nowait(
        self,
        payload: bytes,
        count: int,
        *,
        sequence_id: int | None = None,
        highest_sequence_id: int | None = None,
    ) -> asyncio.Future[MessageId]:
        raise InvalidUse(f"{self.topic} is partitioned: an encoded batch goes to a producer of one partition")

    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        transaction: Transaction | None = None,
    ) -> MessageId:
        return await self._choose(key).send(
            payload,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            transaction=transaction,
        )

    async def room(self, size: int = 0) -> None:
        await asyncio.gather(*(producer.room(size) for producer in self._producers))

    async def flush(self) -> None:
        await asyncio.gather(*(producer.flush() for producer in self._producers))

    async def close(self) -> None:
        self._closed = True
        if self._updates is not None:
            self._updates.cancel()
            await asyncio.gather(self._updates, return_exceptions=True)
        await asyncio.gather(*(producer.close() for producer in self._producers))

    def _choose(self, key: str | None) -> TopicProducer:
        if self._closed:
            raise AlreadyClosed(f"the producer of {self.topic} is closed")
        producers = self._producers
        if key is not None:
            return producers[partition_for_key(key, len(producers))]
        current = producers[self._turn]
        if not current.fills_a_batch:
            self._turn = (self._turn + 1) % len(producers)
            current = producers[self._turn]
        return current

    async def _keep_up_to_date(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            try:
                self._producers.extend(await self._more_partitions(len(self._producers)))
            except ClientError as error:
                log.warning("partitions.not_updated", topic=self.topic, reason=str(error))
