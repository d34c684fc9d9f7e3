"""Dead letters: the message as it was, with the reason among its properties."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from magnetar.client.client import Client
from magnetar.client.messages import Message, MessageBatch
from magnetar.client.outgoing import OutgoingMessage
from magnetar.client.producer import Producer
from magnetar.environment.crash import crash_point
from magnetar.functions.process.members import SEQUENCE_SHIFT
from magnetar.instance.delivery import Fault
from magnetar.instance.output_topic import Failed, index_of, partition_count, take_producer, topic_of
from magnetar.protocol.ids import MessageId

TEXT_CHARS_MAX = 2000

EXCEPTION = "exception"
TRACEBACK = "traceback"
FUNCTION = "function"
ORIGINAL_TOPIC = "REAL_TOPIC"
ORIGINAL_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


class DeadLetters:
    """Publishes to a dead-letter topic. Named and sequenced for effectively once; else neither.

    Sequenced ones of a partitioned topic all go to its first partition: a mark stands for all before it only where
    there is one order.
    """

    def __init__(
        self, client: Client, topic: str, function: str, *, name: str | None, failed: Failed
    ) -> None:
        self._client = client
        self._topic = topic
        self._function = function
        self._name = name
        self._failed = failed
        self._producer: Producer | None = None

    async def open(self) -> int:
        """Returns the highest index that was dead-lettered under this name; -1: none. Raises ClientError."""
        if self._name is None:
            self._producer = await self._client.create_producer(self._topic, send_timeout_s=0.0)
            return -1
        route = 0 if await partition_count(self._client, self._topic) else -1
        self._producer = await take_producer(self._client, topic_of(self._topic, route), self._name)
        return index_of(self._producer.last_sequence_id)

    def publish(self, batch: MessageBatch, fault: Fault, index: int, done: Callable[[], None]) -> None:
        """Publish one message of `batch`; `done` is called at its receipt."""
        assert self._producer is not None
        letter = dead_letter(batch, fault, self._function)
        if self._name is not None:
            letter.sequence_id = index << SEQUENCE_SHIFT
        crash_point("instance.before_dead_letter")
        try:
            future = self._producer.send_batch_nowait([letter])
        except Exception as error:  # Closed, too large: whatever it is, nothing is stored.
            self._failed(error)
            return
        future.add_done_callback(partial(_stored, done, self._failed))

    async def close(self) -> None:
        if self._producer is not None:
            await asyncio.gather(self._producer.close(), return_exceptions=True)


def dead_letter(batch: MessageBatch, fault: Fault, function: str) -> OutgoingMessage:
    """The message at fault, with where it came from and why it could not be processed."""
    message = Message(batch, fault.ordinal)
    properties = message.properties
    properties[EXCEPTION] = fault.error[:TEXT_CHARS_MAX]
    if fault.traceback:
        properties[TRACEBACK] = fault.traceback[-TEXT_CHARS_MAX:]
    properties[FUNCTION] = function
    properties[ORIGINAL_TOPIC] = batch.topic
    properties[ORIGINAL_MESSAGE_ID] = str(message.message_id)
    return OutgoingMessage(
        message.data,
        key=message.key,
        ordering_key=message.ordering_key,
        properties=properties,
        event_time=message.event_time,
    )


def _stored(done: Callable[[], None], failed: Failed, future: asyncio.Future[list[MessageId]]) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is not None:
        failed(error if isinstance(error, Exception) else RuntimeError(str(error)))
        return
    crash_point("instance.after_dead_letter")
    done()
