"""A function's log lines as messages: worth sending, not worth failing for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from magnetar.client.client import Client
from magnetar.client.errors import ClientError
from magnetar.client.outgoing import OutgoingMessage
from magnetar.client.producer import Producer
from magnetar.environment.logs import get_logger
from magnetar.protocol.ids import MessageId

PENDING_BATCHES_MAX = 100

log = get_logger("magnetar.instance.log_topic")


class LogTopic:
    """Publishes lines with the properties Pulsar's instances give them: loglevel, fqn, instance."""

    def __init__(self, client: Client, topic: str, fqfn: str, instance_id: int) -> None:
        self._client = client
        self._topic = topic
        self._fqfn = fqfn
        self._instance = str(instance_id)
        self._producer: Producer | None = None
        self._pending = 0
        self.lost = 0
        """Lines that were dropped: the topic could not keep up, or is gone."""

    async def open(self) -> None:
        """Raises ClientError."""
        self._producer = await self._client.create_producer(
            self._topic, compression="lz4", send_timeout_s=0.0
        )

    def publish(self, lines: Sequence[Sequence[object]]) -> None:
        """Lines as the user process tells them: time, level, text."""
        if self._producer is None or self._pending >= PENDING_BATCHES_MAX:
            self.lost += len(lines)
            return
        messages = [
            OutgoingMessage(
                str(text).encode(),
                properties={"loglevel": str(level), "fqn": self._fqfn, "instance": self._instance},
                event_time=at_ms if isinstance(at_ms, int) else None,
            )
            for at_ms, level, text in lines
        ]
        try:
            futures = [
                self._producer.send_nowait(m.payload, properties=m.properties, event_time=m.event_time)
                for m in messages
            ]
        except ClientError as error:
            self.lost += len(lines)
            log.warning("log_topic.refused", topic=self._topic, reason=str(error))
            return
        self._pending += 1
        futures[-1].add_done_callback(self._told)
        for future in futures[:-1]:
            future.add_done_callback(_seen)

    async def close(self) -> None:
        if self._producer is not None:
            await asyncio.gather(self._producer.close(), return_exceptions=True)
        if self.lost:
            log.warning("log_topic.lines_lost", topic=self._topic, lines=self.lost)

    def _told(self, future: asyncio.Future[MessageId]) -> None:
        self._pending -= 1
        _seen(future)


def _seen(future: asyncio.Future[MessageId]) -> None:
    """A line that was not stored is a line less; its error is not the function's."""
    if not future.cancelled():
        future.exception()
