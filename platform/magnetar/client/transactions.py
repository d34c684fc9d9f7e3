"""Transactions: messages sent and acknowledged in one count together, or not at all.

    async with client.transaction(timeout_s=30) as txn:
        message = await consumer.receive()
        await producer.send(work_on(message), transaction=txn)
        await consumer.acknowledge(message, transaction=txn)

Leaving the block commits; leaving it by an exception aborts: what was sent is never seen, and what was acknowledged
is delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from types import TracebackType
from typing import Any, Final, TypeAlias

from magnetar.client.coordinators import CoordinatorClient
from magnetar.client.errors import (
    ClientError,
    TransactionEnded,
    TransactionFailed,
)
from magnetar.environment.logs import get_logger
from magnetar.protocol.ids import MessageId

log = get_logger("magnetar.client")


class TransactionState(Enum):
    """What has become of a transaction, as far as its client knows."""

    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """Its end was asked for and no answer came. Ask again, by the same call."""


_Waiting: TypeAlias = tuple[Callable[[], asyncio.Future[MessageId]], asyncio.Future[MessageId]]

_ENDED: Final = (TransactionState.COMMITTED, TransactionState.ABORTED)


class Transaction:
    """One transaction. Made by `Client.transaction` or `Client.begin_transaction`."""

    def __init__(self, coordinators: CoordinatorClient, most: int, least: int) -> None:
        self.most = most
        self.least = least
        self.state = TransactionState.OPEN
        self._coordinators = coordinators
        self._loop = asyncio.get_running_loop()
        self._topics: set[str] = set()
        self._joining: dict[
            str, list[tuple[Callable[[], asyncio.Future[MessageId]], asyncio.Future[MessageId]]]
        ]
        self._joining = {}
        self._subscriptions: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending = 0
        self._quiet: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None

    def __str__(self) -> str:
        return f"({self.most},{self.least})"

    # Ending.

    async def commit(self) -> None:
        """Wait for everything sent and acknowledged in it; then let it count.

        Raises:
            TransactionFailed: something of it failed: it is aborted instead.
            TransactionEnded: it has ended otherwise, perhaps because its time was over.
            TransactionNotFound: nothing is known of it any more.
            ClientError: no answer: it may be committed or not. Call again.
        """
        self._check(TransactionState.OPEN, TransactionState.COMMITTING, TransactionState.UNKNOWN)
        self.state = TransactionState.COMMITTING
        await self._until_quiet()
        if self._failure is not None:
            failure = self._failure
            await self._end(commit=False)
            raise TransactionFailed(
                f"transaction {self} is aborted, for a part of it failed: {failure}"
            ) from (failure)
        await self._end(commit=True)

    async def abort(self) -> None:
        """Let nothing of it count.

        Raises:
            TransactionEnded: it is committed.
            ClientError: no answer. Call again, or leave it to its timeout.
        """
        self._check(TransactionState.OPEN, TransactionState.ABORTING, TransactionState.UNKNOWN)
        self.state = TransactionState.ABORTING
        await self._until_quiet()
        await self._end(commit=False)

    async def _end(self, *, commit: bool) -> None:
        try:
            await self._coordinators.end(self.most, self.least, commit=commit)
        except TransactionEnded:
            self.state = TransactionState.ABORTED if commit else TransactionState.COMMITTED
            raise
        except BaseException:
            self.state = TransactionState.UNKNOWN
            raise
        self.state = TransactionState.COMMITTED if commit else TransactionState.ABORTED

    def _check(self, *states: TransactionState) -> None:
        if self.state not in states:
            raise TransactionEnded.locally(f"transaction {self} is {self.state.value}")

    async def _until_quiet(self) -> None:
        """Wait until all that is under way in it has its answer. Who waits no longer may still end it either way."""
        try:
            while self._pending:
                self._quiet = self._quiet or self._loop.create_future()
                await asyncio.shield(self._quiet)
        except asyncio.CancelledError:
            self.state = TransactionState.UNKNOWN
            raise

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.state in _ENDED:
            return  # Ended by hand within the block.
        if error is None:
            await self.commit()
            return
        try:
            await self.abort()
        except ClientError as failure:  # What went wrong first is what the program wants to know.
            log.warning("transaction.not_aborted", txn=str(self), reason=str(failure))

    # What producers and consumers need.

    def writes_to(self, topic: str) -> bool:
        """Whether its coordinator knows that it writes to `topic`."""
        return topic in self._topics

    def send_later(
        self, topic: str, send: Callable[[], asyncio.Future[MessageId]]
    ) -> asyncio.Future[MessageId]:
        """Call `send` once the coordinator knows of the topic, in the order of these calls."""
        self.check_open()
        result: asyncio.Future[MessageId] = self._loop.create_future()
        waiting = self._joining.get(topic)
        if waiting is None:
            waiting = self._joining[topic] = []
            self._run(self._join(topic))
        waiting.append((send, result))
        self._begin()
        result.add_done_callback(self._done)
        return result

    async def _join(self, topic: str) -> None:
        failure: Exception | None = None
        try:
            await self._coordinators.add_partition(self.most, self.least, topic)
            self._topics.add(topic)
        except Exception as error:
            failure = error
        for send, result in self._joining.pop(topic):
            if failure is not None:
                _fail(result, failure)
                continue
            try:
                _copy(send(), result)
            except Exception as error:
                _fail(result, error)

    async def join_topic(self, topic: str) -> None:
        """Make sure that the coordinator knows that the transaction writes to `topic`."""
        if topic in self._topics:
            return
        self.check_open()
        await self._coordinators.add_partition(self.most, self.least, topic)
        self._topics.add(topic)

    def track(self, sent: asyncio.Future[MessageId]) -> asyncio.Future[MessageId]:
        """A message is on its way in it: its end is waited for."""
        self._begin()
        sent.add_done_callback(self._done)
        return sent

    def track_batch(self, sent: asyncio.Future[list[MessageId]]) -> asyncio.Future[list[MessageId]]:
        """The same for a batch."""
        self._begin()
        sent.add_done_callback(self._done)
        return sent

    def acknowledge(
        self, topic: str, subscription: str, tell: Callable[[], Awaitable[None]]
    ) -> asyncio.Task[None]:
        """Acknowledge by `tell`, once the coordinator knows of the subscription."""
        self.check_open()

        async def acknowledging() -> None:
            await self._join_subscription(topic, subscription)
            await tell()

        self._begin()
        task = self._run(acknowledging())
        task.add_done_callback(self._done)
        return task

    async def _join_subscription(self, topic: str, subscription: str) -> None:
        joining = self._subscriptions.get((topic, subscription))
        if joining is None or (joining.done() and (joining.cancelled() or joining.exception() is not None)):
            joining = self._run(
                self._coordinators.add_subscription(self.most, self.least, topic, subscription)
            )
            self._subscriptions[topic, subscription] = joining
        await asyncio.shield(joining)

    def check_open(self) -> None:
        """
        Raises:
            TransactionEnded: nothing more can be done in it.
        """
        self._check(TransactionState.OPEN)

    def _begin(self) -> None:
        self._pending += 1

    def _done(self, done: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if done.cancelled():
            self._failure = self._failure or ClientError("a part of it was cancelled")
        elif (error := done.exception()) is not None:
            self._failure = self._failure or error
        if not self._pending and self._quiet is not None:
            self._quiet.set_result(None)
            self._quiet = None

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=f"transaction {self}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class BeginTransaction:
    """What `Client.transaction` returns: to be entered, or awaited."""

    def __init__(self, begin: Callable[[], Awaitable[Transaction]]) -> None:
        self._begin = begin
        self._transaction: Transaction | None = None

    async def __aenter__(self) -> Transaction:
        self._transaction = await self._begin()
        return await self._transaction.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._transaction is not None
        await self._transaction.__aexit__(kind, error, trace)


def _copy(source: asyncio.Future[MessageId], target: asyncio.Future[MessageId]) -> None:
    def done(ended: asyncio.Future[MessageId]) -> None:
        if target.done():
            return
        if ended.cancelled():
            target.cancel()
        elif (error := ended.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(ended.result())

    source.add_done_callback(done)


def _fail(future: asyncio.Future[MessageId], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
