"""A subscription's provisional acknowledgements, kept in a log of their own.

Memory leads and answers lag: whoever acknowledges is answered when the record is stored. When a record cannot be
stored, nobody knows whether it is: the topic is loaded anew, and the log tells.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from magnetar.broker.errors import BrokerError, InvalidPosition, NotAllowed, as_broker_error
from magnetar.broker.filters import Verdict
from magnetar.broker.transactions.pending_acks import Acked, PendingAcks, Record, Settled
from magnetar.broker.transactions.record_log import RecordLog, record_config
from magnetar.broker.transactions.txn_id import TxnId, named
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.errors import ManagedLedgerError, NoSuchManagedLedger
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.ids import to_signed
from magnetar.protocol.pulsar_pb2 import CommandAck

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.subscription import Subscription
    from magnetar.managed_ledger import Entry
    from magnetar.protocol.pulsar_pb2 import MessageMetadata

log = get_logger("magnetar.broker")

PENDING_ACKS_PROPERTY = "magnetar.pending-acks"
"""Of a topic's log: some subscription of it has, or had, such a log."""
_SUFFIX = "__transaction_pending_ack"
_NOT_IN_TOPICS = re.compile(r"[%/\x00-\x1f\x7f]")
_FLUSHES_MAX = 10


def pending_ack_log(topic: TopicName, subscription: str) -> TopicName:
    """What the log is called. Source: Pulsar MLPendingAckStore.

    A subscription may be called what no topic can be: such characters are told by their numbers.
    """
    told = _NOT_IN_TOPICS.sub(lambda found: f"%{ord(found[0]):02X}", subscription)
    return TopicName(topic.domain, topic.tenant, topic.namespace, f"{topic.local_name}-{told}{_SUFFIX}")


class PendingAckStore:
    """The provisional acknowledgements of one durable subscription, in memory and on disk."""

    def __init__(self, subscription: Subscription, records: RecordLog) -> None:
        self.state = PendingAcks()
        self.records = records
        self.committed = 0
        self.aborted = 0
        self._subscription = subscription
        self._cursor = subscription.cursor
        self._commits = 0
        self._compacting = False
        self._last_stored: asyncio.Future[Position] | None = None
        """Of the last record: records are stored in their order."""
        self._lacking: ManagedLedgerError | None = None
        """Why a record is not stored. Those behind it may be, and say nothing of it."""

    @classmethod
    async def open(cls, subscription: Subscription) -> PendingAckStore:
        """Bring back what was held, and acknowledge for good what was committed."""
        topic = subscription.topic
        name = pending_ack_log(topic.name, subscription.name)
        ledger = await topic.context.ledgers.open(
            name.managed_ledger_name, record_config(topic.ledger.config)
        )
        store = cls(subscription, await RecordLog.open(ledger, topic.clock))
        async for record in store.records.replay():
            settled = store.state.apply(record)
            if settled is not None:
                store._acknowledge(settled)
        if len(store.state) or store.state.cumulative is not None:
            log.info(
                "pending_acks.recovered",
                topic=str(topic.name),
                subscription=subscription.name,
                transactions=len(store.state.transactions),
                entries=len(store.state),
            )
        return store

    # What is delivered.

    def judge(self, entry: Entry, metadata: MessageMetadata) -> Verdict:
        """A filter of what the subscription delivers: not what a transaction holds, for now."""
        if not self._holds_any:
            return Verdict.DELIVER
        left = self.state.left_of(entry.position, self._cursor.ack_set(entry.position))
        return Verdict.LATER if left is not None and not any(left) else Verdict.DELIVER

    @property
    def _holds_any(self) -> bool:
        return bool(len(self.state)) or self.state.cumulative is not None

    def ack_set(self, position: Position) -> Sequence[int] | None:
        """What of an entry may be delivered."""
        unacked = self._cursor.ack_set(position)
        return self.state.left_of(position, unacked) if self._holds_any else unacked

    # What consumers acknowledge.

    async def acknowledge(self, consumer: Consumer, command: CommandAck) -> None:
        """Hold what a consumer acknowledges. Stored when this returns.

        Raises:
            TransactionConflict, InvalidTransactionStatus, NotAllowed, InvalidPosition: nothing is held.
        """
        txn = named(command.txnid_most_bits, command.txnid_least_bits)
        acked = [self._acked(data) for data in command.message_id]
        if command.ack_type == CommandAck.Individual:
            record = self.state.hold(
                txn,
                acked,
                is_acknowledged=self._cursor.is_acknowledged,
                unacked=self._cursor.ack_set,
            )
            self._held(consumer, [each.position for each in acked])
        else:
            record = self._hold_up_to(txn, acked)
            self._subscription.acknowledged(consumer, 1)
        crash_point("pending_acks.before_hold")
        await self._store(record)
        crash_point("pending_acks.held")

    def _acked(self, data: Any) -> Acked:
        position = Position(to_signed(data.ledgerId), to_signed(data.entryId))
        if position > self._subscription.last_position:
            raise InvalidPosition(f"nothing to acknowledge at {position}: the topic ends before")
        if data.ack_set and not self._subscription.topic.settings.batch_index_acknowledgement:
            raise NotAllowed("single messages of a batch cannot be acknowledged here: acknowledge all of it")
        return Acked(position, list(data.ack_set) if data.ack_set else None, data.batch_size)

    def _hold_up_to(self, txn: TxnId, acked: Sequence[Acked]) -> Record | None:
        dispatcher = self._subscription.dispatcher
        if len(acked) != 1 or dispatcher is None or dispatcher.individual:
            raise NotAllowed("only exclusive and failover subscriptions acknowledge cumulatively")
        return self.state.hold_up_to(txn, acked[0].position, acked[0].ack_set, self._cursor.mark_delete)

    def _held(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """For dispatch it is as if they were acknowledged: nobody waits for them."""
        subscription = self._subscription
        dispatcher = subscription.dispatcher
        if dispatcher is not None:
            for position in positions:
                dispatcher.acknowledged(position, self.ack_set(position) or (), consumer)
        subscription.acknowledged(consumer, len(positions))

    async def _store(self, record: Record | None) -> None:
        """Write a change down. Where there is nothing to write, because another call has changed the same just before,
        that call's record is waited for: nobody is told of what is not stored yet."""
        if record is not None:
            self._last_stored = self.records.store(record)
            self._last_stored.add_done_callback(self._note_failure)
        try:
            if self._last_stored is not None:
                await asyncio.shield(self._last_stored)
            if self._lacking is not None:
                raise self._lacking
        except ManagedLedgerError as error:
            self._subscription.topic.marks_in_doubt()
            raise as_broker_error(error) from error

    def _note_failure(self, stored: asyncio.Future[Position]) -> None:
        error = None if stored.cancelled() else stored.exception()
        if isinstance(error, ManagedLedgerError):
            self._lacking = error

    # How transactions end.

    async def end(self, txn: TxnId, *, commit: bool, watermark: int) -> None:
        """A transaction has ended: what it held is acknowledged for good, or delivered again. Stored when this returns.

        Raises:
            BrokerError: it may be stored or not; ask again.
        """
        settled, record = self.state.end(txn, commit=commit, watermark=watermark)
        if record is not None and record["op"] == "end":
            self._settle(settled, commit=commit)
        crash_point("pending_acks.before_end")
        await self._store(record)
        crash_point("pending_acks.ended")
        for orphan in self.state.orphans:
            log.warning("transaction.orphaned", subscription=self._subscription.name, txn=str(orphan))
            settled, record = self.state.end(orphan, commit=False, watermark=0)
            self._settle(settled, commit=False)
            await self._store(record)
        if self.records.since_snapshot >= self._subscription.topic.settings.transaction_log_snapshot_records:
            await self._compact()

    def _settle(self, settled: Settled, *, commit: bool) -> None:
        if commit:
            self.committed += 1
            self._acknowledge(settled)
        else:
            self.aborted += 1
            self._deliver_again(settled)

    def _acknowledge(self, settled: Settled) -> None:
        self._commits += 1
        self._cursor.acknowledge(settled.individual)
        if settled.cumulative is not None:
            self._cursor.acknowledge_cumulative(*settled.cumulative)

    def _deliver_again(self, settled: Settled) -> None:
        subscription = self._subscription
        dispatcher = subscription.dispatcher
        if dispatcher is None or not settled:
            return
        if dispatcher.individual:
            subscription.deliver_again([position for position, _ in settled.individual])
        else:
            subscription.restart()  # Order is the promise here: what follows comes again too.
            subscription.wake()

    async def _compact(self) -> None:
        """Let a snapshot replace the log so far: first the cursor must know all that was committed."""
        if self._compacting:
            return
        self._compacting = True
        try:
            for _ in range(_FLUSHES_MAX):
                commits = self._commits
                await self._cursor.flush()
                if commits == self._commits:
                    await self.records.replace(self.state.snapshot())
                    return
        except ManagedLedgerError as error:
            log.warning("pending_acks.not_compacted", subscription=self._subscription.name, reason=str(error))
        finally:
            self._compacting = False

    async def forget_all(self) -> None:
        """The subscription is about to be moved: what was acknowledged before means nothing any more.

        Raises:
            BrokerError: it may be forgotten or not.
        """
        self.state.forget_all()
        try:
            await self.records.replace(self.state.snapshot())
        except ManagedLedgerError as error:
            self._subscription.topic.marks_in_doubt()
            raise as_broker_error(error) from error

    # Ending, and figures.

    async def close(self) -> None:
        await self.records.ledger.close()

    async def delete(self) -> None:
        """Delete what is stored, with the subscription. It may be asked for again."""
        with suppress(NoSuchManagedLedger):
            await self._subscription.topic.context.ledgers.delete(self.records.ledger.name)

    def stats(self) -> dict[str, Any]:
        """As Pulsar's TransactionPendingAckStats."""
        return {
            "state": "Ready",
            "lowWaterMarks": {str(most): least for most, least in self.state.ended.watermarks.items()},
            "ongoingTxnSize": len(self.state.transactions),
            "recoverStartTime": 0,
            "recoverEndTime": 0,
        }

    def transaction_stats(self, txn: TxnId) -> dict[str, Any]:
        """As Pulsar's TransactionInPendingAckStats."""
        up_to = self.state.cumulative_of(txn)
        return {"cumulativeAckPosition": None if up_to is None else str(up_to)}


async def acknowledge_in_transaction(
    subscription: Subscription, consumer: Consumer, command: CommandAck
) -> None:
    """Take an ACK within a transaction, and answer it."""
    error: BrokerError | None = None
    try:
        store = await subscription.with_pending_acks()
        await store.acknowledge(consumer, command)
    except Exception as failure:
        error = as_broker_error(failure)
        log.info(
            "acknowledgement.refused",
            topic=str(subscription.topic.name),
            subscription=subscription.name,
            reason=str(error),
        )
    if command.HasField("request_id"):
        consumer.peer.send_claim(
            commands.ack_response(
                consumer.identifier,
                command.request_id,
                None if error is None else error.code,
                None if error is None else str(error),
                txnid_least_bits=command.txnid_least_bits,
                txnid_most_bits=command.txnid_most_bits,
            )
        )
