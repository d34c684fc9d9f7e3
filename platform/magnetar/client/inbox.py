"""What has arrived and is not consumed yet, of all topics of one consumer, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from magnetar.protocol.ids import MessageId

if TYPE_CHECKING:
    from magnetar.client.messages import MessageBatch
    from magnetar.client.topic_consumer import TopicConsumer


class Delivery:
    """An entry as it arrived. It is read when its turn comes, so that nothing is read in vain."""

    __slots__ = ("ack_set", "consumer", "message_id", "payload", "redelivery_count")

    def __init__(
        self,
        consumer: TopicConsumer,
        message_id: MessageId,
        payload: memoryview,
        redelivery_count: int,
        ack_set: list[int],
    ) -> None:
        self.consumer = consumer
        self.message_id = message_id
        self.payload = payload
        self.redelivery_count = redelivery_count
        self.ack_set = ack_set


class OpenedBatch:
    """A batch whose messages are received one by one."""

    __slots__ = ("batch", "consumer", "position")

    def __init__(self, consumer: TopicConsumer, batch: MessageBatch, position: int) -> None:
        self.consumer = consumer
        self.batch = batch
        self.position = position
        """How many of its messages have been received."""


class Inbox:
    """A queue, bounded by the permits that consumers give, and a bell."""

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._bells: deque[asyncio.Future[None]] = deque()
        self.opened: deque[OpenedBatch] = deque()
        """Batches of which single messages are being received: more than one if several tasks receive."""

    def __len__(self) -> int:
        return len(self._deliveries)

    def put(self, delivery: Delivery) -> None:
        """An entry has arrived."""
        self._deliveries.append(delivery)
        if self._bells:
            self.ring(1)

    def take(self) -> Delivery | None:
        """The oldest delivery."""
        return self._deliveries.popleft() if self._deliveries else None

    def take_all_of(self, consumer: TopicConsumer) -> list[Delivery]:
        """Take out everything that came for `consumer`."""
        taken = [delivery for delivery in self._deliveries if delivery.consumer is consumer]
        if taken:
            self._deliveries = deque(d for d in self._deliveries if d.consumer is not consumer)
        return taken

    def drop_opened_of(self, consumer: TopicConsumer) -> None:
        """Forget the rests of batches of `consumer`."""
        self.opened = deque(each for each in self.opened if each.consumer is not consumer)

    def ring(self, waiters: int | None = None) -> None:
        """Wake those who wait, all or the first few: something has changed."""
        while self._bells and waiters != 0:
            bell = self._bells.popleft()
            if not bell.done():
                bell.set_result(None)
                waiters = None if waiters is None else waiters - 1

    async def changed(self) -> None:
        """Wait until something arrives, ends or fails."""
        bell: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._bells.append(bell)
        try:
            await bell
        except asyncio.CancelledError:
            if bell.done() and not bell.cancelled():
                self.ring(1)  # The bell was for somebody who still waits.
            elif bell in self._bells:
                self._bells.remove(bell)  # Or waiting in vain would fill the memory.
            raise
