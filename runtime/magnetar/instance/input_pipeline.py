"""One concrete input topic: a consumer, and a session whenever the topic is this instance's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from magnetar.client.client import Client
from magnetar.client.consumer import Consumer
from magnetar.client.messages import MessageBatch
from magnetar.environment.logs import get_logger
from magnetar.instance.input_session import InputSession
from magnetar.protocol.ids import LATEST

LOOK_S = 0.5
"""How often to see whether the subscription's turn has passed to another instance."""
log = get_logger("magnetar.instance.input")


@dataclass(frozen=True, slots=True)
class InputPlan:
    """How a topic is subscribed to."""

    topic: str
    configured: str
    subscription: str
    type: Literal["shared", "failover", "key_shared"]
    initial: Literal["earliest", "latest"]
    consumer_name: str
    queue: int
    skip_to_latest: bool = False
    properties: tuple[tuple[str, str], ...] = ()


class InputPipeline:
    """Receives entries while there is room, and gives them to its session."""

    def __init__(
        self,
        plan: InputPlan,
        client: Client,
        open_session: Callable[[InputPlan, Consumer], Awaitable[InputSession]],
        room: asyncio.Event,
    ) -> None:
        self.plan = plan
        self.session: InputSession | None = None
        self.ended = False
        """The topic was terminated, and everything in it is done with."""
        self._client = client
        self._open_session = open_session
        self._room = room
        self._consumer: Consumer | None = None

    async def subscribe(self) -> None:
        """Raises ClientError."""
        plan = self.plan
        self._consumer = await self._client.subscribe(
            plan.topic,
            plan.subscription,
            type=plan.type,
            initial=plan.initial,
            receiver_queue_size=plan.queue,
            consumer_name=plan.consumer_name,
            ack_group_ms=10.0,
            properties=dict(plan.properties),
        )
        if plan.skip_to_latest:
            await self._consumer.seek(LATEST)

    async def run(self) -> None:
        """Work until the topic ends. Raises ClientError and InstanceError."""
        consumer = self._consumer
        assert consumer is not None
        if self.plan.type != "failover":  # There the turn comes with the first message.
            self.session = await self._open_session(self.plan, consumer)
        while True:
            await self._room.wait()
            if self.session is not None:
                await self.session.room.wait()
            batch = await consumer.receive_batch(LOOK_S)
            if batch is not None:
                await self._give(batch, consumer)
            elif self.session is not None and consumer.links[0].active is False:
                log.info("input.passed_on", topic=self.plan.topic, consumer=self.plan.consumer_name)
                session, self.session = self.session, None
                await session.close()
            elif consumer.ended.is_set() and (self.session is None or self.session.idle):
                await consumer.flush_acknowledgements()
                self.ended = True
                return

    async def _give(self, batch: MessageBatch, consumer: Consumer) -> None:
        if self.session is None:
            self.session = await self._open_session(self.plan, consumer)
        self.session.received(batch)

    async def close(self) -> None:
        """Leave: what was acknowledged is told, what was not comes again."""
        if self.session is not None:
            await self.session.close()
        if self._consumer is not None:
            await self._consumer.close()
