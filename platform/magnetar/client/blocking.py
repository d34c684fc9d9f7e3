"""The client without `await`: the same names, on an event loop of its own in a thread of its own.

For scripts, Spark's tasks and the command line. Each call hops to the loop's thread and back, which
costs many times what a message does: send batches, and receive whole ones. Safe to be used from several
threads.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, Final, Literal, TypeVar

from magnetar.client.blocking_transactions import BlockingTransaction, unwrapped
from magnetar.client.client import AccessMode, Client, Compression
from magnetar.client.consumer import Acknowledgeable, Consumer
from magnetar.client.dead_letters import DeadLetterPolicy
from magnetar.client.errors import AlreadyClosed
from magnetar.client.messages import Message, MessageBatch
from magnetar.client.outgoing import OVERHEAD_BYTES, OutgoingMessage
from magnetar.client.partitioned_producer import PartitionedProducer
from magnetar.client.producer import Producer
from magnetar.client.reader import Reader
from magnetar.client.table_view import Listener, TableView
from magnetar.client.topic_consumer import SubscriptionType
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import Schema

T = TypeVar("T")


_CANCELLING_S_MAX: Final = 5.0


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed, as in the servers."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class _LoopThread:
    """An event loop that runs in a thread."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._handing_over = threading.Lock()
        self._ending = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="magnetar client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        with self._handing_over:
            if self._ending:
                work.close()
                raise AlreadyClosed("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            if self._ending:
                raise AlreadyClosed("the client was closed meanwhile") from None
            raise
        except BaseException:
            future.cancel()  # Left by KeyboardInterrupt, the loop must not go on with it.
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function on the loop and wait for its result."""

        async def calling() -> T:
            return function()

        return self.run(calling())

    def stop(self) -> None:
        """End loop and thread. Other threads that wait for something are told that it will not come."""
        with self._handing_over:
            self._ending = True
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_CANCELLING_S_MAX)


class BlockingClient:
    """As `Client`."""

    def __init__(self, service_url: str, **settings: Any) -> None:
        """A client of the cluster at `service_url`; the settings are those of `Client`."""
        self._thread = _LoopThread()
        self._closed = False
        try:
            self._client = self._thread.call(lambda: Client(service_url, **settings))
        except BaseException:
            self._thread.stop()
            raise

    def create_producer(
        self,
        topic: str,
        *,
        producer_name: str | None = None,
        initial_sequence_id: int | None = None,
        batching: bool = True,
        batching_max_delay_ms: float = 1.0,
        batching_max_messages: int = 1000,
        batching_max_bytes: int = 128 * 1024,
        compression: Compression = "none",
        max_pending_messages: int = 0,
        send_timeout_s: float = 30.0,
        chunking: bool = False,
        access_mode: AccessMode = "shared",
        properties: Mapping[str, str] | None = None,
        schema: Schema | None = None,
    ) -> BlockingProducer:
        """As `Client.create_producer`."""
        producer = self._thread.run(
            self._client.create_producer(
                topic,
                producer_name=producer_name,
                initial_sequence_id=initial_sequence_id,
                batching=batching,
                batching_max_delay_ms=batching_max_delay_ms,
                batching_max_messages=batching_max_messages,
                batching_max_bytes=batching_max_bytes,
                compression=compression,
                max_pending_messages=max_pending_messages,
                send_timeout_s=send_timeout_s,
                chunking=chunking,
                access_mode=access_mode,
                properties=properties,
                schema=schema,
            )
        )
        return BlockingProducer(self._thread, producer)

    def subscribe(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        subscription: str,
        *,
        type: SubscriptionType = "exclusive",
        initial: Literal["earliest", "latest"] = "latest",
        receiver_queue_size: int = 1000,
        consumer_name: str | None = None,
        negative_ack_delay_s: float = 60.0,
        durable: bool = True,
        start: MessageId | None = None,
        start_inclusive: bool = False,
        properties: Mapping[str, str] | None = None,
        subscription_properties: Mapping[str, str] | None = None,
        dead_letter: DeadLetterPolicy | None = None,
        ack_group_ms: float = 100.0,
        priority: int | None = None,
        read_compacted: bool = False,
        schema: Schema | None = None,
        pattern_discovery_s: float = 60.0,
    ) -> BlockingConsumer:
        """As `Client.subscribe`."""
        consumer = self._thread.run(
            self._client.subscribe(
                topic,
                subscription,
                type=type,
                initial=initial,
                receiver_queue_size=receiver_queue_size,
                consumer_name=consumer_name,
                negative_ack_delay_s=negative_ack_delay_s,
                durable=durable,
                start=start,
                start_inclusive=start_inclusive,
                properties=properties,
                subscription_properties=subscription_properties,
                dead_letter=dead_letter,
                ack_group_ms=ack_group_ms,
                priority=priority,
                read_compacted=read_compacted,
                schema=schema,
                pattern_discovery_s=pattern_discovery_s,
            )
        )
        return BlockingConsumer(self._thread, consumer)

    def create_reader(
        self,
        topic: str,
        start: MessageId,
        *,
        start_inclusive: bool = False,
        receiver_queue_size: int = 1000,
        name: str | None = None,
        read_compacted: bool = False,
    ) -> BlockingReader:
        """As `Client.create_reader`."""
        reader = self._thread.run(
            self._client.create_reader(
                topic,
                start,
                start_inclusive=start_inclusive,
                receiver_queue_size=receiver_queue_size,
                name=name,
                read_compacted=read_compacted,
            )
        )
        return BlockingReader(self._thread, reader)

    def create_table_view(self, topic: str) -> BlockingTableView:
        """As `Client.create_table_view`."""
        return BlockingTableView(self._thread, self._thread.run(self._client.create_table_view(topic)))

    def read_range(
        self, topic: str, first: MessageId, last: MessageId, *, read_compacted: bool = False
    ) -> Iterator[Message]:
        """As `Client.read_range`."""
        messages = self._client.read_range(topic, first, last, read_compacted=read_compacted)
        while (message := self._thread.run(_next_of(messages))) is not None:
            yield message

    def transaction(self, *, timeout_s: float = 60.0) -> BlockingTransaction:
        """As `Client.begin_transaction`; also for a `with` block."""
        begun = self._thread.run(self._client.begin_transaction(timeout_s=timeout_s))
        return BlockingTransaction(self._thread.run, begun)

    def partitions(self, topic: str) -> list[str]:
        """As `Client.partitions`."""
        return self._thread.run(self._client.partitions(topic))

    def topics(self, namespace: str) -> list[str]:
        """As `Client.topics`."""
        return self._thread.run(self._client.topics(namespace))

    def close(self) -> None:
        """As `Client.close`; the loop's thread ends too."""
        if not self._closed:
            self._closed = True
            try:
                self._thread.run(self._client.close())
            finally:
                self._thread.stop()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _next_of(messages: AsyncIterator[Message]) -> Message | None:
    return await anext(messages, None)


class BlockingTableView(Mapping[str, bytes]):
    """As `TableView`. Listeners are called on the client's own thread."""

    def __init__(self, thread: _LoopThread, view: TableView) -> None:
        self._thread = thread
        self._view = view

    def __getitem__(self, key: str) -> bytes:
        return self._view[key]

    def __len__(self) -> int:
        return len(self._view)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._view))

    def refresh(self) -> None:
        """As `TableView.refresh`."""
        self._thread.run(self._view.refresh())

    def for_each(self, action: Callable[[str, bytes], None]) -> None:
        """As `TableView.for_each`."""
        self._view.for_each(action)

    def for_each_and_listen(self, listener: Listener) -> None:
        """As `TableView.for_each_and_listen`."""

        async def listen() -> None:
            self._view.for_each_and_listen(listener)

        self._thread.run(listen())

    def close(self) -> None:
        """As `TableView.close`."""
        self._thread.run(self._view.close())


class BlockingProducer:
    """As `Producer`."""

    def __init__(self, thread: _LoopThread, producer: Producer) -> None:
        self._thread = thread
        self._producer = producer

    @property
    def topic(self) -> str:
        """As `Producer.topic`."""
        return self._producer.topic

    @property
    def name(self) -> str:
        """As `Producer.name`."""
        return self._producer.name

    @property
    def last_sequence_id(self) -> int:
        """As `Producer.last_sequence_id`."""
        return self._producer.last_sequence_id

    def send(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        transaction: BlockingTransaction | None = None,
    ) -> MessageId:
        """As `Producer.send`."""
        return self._thread.run(
            self._producer.send(
                payload,
                key=key,
                ordering_key=ordering_key,
                properties=properties,
                event_time=event_time,
                sequence_id=sequence_id,
                deliver_at=deliver_at,
                transaction=unwrapped(transaction),
            )
        )

    def send_nowait(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        transaction: BlockingTransaction | None = None,
    ) -> Future[MessageId]:
        """As `Producer.send_nowait`, but that it waits for room; the future is a thread's."""
        result: Future[MessageId] = Future()

        async def sending() -> None:
            await self._producer.room(len(payload or b""))
            sent = self._producer.send_nowait(
                payload,
                key=key,
                ordering_key=ordering_key,
                properties=properties,
                event_time=event_time,
                sequence_id=sequence_id,
                deliver_at=deliver_at,
                transaction=unwrapped(transaction),
            )
            sent.add_done_callback(lambda done: _copy(done, result))

        self._thread.run(sending())
        return result

    def send_batch(
        self, messages: Sequence[OutgoingMessage | bytes], *, transaction: BlockingTransaction | None = None
    ) -> list[MessageId]:
        """As `Producer.send_batch_nowait`, waiting for room and for the receipt."""
        within = unwrapped(transaction)

        async def sending() -> list[MessageId]:
            await self._producer.room(sum(map(_room_for, messages)))
            if within is not None:
                producer = (
                    self._producer
                )  # Which partition a batch without keys goes to is known when it goes.
                topics = producer.topics if isinstance(producer, PartitionedProducer) else [producer.topic]
                await asyncio.gather(*map(within.join_topic, topics))
            return await self._producer.send_batch_nowait(messages, transaction=within)

        return self._thread.run(sending())

    def flush(self) -> None:
        """As `Producer.flush`."""
        self._thread.run(self._producer.flush())

    def close(self) -> None:
        """As `Producer.close`."""
        self._thread.run(self._producer.close())


class BlockingConsumer:
    """As `Consumer`."""

    def __init__(self, thread: _LoopThread, consumer: Consumer) -> None:
        self._thread = thread
        self._consumer = consumer

    @property
    def topic(self) -> str:
        """As `Consumer.topic`."""
        return self._consumer.topic

    @property
    def subscription(self) -> str:
        """As `Consumer.subscription`."""
        return self._consumer.subscription

    @property
    def ended(self) -> bool:
        """Whether every topic is terminated and all of it delivered."""
        return self._consumer.ended.is_set()

    def receive_batch(self, timeout_s: float | None = None) -> MessageBatch | None:
        """As `Consumer.receive_batch`."""
        return self._thread.run(self._consumer.receive_batch(timeout_s))

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """As `Consumer.receive`."""
        return self._thread.run(self._consumer.receive(timeout_s))

    def acknowledge(self, what: Acknowledgeable, *, transaction: BlockingTransaction | None = None) -> None:
        """As `Consumer.acknowledge`; in a transaction it returns when it is durable there."""
        if transaction is None:
            self._thread.call(lambda: self._consumer.acknowledge(what))
            return
        within = transaction.wrapped

        async def acknowledging() -> None:
            await self._consumer.acknowledge(what, transaction=within)

        self._thread.run(acknowledging())

    def acknowledge_cumulative(
        self, what: Acknowledgeable, *, transaction: BlockingTransaction | None = None
    ) -> None:
        """As `Consumer.acknowledge_cumulative`; in a transaction it returns when it is durable there."""
        if transaction is None:
            self._thread.call(lambda: self._consumer.acknowledge_cumulative(what))
            return
        within = transaction.wrapped

        async def acknowledging() -> None:
            await self._consumer.acknowledge_cumulative(what, transaction=within)

        self._thread.run(acknowledging())

    def negative_acknowledge(self, what: Acknowledgeable) -> None:
        """As `Consumer.negative_acknowledge`."""
        self._thread.call(lambda: self._consumer.negative_acknowledge(what))

    def redeliver_unacknowledged(self) -> None:
        """As `Consumer.redeliver_unacknowledged`."""
        self._thread.call(self._consumer.redeliver_unacknowledged)

    def flush_acknowledgements(self) -> None:
        """As `Consumer.flush_acknowledgements`."""
        self._thread.run(self._consumer.flush_acknowledgements())

    def seek(self, target: MessageId | int, *, inclusive: bool = False) -> None:
        """As `Consumer.seek`."""
        self._thread.run(self._consumer.seek(target, inclusive=inclusive))

    def get_last_message_id(self) -> MessageId:
        """As `Consumer.get_last_message_id`."""
        return self._thread.run(self._consumer.get_last_message_id())

    def get_last_message_ids(self) -> dict[str, MessageId]:
        """As `Consumer.get_last_message_ids`."""
        return self._thread.run(self._consumer.get_last_message_ids())

    def unsubscribe(self, *, force: bool = False) -> None:
        """As `Consumer.unsubscribe`."""
        self._thread.run(self._consumer.unsubscribe(force=force))

    def close(self) -> None:
        """As `Consumer.close`."""
        self._thread.run(self._consumer.close())


class BlockingReader:
    """As `Reader`."""

    def __init__(self, thread: _LoopThread, reader: Reader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def topic(self) -> str:
        """As `Reader.topic`."""
        return self._reader.topic

    @property
    def ended(self) -> bool:
        """Whether the topic is terminated and all of it read."""
        return self._reader.ended.is_set()

    def read_batch(self, timeout_s: float | None = None) -> MessageBatch | None:
        """As `Reader.read_batch`."""
        return self._thread.run(self._reader.read_batch(timeout_s))

    def read(self, timeout_s: float | None = None) -> Message | None:
        """As `Reader.read`."""
        return self._thread.run(self._reader.read(timeout_s))

    def has_message_available(self) -> bool:
        """As `Reader.has_message_available`."""
        return self._thread.run(self._reader.has_message_available())

    def seek(self, target: MessageId | int, *, inclusive: bool = False) -> None:
        """As `Reader.seek`."""
        self._thread.run(self._reader.seek(target, inclusive=inclusive))

    def get_last_message_id(self) -> MessageId:
        """As `Reader.get_last_message_id`."""
        return self._thread.run(self._reader.get_last_message_id())

    def get_last_message_ids(self) -> dict[str, MessageId]:
        """As `Reader.get_last_message_ids`."""
        return self._thread.run(self._reader.get_last_message_ids())

    def close(self) -> None:
        """As `Reader.close`."""
        self._thread.run(self._reader.close())


def _room_for(message: OutgoingMessage | bytes) -> int:
    payload = message if isinstance(message, bytes) else message.payload
    return OVERHEAD_BYTES + len(payload or b"")


def _copy(done: asyncio.Future[MessageId], result: Future[MessageId]) -> None:
    if result.cancelled():
        return
    error = None if done.cancelled() else done.exception()
    if done.cancelled():
        result.cancel()
    elif error is not None:
        result.set_exception(error)
    else:
        result.set_result(done.result())
