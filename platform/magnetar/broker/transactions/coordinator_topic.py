"""A transaction coordinator: served where its topic is, kept in a log that is the topic's own.

`persistent://pulsar/system/transaction_coordinator_assign-partition-<i>` is a topic without messages. Whoever owns
it is coordinator `i`, by the same look-up, load, unload and fencing as any topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from magnetar.broker.errors import (
    BrokerError,
    NotAllowed,
    TooManyRequests,
    TransactionCoordinatorNotFound,
    TransactionNotFound,
)
from magnetar.broker.latency import LatencyBuckets
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.transactions.coordinator_state import CoordinatorState, Record, Status, Transaction
from magnetar.broker.transactions.record_log import RecordLog
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.naming import TopicName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.broker.context import BrokerContext
    from magnetar.broker.producer import Producer
    from magnetar.broker.subscription import Subscription
    from magnetar.broker.transactions.participants import Participants
    from magnetar.managed_ledger import ManagedLedger
    from magnetar.policies.effective import EffectivePolicies

log = get_logger("magnetar.broker")

COORDINATOR_TOPIC: Final = TopicName("persistent", "pulsar", "system", "transaction_coordinator_assign")
LOG_PREFIX: Final = "__transaction_log_"

_ANSWERED_AFTER_S: Final = 20.0
"""Once a transaction's end is decided and written down, its client is told at the latest after this."""
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 5.0
_TOLD_AT_ONCE: Final = 100


def coordinator_log(number: int) -> TopicName:
    """What a coordinator's log is called. Source: Pulsar MLTransactionLogImpl."""
    return TopicName("persistent", "pulsar", "system", f"{LOG_PREFIX}{number}")


class CoordinatorTopic(PersistentTopic):
    """Begins transactions, remembers who takes part, and sees their ends through."""

    records: RecordLog

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        context: BrokerContext,
        policies: EffectivePolicies,
        *,
        reload: Callable[[], None],
    ) -> None:
        super().__init__(name, ledger, context, policies, reload=reload)
        assert context.participants is not None
        self.participants: Participants = context.participants
        self.state = CoordinatorState(self.partition)
        self.execution_latency = LatencyBuckets()
        self.recovered_ms = 0
        self._ends: dict[TxnId, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._compacting = False
        self._last_stored: asyncio.Future[Position] | None = None
        """Of the last record: records are stored in their order."""
        self._lacking: ManagedLedgerError | None = None
        """Why a record is not stored. Those behind it may be, and say nothing of it."""
        self._telling = asyncio.Semaphore(_TOLD_AT_ONCE)

    async def recover(self) -> None:
        """Read the log again, and go on with what was being ended."""
        self.records = await RecordLog.open(self.ledger, self.clock)
        async for record in self.records.replay():
            self.state.apply(record)
        self.recovered_ms = self.clock.time_ms()
        unfinished = self.state.unfinished
        for each in unfinished:
            self._finish_soon(each)
        self._wait_for_deadline()
        log.info(
            "transaction_coordinator.recovered",
            coordinator=self.partition,
            open=len(self.state) - len(unfinished),
            ending=len(unfinished),
        )

    # What clients ask.

    async def begin(self, timeout_ms: int, owner: str | None) -> TxnId:
        """Open a transaction that is aborted after `timeout_ms`.

        Raises:
            TooManyRequests, NotAllowed: the settings forbid it.
            TransactionCoordinatorNotFound: it could not be written down.
        """
        settings = self.settings
        if settings.transactions_per_coordinator_max and len(self.state) >= (
            settings.transactions_per_coordinator_max
        ):
            raise TooManyRequests(
                f"coordinator {self.partition} has its {settings.transactions_per_coordinator_max} transactions: "
                f"end some, or retry"
            )
        if timeout_ms <= 0:
            raise NotAllowed("a transaction needs a timeout of at least a millisecond")
        txn, record = self.state.begin(self.clock.time_ms(), timeout_ms, owner)
        self._wait_for_deadline()
        await self._store(record)
        return txn

    async def add_partitions(self, txn: TxnId, topics: Iterable[str], role: str | None) -> None:
        """A transaction will write to `topics`.

        Raises:
            TransactionNotFound, InvalidTransactionStatus: it is not open.
            InvalidTopic: one of the names is none.
        """
        self._check_owner(txn, role)
        await self._store(self.state.add_partitions(txn, [str(TopicName.parse(topic)) for topic in topics]))

    async def add_subscriptions(
        self, txn: TxnId, subscriptions: Iterable[tuple[str, str]], role: str | None
    ) -> None:
        """A transaction will acknowledge for `subscriptions`.

        Raises:
            TransactionNotFound, InvalidTransactionStatus: it is not open.
            InvalidTopic: one of the names is none.
        """
        self._check_owner(txn, role)
        named = [(str(TopicName.parse(topic)), name) for topic, name in subscriptions]
        await self._store(self.state.add_subscriptions(txn, named))

    async def end(self, txn: TxnId, *, commit: bool, role: str | None = None, checked: bool = True) -> None:
        """Commit or abort a transaction. When this returns, everybody concerned knows, or will.

        Raises:
            TransactionNotFound, InvalidTransactionStatus: it cannot be.
            TransactionCoordinatorNotFound: it could not be written down; ask again.
        """
        if checked and self.state.outcome(txn) is None:
            self._check_owner(txn, role)
        await self._decide(txn, commit=commit)

    async def _decide(self, txn: TxnId, *, commit: bool, timed_out: bool = False) -> None:
        record = self.state.end(txn, commit=commit, timed_out=timed_out)
        crash_point("coordinator.before_decision")
        await self._store(record)
        crash_point("coordinator.decided")
        if self.state.outcome(txn) is None:  # Whoever asked first may be gone by now.
            self._finish_soon(self.state.get(txn))
        finishing = self._ends.get(txn)
        if finishing is not None:
            await asyncio.wait((finishing,), timeout=_ANSWERED_AFTER_S)

    def _check_owner(self, txn: TxnId, role: str | None) -> None:
        """Others than its owner are told that there is no such transaction. Source: Pulsar ServerCnx."""
        if self.state.outcome(txn) is None and self.state.get(txn).owner != role:
            raise TransactionNotFound(f"transaction {txn} is not yours")

    # The end of a transaction.

    def _finish_soon(self, each: Transaction) -> None:
        if each.txn not in self._ends:
            self._ends[each.txn] = task = self.context.tasks.start(
                self._finish(each), f"end transaction {each.txn}"
            )
            task.add_done_callback(lambda _: self._ends.pop(each.txn, None))

    async def _finish(self, each: Transaction) -> None:
        """Tell everybody how a transaction ended, however long it takes; then forget it."""
        commit = each.status is Status.COMMITTING
        watermark = self.state.low_watermark
        calls = self.participants
        await asyncio.gather(
            *(
                self._tell(
                    each.txn,
                    topic,
                    partial(calls.end_on_partition, topic, each.txn, commit=commit, watermark=watermark),
                )
                for topic in each.partitions
            ),
            *(
                self._tell(
                    each.txn,
                    f"{topic} {name}",
                    partial(
                        calls.end_on_subscription, topic, name, each.txn, commit=commit, watermark=watermark
                    ),
                )
                for topic, name in each.subscriptions
            ),
        )
        if self._over:
            return
        crash_point("coordinator.told")
        record = self.state.finish(each.txn)
        self.execution_latency.add(max(0, self.clock.time_ms() - each.opened_ms) / 1000)
        await self._store(record)
        crash_point("coordinator.finished")
        if self.records.since_snapshot >= max(
            self.settings.transaction_log_snapshot_records, 2 * len(self.state)
        ):
            await self._compact()

    async def _tell(self, txn: TxnId, whom: str, say: Callable[[], Awaitable[None]]) -> None:
        pause_s = _PAUSE_S
        while not self._over:
            async with self._telling:
                crash_point("coordinator.before_telling")
                try:
                    await say()
                    return
                except Exception as error:
                    log.warning(
                        "transaction.participant_not_told", txn=str(txn), whom=whom, reason=str(error)
                    )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    @property
    def _over(self) -> bool:
        return self.closing or self.lost

    # Timeouts.

    def _wait_for_deadline(self) -> None:
        """One timer for the soonest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self.state.next_deadline_ms
        if due_ms is not None and not self._over:
            wait_s = min(max(0, due_ms - self.clock.time_ms()) / 1000, 60.0)
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        for txn in self.state.overdue(self.clock.time_ms()):
            log.info("transaction.timed_out", txn=str(txn))
            self.context.tasks.start(self._time_out(txn), f"time out transaction {txn}")
        self._wait_for_deadline()

    async def _time_out(self, txn: TxnId) -> None:
        try:
            await self._decide(txn, commit=False, timed_out=True)
        except (
            BrokerError
        ) as error:  # Its client was faster; or the log is gone, and whoever reads it goes on.
            log.info("transaction.not_timed_out", txn=str(txn), reason=str(error))

    # The log.

    async def _store(self, record: Record | None) -> None:
        """Write a change down. If that fails, nobody knows whether it is: the log has to tell.

        Where there is nothing to write, because another call has changed the same just before, that call's record
        is waited for: nobody is told of what is not stored yet.

        Raises:
            TransactionCoordinatorNotFound
        """
        if record is not None:
            self._last_stored = self.records.store(record)
            self._last_stored.add_done_callback(self._note_failure)
        try:
            if self._last_stored is not None:
                await asyncio.shield(self._last_stored)
            if self._lacking is not None:
                raise self._lacking
        except ManagedLedgerError as error:
            self.marks_in_doubt()
            raise TransactionCoordinatorNotFound(
                f"coordinator {self.partition} cannot write its log: {error}; retry"
            ) from error
        if not self.ours and not await self.until_ours():
            raise TransactionCoordinatorNotFound(
                f"coordinator {self.partition} is another broker's now: look it up again"
            )

    def _note_failure(self, stored: asyncio.Future[Position]) -> None:
        error = None if stored.cancelled() else stored.exception()
        if isinstance(error, ManagedLedgerError):
            self._lacking = error

    async def _compact(self) -> None:
        if self._compacting:
            return
        self._compacting = True
        try:
            await self.records.replace(self.state.snapshot())
        except ManagedLedgerError as error:
            log.warning("transaction_log.not_compacted", coordinator=self.partition, reason=str(error))
        finally:
            self._compacting = False

    async def close(self) -> None:
        self.closing = True
        if self._timer is not None:
            self._timer.cancel()
        if ends := list(self._ends.values()):
            for each in ends:  # Whoever reads the log next goes on with them.
                each.cancel()
            await asyncio.wait(ends)
        await super().close()

    # A topic without messages.

    async def add_producer(self, producer: Producer, topic_epoch: int | None = None) -> bool:
        self._refuse()

    async def subscription(
        self,
        name: str,
        *,
        durable: bool,
        initial: Literal["earliest", "latest"] = "latest",
        start: Position | None = None,
        properties: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> Subscription:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotAllowed(f"{self.name} is a transaction coordinator's: it holds no messages")

    # Figures.

    def coordinator_stats(self) -> dict[str, Any]:
        """As Pulsar's TransactionCoordinatorStats."""
        return {
            "state": "Ready",
            "leastSigBits": self.state.last_id,
            "lowWaterMark": self.state.low_watermark,
            "ongoingTxnSize": len(self.state),
            "recoverStartTime": self.created_ms,
            "recoverEndTime": self.recovered_ms,
        }
