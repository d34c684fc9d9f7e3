"""Where messages go that have been delivered too often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from magnetar.client.messages import Message, MessageBatch
from magnetar.client.producer import Producer

REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"


@dataclass(frozen=True, slots=True)
class DeadLetterPolicy:
    """After how many redeliveries a message is given up, and to which topic."""

    max_redeliver_count: int
    """A message is delivered once, redelivered this often, and then goes to the topic."""
    topic: str | None = None
    """`<topic>-<subscription>-DLQ` if None."""


class DeadLetterOffice:
    """Publishes what has been delivered too often. Its producers are made when first needed."""

    def __init__(
        self,
        policy: DeadLetterPolicy,
        subscription: str,
        make_producer: Callable[[str], Awaitable[Producer]],
    ) -> None:
        self._policy = policy
        self._subscription = subscription
        self._make_producer = make_producer
        self._producers: dict[str, Producer] = {}

    def claims(self, batch: MessageBatch) -> bool:
        """Whether a batch has been delivered often enough."""
        return batch.redelivery_count > self._policy.max_redeliver_count

    async def bury(self, batch: MessageBatch, base_topic: str) -> None:
        """Publish every message of a batch and wait for the receipts; the caller acknowledges it then.

        Raises:
            ClientError: it could not be published.
        """
        topic = self._policy.topic or f"{base_topic}-{self._subscription}-DLQ"
        producer = self._producers.get(topic)
        if producer is None or producer.closed:
            producer = self._producers[topic] = await self._make_producer(topic)
        for message in batch.messages:
            await producer.send(
                message.value,
                key=message.key,
                ordering_key=message.ordering_key,
                event_time=message.event_time,
                properties=self._properties(message),
            )

    async def close(self) -> None:
        """Close the producers."""
        for producer in self._producers.values():
            await producer.close()
        self._producers.clear()

    def _properties(self, message: Message) -> dict[str, str]:
        return {
            REAL_TOPIC: message.topic,
            REAL_SUBSCRIPTION: self._subscription,
            ORIGIN_MESSAGE_ID: str(message.message_id),
            **message.properties,
        }
