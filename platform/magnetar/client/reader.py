"""Readers: through a topic from a given position, without a subscription that outlives them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from magnetar.client.consumer import Consumer
from magnetar.client.messages import Message, MessageBatch
from magnetar.protocol.ids import MessageId


class Reader:
    """Reads a topic, or all partitions of one. Made by `Client.create_reader`.

    A reader that reconnects goes on after the last entry it has handed out, and misses nothing.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._positions: dict[str, tuple[int, int]] = {}

    @property
    def topic(self) -> str:
        """What is read."""
        return self._consumer.topic

    @property
    def ended(self) -> asyncio.Event:
        """Set when the topic is terminated and all of it has been read."""
        return self._consumer.ended

    async def read_batch(self, timeout_s: float | None = None) -> MessageBatch | None:
        """The next entry as a whole; None as for `Consumer.receive_batch`."""
        batch = await self._consumer.receive_batch(timeout_s)
        if batch is not None:
            self._consumer.acknowledge_cumulative(batch)
            self._positions[batch.topic] = batch.message_id[:2]
        return batch

    async def read(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None as for `Consumer.receive_batch`."""
        message = await self._consumer.receive(timeout_s)
        if message is not None:
            self._consumer.acknowledge_cumulative(message)
        return message

    async def has_message_available(self) -> bool:
        """Whether the topic holds something this reader has not handed out.

        Raises:
            BrokerRefused, OperationTimedOut: it cannot be told.
        """
        if self._consumer.has_received:
            return True
        for link in self._consumer.links:
            answer = await link.last_message_id()
            mark_delete = (
                MessageId.from_data(answer.consumer_mark_delete_position)
                if answer.HasField("consumer_mark_delete_position")
                else None
            )
            if link.start.is_behind(MessageId.from_data(answer.last_message_id), mark_delete):
                return True
        return False

    def position(self, topic: str) -> tuple[int, int]:
        """Ledger and entry of what was handed out last of a topic or partition; -1 where that is nothing."""
        return self._positions.get(topic, (-1, -1))

    async def seek(self, target: MessageId | int, *, inclusive: bool = False) -> None:
        """Go to a message, or to a time in milliseconds since 1970, as `Consumer.seek`."""
        await self._consumer.seek(target, inclusive=inclusive)

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message of the topic; its entry is -1 if it holds none."""
        return await self._consumer.get_last_message_id()

    async def get_last_message_ids(self) -> dict[str, MessageId]:
        """The id of the last message of each partition."""
        return await self._consumer.get_last_message_ids()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._consumer.closed

    async def close(self) -> None:
        """Leave."""
        await self._consumer.close()


async def read_range(reader: Reader, last: MessageId) -> AsyncIterator[Message]:
    """The messages of a reader of one topic, up to and with the one at `last`; the reader is closed in the end.

    Ends earlier where the topic holds nothing more: what is yet to be published is not waited for.
    """
    try:
        while await reader.has_message_available():
            batch = await reader.read_batch()
            if batch is None:
                return
            for message in batch.messages:
                place = message.message_id
                if place[:2] > last[:2] or (
                    place[:2] == last[:2] and 0 <= last.batch_index < place.batch_index
                ):
                    return
                yield message
            if batch.message_id[:2] >= last[:2]:
                return
    finally:
        await reader.close()
