"""What a persistent topic has to do with transactions: its buffer, made when the first one writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from magnetar.broker.errors import as_broker_error
from magnetar.broker.transactions.buffer import BUFFER_CURSOR, TransactionBuffer
from magnetar.broker.transactions.pending_ack_store import PENDING_ACKS_PROPERTY, pending_ack_log
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.subscription import Subscription
    from magnetar.managed_ledger import ManagedLedger
    from magnetar.naming import TopicName
    from magnetar.protocol.pulsar_pb2 import MessageMetadata


class TransactionalTopic:
    """A part of `PersistentTopic`."""

    name: TopicName
    ledger: ManagedLedger
    context: BrokerContext
    subscriptions: dict[str, Subscription]

    transactions: TransactionBuffer | None = None
    """None as long as no transaction has ever written here."""
    _making: asyncio.Task[TransactionBuffer] | None = None

    @property
    def max_read_position(self) -> Position:
        """The last entry that may be seen: all before the first one of an open transaction."""
        limit = None if self.transactions is None else self.transactions.limit
        return self.ledger.last_confirmed if limit is None else self.ledger.position_before(limit)

    def hides(self, metadata: MessageMetadata) -> bool:
        """Whether an entry, at or before `max_read_position`, is of an aborted transaction, and so nobody's."""
        return (
            self.transactions is not None
            and metadata.txnid_least_bits != 0
            and self.transactions.hides(metadata)
        )

    async def with_transactions(self) -> TransactionBuffer:
        """The topic's transaction buffer. It is made, and stored, before the first message it is for.

        Raises:
            ManagedLedgerError: it cannot be stored now.
        """
        if self.transactions is not None:
            return self.transactions
        if self._making is None:
            self._making = self.context.tasks.start(
                TransactionBuffer.open(self.ledger, self.context, self._visibility_changed),
                f"make the transaction buffer of {self.name}",
            )
            self._making.add_done_callback(self._made)
        return await asyncio.shield(self._making)

    def _made(self, making: asyncio.Task[TransactionBuffer]) -> None:
        self._making = None
        if not making.cancelled() and making.exception() is None:
            self._use(making.result())

    def _use(self, buffer: TransactionBuffer) -> None:
        self.transactions = buffer
        for subscription in self.subscriptions.values():
            subscription.hide_with(buffer)

    async def _recover_transactions(self) -> None:
        """Before there are subscriptions."""
        if BUFFER_CURSOR in self.ledger.cursors:
            self._use(await TransactionBuffer.open(self.ledger, self.context, self._visibility_changed))

    async def _recover_pending_acks(self) -> None:
        """Once there are subscriptions, and before anybody uses them."""
        if PENDING_ACKS_PROPERTY not in self.ledger.properties:
            return

        async def recover(subscription: Subscription) -> None:
            log = pending_ack_log(self.name, subscription.name).managed_ledger_name
            if await self.context.ledgers.exists(log):
                await subscription.with_pending_acks()

        await asyncio.gather(*(recover(each) for each in self.subscriptions.values() if each.durable))

    def _visibility_changed(self) -> None:
        """More, or less, may be seen."""
        buffer = self.transactions
        if buffer is None:
            return
        limit = buffer.limit
        for subscription in self.subscriptions.values():
            subscription.cursor.read_limit = limit
            subscription.wake()

    @property
    def pending_ack_logs(self) -> list[str]:
        """The logs of provisional acknowledgements, which are deleted with the topic."""
        stores = (each.pending_acks for each in self.subscriptions.values())
        return [store.records.ledger.name for store in stores if store is not None]

    # The last message.

    async def _last_deliverable(self, position: Position, partition: int) -> MessageId:
        """Markers, what was aborted and what nobody can be given are passed over, backwards.

        Raises:
            BrokerError: it cannot be read now, and there may be one.
        """
        while position.entry_id >= 0 and self.ledger.number_of_entries:
            try:
                metadata = read_metadata((await self.ledger.read_entry(position)).data)
            except ProtocolError:
                position = self.ledger.position_before(position)
                continue
            except ManagedLedgerError as error:
                if position < self.ledger.first_position:
                    break  # Trimmed meanwhile.
                if getattr(error, "lost", None) is None or not self.ledger.config.auto_skip_lost:
                    raise as_broker_error(error) from error
                position = self.ledger.position_before(position)
                continue
            if not metadata.HasField("marker_type") and not self.hides(metadata):
                is_batch = metadata.HasField("num_messages_in_batch")
                index = metadata.num_messages_in_batch - 1 if is_batch else -1
                return MessageId(position.ledger_id, position.entry_id, partition, index)
            position = self.ledger.position_before(position)
        return MessageId(-1, -1, partition)
