"""Consumers: one subscription, of one or several topics and all their partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, overload

from magnetar.client.columns import Columns, MessageColumns
from magnetar.client.dead_letters import DeadLetterOffice
from magnetar.client.errors import AlreadyClosed, ClientError, InvalidUse
from magnetar.client.inbox import Inbox, OpenedBatch
from magnetar.client.messages import Message, MessageBatch
from magnetar.client.topic_consumer import TopicConsumer
from magnetar.client.transactions import Transaction
from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.ids import EARLIEST, LATEST, MessageId

log = get_logger("magnetar.client")

Acknowledgeable: TypeAlias = Message | MessageBatch | MessageId

AddPartitions: TypeAlias = Callable[["Consumer"], Awaitable[None]]


class Consumer:
    """Receives messages and acknowledges them. Made by `Client.subscribe`.

    What was received and not acknowledged comes again after a reconnection.
    """

    def __init__(
        self,
        topic: str,
        subscription: str,
        name: str,
        inbox: Inbox,
        *,
        dead_letters: DeadLetterOffice | None = None,
        update_s: float = 0.0,
        add_partitions: AddPartitions | None = None,
    ) -> None:
        self.topic = topic
        """What was subscribed to; several topics are joined by commas."""
        self.subscription = subscription
        self.name = name
        self.ended = asyncio.Event()
        """Set when every topic is terminated and all of it has been delivered and acknowledged."""
        self._inbox = inbox
        self._links: dict[str, TopicConsumer] = {}
        self._dead_letters = dead_letters
        self._add_partitions = add_partitions
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        if add_partitions is not None and update_s > 0:
            self._run(self._keep_partitions_up_to_date(update_s))

    # Receiving.

    async def receive_batch(self, timeout_s: float | None = None) -> MessageBatch | None:
        """The next entry, as a whole.

        Returns None if nothing came in time, or, without a timeout, if the topic has ended (see
        `ended`); a wait for a topic that ends meanwhile returns None too.

        Raises:
            AlreadyClosed: the consumer is closed.
            BrokerRefused: the broker will not let it go on.
        """
        batch = self._next()
        if batch is not None:
            return batch
        if timeout_s is not None and timeout_s <= 0:
            return None
        ended_before = self.ended.is_set() and timeout_s is not None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    if self.ended.is_set() and not ended_before:
                        return None
                    await self._inbox.changed()
                    batch = self._next()
                    if batch is not None:
                        return batch
        except TimeoutError:
            return None

    async def receive(self, timeout_s: float | None = None) -> Message | None:
        """The next message; None as for `receive_batch`.

        Raises:
            AlreadyClosed, BrokerRefused: as `receive_batch`.
        """
        inbox = self._inbox
        if not inbox.opened:
            batch = await self.receive_batch(timeout_s)
            if batch is None:
                return None
            if len(batch) > 1:
                inbox.opened.append(OpenedBatch(self._links[batch.topic], batch, 1))
                inbox.ring(1)  # Another task may wait for a message.
            return batch.message(0)
        self._check_usable()
        opened = inbox.opened[0]
        message = opened.batch.message(opened.position)
        opened.position += 1
        if opened.position == len(opened.batch):
            inbox.opened.popleft()
        return message

    async def receive_columns(
        self, max_messages: int = 10_000, timeout_s: float | None = None
    ) -> Columns | None:
        """What has arrived, as one Arrow record batch: whole entries, until there are `max_messages` or no more yet.

        Waits for the first entry only; None as for `receive_batch`. `acknowledge` takes the result.

        Raises:
            InvalidUse: pyarrow is not installed.
            CompressionError, BatchUnopenable, BatchCorrupt: an entry is not what its metadata say; the next call
                goes on behind it.
            AlreadyClosed, BrokerRefused: as `receive_batch`.
        """
        gathered = MessageColumns()
        batch = await self.receive_batch(timeout_s)
        if batch is None:
            return None
        batches: list[MessageBatch] = []
        while batch is not None:
            try:
                gathered.add(batch)
            except ProtocolError:
                if not batches:
                    raise
                # What was gathered is not lost for it: the next call raises.
                self._inbox.opened.appendleft(OpenedBatch(self._links[batch.topic], batch, 0))
                self._inbox.ring(1)
                break
            batches.append(batch)
            batch = self._next() if len(gathered) < max_messages else None
        return Columns(gathered.take(), batches)

    def _next(self) -> MessageBatch | None:
        """The next batch that has arrived already."""
        self._check_usable()
        inbox = self._inbox
        if inbox.opened:
            opened = inbox.opened.popleft()
            return opened.batch.after(opened.position)
        while (delivery := inbox.take()) is not None:
            read = delivery.consumer.read(delivery)
            if read is None:
                continue
            if self._dead_letters is not None and self._dead_letters.claims(read):
                self._run(self._bury(read, delivery.consumer))
                continue
            return read
        return None

    # Acknowledging.

    @overload
    def acknowledge(self, what: Acknowledgeable | Columns) -> None: ...

    @overload
    def acknowledge(
        self, what: Acknowledgeable | Columns, *, transaction: Transaction
    ) -> asyncio.Future[Any]: ...

    def acknowledge(
        self, what: Acknowledgeable | Columns, *, transaction: Transaction | None = None
    ) -> asyncio.Future[Any] | None:
        """Acknowledge a message, a whole batch, the batches that columns were made of, or what an id names.

        Told to the broker together with others within a tenth of a second; `flush_acknowledgements`
        does it at once and waits until it is durable.

        Within a transaction it is told at once, and what is returned can be awaited: it raises
        `TransactionConflict` where another transaction was faster. Committing waits for it in any case. If the
        transaction is aborted, the message is delivered again.
        """
        if isinstance(what, Columns):
            if transaction is not None:
                return asyncio.gather(
                    *(self.acknowledge(batch, transaction=transaction) for batch in what.batches)
                )
            for batch in what.batches:
                self.acknowledge(batch)
            return None
        link = self._link_of(what)
        if link is None:
            self._too_late(what, transaction)
            return None
        if transaction is not None:
            member = isinstance(what, Message) and what.batch.size > 0
            member = member or (isinstance(what, MessageId) and what.batch_index >= 0)
            place = what if isinstance(what, MessageId) else what.message_id
            return link.acknowledge_in(transaction, place, member=member)
        if isinstance(what, MessageBatch):
            link.acknowledge_entry(what.message_id)
        elif isinstance(what, Message):
            batch = what.batch
            if batch.size:
                link.acknowledge_member(what.message_id, batch.ack_set)
            else:
                link.acknowledge_entry(batch.message_id)
        elif what.batch_index >= 0 and what.batch_size > 0:
            link.acknowledge_member(what, ())
        elif what.batch_index >= 0:
            raise InvalidUse(f"{what} does not tell the size of its batch: acknowledge the message itself")
        else:
            link.acknowledge_entry(what)
        return None

    @overload
    def acknowledge_cumulative(self, what: Acknowledgeable) -> None: ...

    @overload
    def acknowledge_cumulative(
        self, what: Acknowledgeable, *, transaction: Transaction
    ) -> asyncio.Future[None]: ...

    def acknowledge_cumulative(
        self, what: Acknowledgeable, *, transaction: Transaction | None = None
    ) -> asyncio.Future[None] | None:
        """Acknowledge everything in a message's topic up to it, itself included; in a transaction as `acknowledge`.

        Raises:
            InvalidUse: the subscription is shared.
        """
        link = self._link_of(what)
        if link is None:
            self._too_late(what, transaction)
            return None
        place = what if isinstance(what, MessageId) else what.message_id
        if transaction is not None:
            return link.acknowledge_in(transaction, place, cumulative=True)
        link.acknowledge_cumulative(place)
        return None

    def negative_acknowledge(self, what: Acknowledgeable) -> None:
        """Have a message, with the rest of its entry that is not acknowledged, delivered again later."""
        link = self._link_of(what)
        if link is not None:
            link.negative_acknowledge(what if isinstance(what, MessageId) else what.message_id)

    def redeliver_unacknowledged(self) -> None:
        """Have everything that was received and not acknowledged delivered again now."""
        self._inbox.opened.clear()
        for link in self._links.values():
            link.redeliver_unacknowledged()

    async def flush_acknowledgements(self) -> None:
        """Tell the broker every acknowledgement made so far, and wait until they are durable.

        Raises:
            BrokerRefused: it could not make them so.
            OperationTimedOut: it could not be reached or did not answer.
        """
        self._check_usable()
        await asyncio.gather(*(link.flush_acknowledgements() for link in self._links.values()))

    # Moving about.

    async def seek(self, target: MessageId | int, *, inclusive: bool = False) -> None:
        """Move the subscription to a message, or to a time in milliseconds since 1970.

        The next message is the first after the one named, or that one itself with `inclusive`; or the
        first published at or after the time.

        Raises:
            InvalidUse: an id that could be of any of several topics.
            BrokerRefused, OperationTimedOut: it could not be done.
        """
        self._check_usable()
        links = list(self._links.values())
        if isinstance(target, MessageId) and target not in (EARLIEST, LATEST):
            links = [link for link in (self._link_of(target),) if link is not None]
        self.ended.clear()
        self._inbox.opened.clear()
        await asyncio.gather(*(link.seek(target, inclusive=inclusive) for link in links))

    async def get_last_message_id(self) -> MessageId:
        """The id of the last message of the topic; its entry is -1 if it holds none.

        Raises:
            InvalidUse: there are several topics: ask `get_last_message_ids`.
            BrokerRefused, OperationTimedOut: it cannot be told.
        """
        if len(self._links) != 1:
            raise InvalidUse("several topics have several last messages: use get_last_message_ids")
        return next(iter((await self.get_last_message_ids()).values()))

    async def get_last_message_ids(self) -> dict[str, MessageId]:
        """The id of the last message of each topic or partition.

        Raises:
            BrokerRefused, OperationTimedOut: as `get_last_message_id`.
        """
        self._check_usable()
        answers = await asyncio.gather(*(link.last_message_id() for link in self._links.values()))
        return {
            topic: MessageId.from_data(answer.last_message_id)
            for topic, answer in zip(self._links, answers, strict=True)
        }

    async def unsubscribe(self, *, force: bool = False) -> None:
        """Delete the subscription, and close. With `force` even while others are connected to it.

        Raises:
            BrokerRefused: others are.
        """
        self._check_usable()
        await asyncio.gather(*(link.unsubscribe(force=force) for link in self._links.values()))
        await self._finish()

    async def close(self) -> None:
        """Tell what was acknowledged, and leave. The subscription stays, if it is a durable one."""
        if not self._closed:
            await self._finish()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # What the client and the reader need.

    @property
    def links(self) -> Sequence[TopicConsumer]:
        """The consumers of each topic and partition."""
        return list(self._links.values())

    @property
    def has_received(self) -> bool:
        """Whether something waits to be received."""
        return bool(self._inbox) or bool(self._inbox.opened)

    def add_links(self, links: Sequence[TopicConsumer]) -> None:
        """Take in consumers of single topics that are attached."""
        self._links.update((link.topic, link) for link in links)

    async def drop_links(self, links: Sequence[TopicConsumer]) -> None:
        """Give up consumers that could not all be attached."""
        for link in links:
            self._links.pop(link.topic, None)
            self._inbox.drop_opened_of(link)
        await asyncio.gather(*(link.close() for link in links))

    def accompany(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` beside everything else, until the consumer is closed."""
        self._run(work)

    def on_change(self) -> None:
        """One of the topics has ended, or has failed."""
        if self._links and all(link.ended for link in self._links.values()):
            self.ended.set()
        self._inbox.ring()

    async def _finish(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self._links.values()))
        if self._dead_letters is not None:
            await self._dead_letters.close()
        self._inbox.ring()

    async def _bury(self, batch: MessageBatch, link: TopicConsumer) -> None:
        assert self._dead_letters is not None
        try:
            await self._dead_letters.bury(batch, str(TopicName.parse(batch.topic).base))
        except ClientError as error:
            log.warning("dead_letter.not_published", topic=batch.topic, reason=str(error))
            link.negative_acknowledge(batch.message_id)
        else:
            link.acknowledge_entry(batch.message_id)

    async def _keep_partitions_up_to_date(self, every_s: float) -> None:
        assert self._add_partitions is not None
        while True:
            await asyncio.sleep(every_s)
            try:
                await self._add_partitions(self)
            except ClientError as error:
                log.warning("partitions.not_updated", topic=self.topic, reason=str(error))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"consumer of {self.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_usable(self) -> None:
        if self._closed:
            raise AlreadyClosed(f"the consumer of {self.topic} is closed")
        for link in self._links.values():
            if not link.topic_is_gone:
                link.check_usable()

    def _too_late(self, what: Acknowledgeable, transaction: Transaction | None) -> None:
        """A topic of a pattern was deleted while the program was at work on a message of it."""
        if transaction is not None:
            raise AlreadyClosed(f"{what} is of a topic that is consumed no more")
        log.debug("acknowledgement.too_late", what=str(what))

    def _link_of(self, what: Acknowledgeable) -> TopicConsumer | None:
        """The consumer of the topic that something came from; None where that is gone."""
        if not isinstance(what, MessageId):
            return self._links.get(what.topic)
        if len(self._links) == 1:
            return next(iter(self._links.values()))
        found = [link for link in self._links.values() if link.partition == what.partition]
        if len(found) != 1:
            raise InvalidUse(f"{what} may be of any of several topics: name the message itself")
        return found[0]
