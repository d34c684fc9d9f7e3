"""What consumers acknowledge, and the receipts for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.broker.errors import BrokerError, ServiceNotReady, as_broker_error
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.protocol import ack_sets, commands
from magnetar.protocol.ids import to_signed
from magnetar.protocol.pulsar_pb2 import CommandAck

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.subscription import Subscription
    from magnetar.managed_ledger import Cursor

log = get_logger("magnetar.broker")


class Acknowledgements:
    """Moves a subscription's cursor as its consumers ask, and answers those that want to know.

    The cursor changes at once, in memory, and is written now and then. A receipt is given only after a
    write; all that asked for one while a write was under way share the next.
    """

    def __init__(self, subscription: Subscription, cursor: Cursor) -> None:
        self._subscription = subscription
        self._cursor = cursor
        self._waiting: list[tuple[Consumer, int]] = []
        self._flushing: asyncio.Task[None] | None = None

    def handle(self, consumer: Consumer, command: CommandAck) -> None:
        """Take an ACK as it came."""
        if command.HasField("validation_error"):
            log.warning(
                "message.discarded_by_client",
                topic=str(self._subscription.topic.name),
                subscription=self._subscription.name,
                consumer=consumer.name,
                reason=CommandAck.ValidationError.Name(command.validation_error),
            )
        try:
            if command.ack_type == CommandAck.Individual:
                self._individual(consumer, command)
            elif len(command.message_id) == 1:
                self._cumulative(consumer, command)
        except ManagedLedgerError as error:
            self._refuse(consumer, command, as_broker_error(error))
            return
        if command.HasField("request_id"):
            self._waiting.append((consumer, command.request_id))
            if self._flushing is None:
                self._flushing = asyncio.get_running_loop().create_task(self._flush())

    def _refuse(self, consumer: Consumer, command: CommandAck, error: BrokerError) -> None:
        """The cursor is closed or fenced: the topic is on its way out, and these messages will come again."""
        log.info(
            "acknowledgement.refused",
            topic=str(self._subscription.topic.name),
            subscription=self._subscription.name,
            reason=str(error),
        )
        if command.HasField("request_id"):
            consumer.peer.send(
                commands.ack_response(consumer.identifier, command.request_id, error.code, str(error))
            )

    def _individual(self, consumer: Consumer, command: CommandAck) -> None:
        subscription, cursor = self._subscription, self._cursor
        last = subscription.last_position
        batch_index = subscription.topic.settings.batch_index_acknowledgement
        acknowledged: list[tuple[Position, list[int] | None]] = []
        for data in command.message_id:
            position = Position(to_signed(data.ledgerId), to_signed(data.entryId))
            if position > last or (data.ack_set and not batch_index):
                continue  # Nothing is there yet; or a part of a batch, which then counts for nothing.
            acknowledged.append((position, list(data.ack_set) if data.ack_set else None))
        if subscription.compacted is not None:
            acknowledged = subscription.compacted.without_gone(acknowledged)
        cursor.acknowledge(acknowledged)
        if subscription.compacted is not None:
            subscription.compacted.acknowledged(acknowledged)
        dispatcher = subscription.dispatcher
        messages = 0
        for position, ack_set in acknowledged:
            left = (cursor.ack_set(position) or ()) if ack_set is not None else ()
            held = consumer.pending.get(position)
            messages += max(0, held.messages - ack_sets.count(left)) if held is not None else 1
            if dispatcher is not None:
                dispatcher.acknowledged(position, left, consumer)
        subscription.acknowledged(consumer, messages)

    def _cumulative(self, consumer: Consumer, command: CommandAck) -> None:
        subscription = self._subscription
        dispatcher = subscription.dispatcher
        if dispatcher is None or dispatcher.individual:
            return  # "Everything before this" means nothing where consumers share.
        data = command.message_id[0]
        position = Position(to_signed(data.ledgerId), to_signed(data.entryId))
        if position > subscription.last_position:
            log.warning(
                "acknowledgement.beyond_the_end",
                topic=str(subscription.topic.name),
                subscription=subscription.name,
                position=f"{position.ledger_id}:{position.entry_id}",
            )
            return
        batch_index = subscription.topic.settings.batch_index_acknowledgement
        ack_set = list(data.ack_set) if data.ack_set else None
        if ack_set is not None and not batch_index:
            ack_set = None
            position = Position(position.ledger_id, position.entry_id - 1)
        properties = {pair.key: pair.value for pair in command.properties} or None
        if subscription.compacted is not None:
            ((position, ack_set),) = subscription.compacted.without_gone([(position, ack_set)])
        self._cursor.acknowledge_cumulative(position, ack_set, properties)
        if subscription.compacted is not None:
            subscription.compacted.acknowledged_up_to(position if ack_set is None else position.preceding)
        subscription.acknowledged(consumer, 1)

    async def _flush(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            error: BrokerError | None = None
            try:
                await self._cursor.flush()
            except Exception as failure:
                error = as_broker_error(failure)
                log.warning(
                    "acknowledgement.not_persisted",
                    topic=str(self._subscription.topic.name),
                    subscription=self._subscription.name,
                    reason=str(failure),
                )
            topic = self._subscription.topic
            if error is None and not topic.ours and not await topic.until_ours():
                error = ServiceNotReady(f"topic {topic.name} is another broker's now: look it up again")
            for consumer, request_id in waiting:
                if error is None:
                    consumer.peer.send_claim(commands.ack_response(consumer.identifier, request_id))
                else:
                    consumer.peer.send(
                        commands.ack_response(consumer.identifier, request_id, error.code, str(error))
                    )
        self._flushing = None
