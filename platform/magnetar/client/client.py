"""The client: makes producers, consumers and readers, and owns the connections they share."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from random import Random
from typing import Literal, TypeAlias

from magnetar.client.authentication import Authentication
from magnetar.client.consumer import Consumer
from magnetar.client.coordinators import CoordinatorClient
from magnetar.client.dead_letters import DeadLetterOffice, DeadLetterPolicy
from magnetar.client.errors import AlreadyClosed, BrokerRefused, ClientError, InvalidUse
from magnetar.client.inbox import Inbox
from magnetar.client.messages import Message
from magnetar.client.partitioned_producer import PartitionedProducer
from magnetar.client.producer import Producer
from magnetar.client.producer_settings import ProducerSettings
from magnetar.client.reader import Reader, read_range
from magnetar.client.retry import until_answered
from magnetar.client.session import Session
from magnetar.client.settings import ClientSettings
from magnetar.client.start import StartFilter
from magnetar.client.table_view import TableView
from magnetar.client.topic_consumer import ConsumerSettings, SubscriptionType, TopicConsumer
from magnetar.client.topic_pattern import TopicPattern, TopicWatch
from magnetar.client.topic_producer import TopicProducer
from magnetar.client.transactions import BeginTransaction, Transaction
from magnetar.environment.clock import Clock, SystemClock
from magnetar.naming import NamespaceName, TopicName
from magnetar.protocol.compression import compression_type
from magnetar.protocol.ids import EARLIEST, MessageId
from magnetar.protocol.pulsar_pb2 import ProducerAccessMode, Schema, ServerError

AccessMode: TypeAlias = Literal["shared", "exclusive", "wait_for_exclusive", "exclusive_with_fencing"]
Compression: TypeAlias = Literal["none", "lz4", "zlib", "zstd", "snappy"]

_ACCESS_MODES: dict[AccessMode, ProducerAccessMode.ValueType] = {
    "shared": ProducerAccessMode.Shared,
    "exclusive": ProducerAccessMode.Exclusive,
    "wait_for_exclusive": ProducerAccessMode.WaitForExclusive,
    "exclusive_with_fencing": ProducerAccessMode.ExclusiveWithFencing,
}
_QUEUE_OVER_PARTITIONS = 50_000
"""What the queues of all partitions of a consumer may hold together."""


class Client:
    """A client of one cluster. Belongs to the event loop it is first used in."""

    def __init__(
        self,
        service_url: str,
        *,
        operation_timeout_s: float = 30.0,
        connection_timeout_s: float = 10.0,
        keep_alive_s: float = 30.0,
        memory_limit_bytes: int = 64 * 1024 * 1024,
        partition_update_s: float = 60.0,
        backoff_initial_s: float = 0.1,
        backoff_maximum_s: float = 30.0,
        listener_name: str | None = None,
        authentication: Authentication | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        """A client of the cluster at `service_url`; nothing is connected yet.

        Args:
            service_url: `pulsar://host:port`, or several hosts separated by commas.
            operation_timeout_s: how long a request, or making a producer or consumer, may take.
            connection_timeout_s: how long a connection and its handshake may take.
            keep_alive_s: after how long a silence the broker is asked for a sign of life.
            memory_limit_bytes: what all producers together may hold without receipts.
            partition_update_s: how often partitioned topics are asked whether they have grown; 0: never.
            backoff_initial_s, backoff_maximum_s: how long attempts to reconnect wait.
            listener_name: which of the broker's advertised listeners to be sent to.
            authentication: who the client says it is.
            tls: the context of pulsar+ssl:// connections.
        Raises:
            InvalidServiceUrl: the URL is none.
        """
        settings = ClientSettings(
            operation_timeout_s=operation_timeout_s,
            connection_timeout_s=connection_timeout_s,
            keep_alive_s=keep_alive_s,
            memory_limit_bytes=memory_limit_bytes,
            partition_update_s=partition_update_s,
            backoff_initial_s=backoff_initial_s,
            backoff_maximum_s=backoff_maximum_s,
            listener_name=listener_name,
            authentication=authentication,
            tls=tls,
        )
        self._session = Session(service_url, settings, clock or SystemClock(), random or Random())
        self._open: set[Producer | Consumer | TableView] = set()
        self._coordinators = CoordinatorClient(self._session)
        self._closed = False

    async def create_producer(
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
    ) -> Producer:
        """A producer of a topic, partitioned or not.

        Args:
            producer_name: chosen by the broker if None. Only under a name of its own, and with
                deduplication on, does the broker drop what it had before.
            initial_sequence_id: the first message gets the next higher one; by default it follows on
                what the broker knows under this name.
            batching: whether messages share entries; see the three limits after it.
            max_pending_messages: how many may wait for receipts, for each partition; 0: any number, as
                the client's memory allows.
            send_timeout_s: how long a message waits for its receipt; 0: for ever.
            chunking: whether a message larger than an entry is cut into several.
            access_mode: whom else it bears; `wait_for_exclusive` waits its turn without a time-out.
        Raises:
            BrokerRefused: the broker does not want it.
            ConnectFailed, OperationTimedOut: no broker took it in time.
        """
        self._check_open()
        name = TopicName.parse(topic)
        settings = ProducerSettings(
            compression=compression_type(compression),
            batching=batching,
            batching_max_delay_s=batching_max_delay_ms / 1000,
            batching_max_messages=batching_max_messages,
            batching_max_bytes=batching_max_bytes,
            max_pending_messages=max_pending_messages,
            send_timeout_s=send_timeout_s,
            chunking=chunking,
            access_mode=_ACCESS_MODES[access_mode],
            initial_sequence_id=initial_sequence_id,
            properties=properties or {},
            schema=schema,
        )
        partitions = await self._partitions(name)
        if partitions == 0:
            (producer,) = await self._open_producers([name], producer_name, settings)
            return producer

        async def more(known: int) -> Sequence[TopicProducer]:
            now = await self._partitions(name)
            names = [name.partition_name(index) for index in range(known, now)]
            return await self._open_producers(names, producer_name or producers[0].name, settings)

        first = await self._open_producers([name.partition_name(0)], producer_name, settings)
        rest = [name.partition_name(index) for index in range(1, partitions)]
        producers = [*first, *await self._open_producers(rest, producer_name or first[0].name, settings)]
        partitioned = PartitionedProducer(
            str(name),
            producers,
            update_s=self._session.settings.partition_update_s,
            more_partitions=more,
        )
        self._open.difference_update(producers)
        self._open.add(partitioned)
        return partitioned

    async def subscribe(
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
    ) -> Consumer:
        """A consumer of one topic or several; of all partitions of partitioned ones.

        Args:
            topic: a compiled expression stands for all topics of a namespace that it matches,
                `re.compile("persistent://public/default/sensor-.*")`, also those that come to be later, which are
                read from their beginnings.
            type: who receives what, where several consumers share the subscription.
            initial: where a subscription begins that does not exist yet.
            receiver_queue_size: how many messages the broker may send ahead.
            negative_ack_delay_s: after what time a negatively acknowledged message comes again.
            durable: whether the subscription outlives its consumers.
            start: where one that does not outlive them begins.
            dead_letter: what is delivered too often, and where it goes; shared subscriptions only.
            ack_group_ms: how long acknowledgements wait for others; 0: not at all.
            read_compacted: whether only the last message of each key is wanted of what was compacted.
            pattern_discovery_s: how often topics are looked for anew, where the broker does not tell of them.
        Raises:
            BrokerRefused: the broker does not want it.
            ConnectFailed, OperationTimedOut: no broker took it in time.
            InvalidUse: a start with a durable subscription, or dead letters with an ordered one.
        """
        self._check_open()
        if start is not None and durable:
            raise InvalidUse("a durable subscription begins at `initial`; use seek, or durable=False")
        if dead_letter is not None and type not in ("shared", "key_shared"):
            raise InvalidUse("dead letters need a shared subscription: others do not count deliveries")
        pattern = TopicPattern.parse(topic) if isinstance(topic, re.Pattern) else None
        texts = [topic] if isinstance(topic, str) else () if isinstance(topic, re.Pattern) else topic
        names = [TopicName.parse(text) for text in texts]
        if not names and pattern is None:
            raise InvalidUse("name a topic to subscribe to")
        settings = ConsumerSettings(
            subscription=subscription,
            type=type,
            consumer_name=consumer_name or f"{self._session.random.getrandbits(40):010x}",
            initial=initial,
            receiver_queue_size=max(1, receiver_queue_size),
            durable=durable,
            negative_ack_delay_s=negative_ack_delay_s,
            ack_group_s=ack_group_ms / 1000,
            priority=priority,
            properties=properties or {},
            subscription_properties=subscription_properties or {},
            read_compacted=read_compacted,
            schema=schema,
            create_topic=pattern is None,
        )
        found = await asyncio.gather(*(self._partitions(name) for name in names))
        partitions = dict(zip(names, found, strict=True))
        inbox = Inbox()
        office = None
        if dead_letter is not None:
            office = DeadLetterOffice(dead_letter, subscription, self.create_producer)

        async def add_partitions(consumer: Consumer) -> None:
            for name, known in list(partitions.items()):
                now = await self._partitions(name)
                if known and now > known:
                    new = [name.partition_name(index) for index in range(known, now)]
                    await self._open_consumers(
                        consumer, new, settings.from_earliest(), inbox, start, start_inclusive
                    )
                    partitions[name] = now

        grows = any(partitions.values())
        consumer = Consumer(
            topic.pattern if isinstance(topic, re.Pattern) else ",".join(map(str, names)),
            subscription,
            settings.consumer_name,
            inbox,
            dead_letters=office,
            update_s=self._session.settings.partition_update_s,
            add_partitions=add_partitions if grows else None,
        )
        try:
            if pattern is not None:
                await self._follow(
                    pattern, pattern_discovery_s, consumer, settings, inbox, start, start_inclusive
                )
            else:
                await self._open_consumers(
                    consumer, _with_partitions(partitions), settings, inbox, start, start_inclusive
                )
        except BaseException:
            await consumer.close()
            raise
        self._open.add(consumer)
        return consumer

    async def create_reader(
        self,
        topic: str,
        start: MessageId,
        *,
        start_inclusive: bool = False,
        receiver_queue_size: int = 1000,
        name: str | None = None,
        read_compacted: bool = False,
    ) -> Reader:
        """A reader of a topic from a position on, or of all partitions of a partitioned one.

        Args:
            start: where to begin; `MessageId.EARLIEST` and `MessageId.LATEST` are positions too.
            start_inclusive: whether the message at `start` is wanted itself.
            name: a prefix of the name of the reader's passing subscription.
        Raises:
            BrokerRefused: the broker does not want it.
            ConnectFailed, OperationTimedOut: no broker took it in time.
        """
        consumer = await self.subscribe(
            topic,
            f"{name or 'reader'}-{self._session.random.getrandbits(40):010x}",
            receiver_queue_size=receiver_queue_size,
            durable=False,
            start=start,
            start_inclusive=start_inclusive,
            read_compacted=read_compacted,
        )
        return Reader(consumer)

    async def create_table_view(self, topic: str) -> TableView:
        """The last value of each key of a topic, or of all partitions of one, kept up to date.

        Everything that is there now is read before this returns; quickly, where the topic is compacted.

        Raises:
            BrokerRefused: the broker does not want it.
            ConnectFailed, OperationTimedOut: no broker took it in time.
        """
        persistent = TopicName.parse(topic).persistent
        view = TableView(
            await self.create_reader(topic, EARLIEST, name="table-view", read_compacted=persistent)
        )
        try:
            await view.begin()
        except BaseException:
            await view.close()
            raise
        self._open.add(view)
        return view

    async def read_range(
        self, topic: str, first: MessageId, last: MessageId, *, read_compacted: bool = False
    ) -> AsyncIterator[Message]:
        """The messages from `first` to `last`, both included, of a topic that is not partitioned, or of a partition.

        Both may lie in the middle of a batch. Ends with the topic's last message, if that comes first.

        Raises:
            InvalidUse: the topic is partitioned, so that ids tell no order.
            BrokerRefused, ConnectFailed, OperationTimedOut: as `create_reader`.
        """
        if await self._partitions(TopicName.parse(topic)):
            raise InvalidUse(f"{topic} is partitioned: read a range of one of its partitions")
        reader = await self.create_reader(topic, first, start_inclusive=True, read_compacted=read_compacted)
        async for message in read_range(reader, last):
            yield message

    async def partitions(self, topic: str) -> list[str]:
        """The full names of a topic's partitions; its own name if it is not partitioned.

        Raises:
            BrokerRefused: there is no such topic, nor may there be.
            ConnectFailed, OperationTimedOut: no broker answered in time.
        """
        self._check_open()
        name = TopicName.parse(topic)
        count = await self._partitions(name)
        return [str(partition) for partition in _with_partitions({name: count})]

    async def topics(self, namespace: str) -> list[str]:
        """The full names of a namespace's topics; partitioned ones as their partitions.

        Raises:
            BrokerRefused: there is no such namespace.
            ConnectFailed, OperationTimedOut: no broker answered in time.
        """
        self._check_open()
        text = str(NamespaceName.parse(namespace))
        return await until_answered(self._session, lambda: self._session.lookup.topics(text))

    def transaction(self, *, timeout_s: float = 60.0) -> BeginTransaction:
        """A transaction for an `async with` block: committed at its end, aborted by an exception that leaves it.

        Messages are sent in it by `producer.send(…, transaction=txn)` and acknowledged by
        `await consumer.acknowledge(message, transaction=txn)`; see `magnetar.client.transactions`.

        Args:
            timeout_s: the coordinator aborts it when it is not ended after so long.
        Raises: on entering, as `begin_transaction`; on leaving, as `Transaction.commit`.
        """
        return BeginTransaction(lambda: self.begin_transaction(timeout_s=timeout_s))

    async def begin_transaction(self, *, timeout_s: float = 60.0) -> Transaction:
        """The same, to be ended by `commit` or `abort`.

        Raises:
            TransactionsUnavailable: the cluster has none.
            BrokerRefused, ConnectFailed, OperationTimedOut: no coordinator took it in time.
        """
        self._check_open()
        return Transaction(self._coordinators, *await self._coordinators.begin(timeout_s))

    async def close(self) -> None:
        """Close everything the client made, flushing what is pending, and its connections."""
        if self._closed:
            return
        self._closed = True
        results = await asyncio.gather(*(each.close() for each in self._open), return_exceptions=True)
        self._open.clear()
        await self._session.pool.close()
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, ClientError):
                raise result

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the client is closed")
        self._open = {each for each in self._open if not each.closed}

    async def _partitions(self, name: TopicName) -> int:
        if name.partition >= 0:
            return 0
        return await until_answered(self._session, lambda: self._session.lookup.partitions(str(name)))

    async def _open_producers(
        self, names: Sequence[TopicName], producer_name: str | None, settings: ProducerSettings
    ) -> list[TopicProducer]:
        producers = [TopicProducer(self._session, name, producer_name, settings) for name in names]
        in_time = settings.access_mode != ProducerAccessMode.WaitForExclusive
        results = await asyncio.gather(
            *(producer.open(in_time=in_time) for producer in producers), return_exceptions=True
        )
        failure = next((result for result in results if result is not None), None)
        if failure is not None:
            await asyncio.gather(*(producer.close() for producer in producers))
            raise failure
        self._open.update(producers)
        return producers

    async def _follow(
        self,
        pattern: TopicPattern,
        every_s: float,
        consumer: Consumer,
        settings: ConsumerSettings,
        inbox: Inbox,
        start: MessageId | None,
        start_inclusive: bool,
    ) -> None:
        """Attach consumers of all topics that match, and go on doing so."""
        began = False

        async def open_one(name: TopicName, queue: int) -> None:
            wanted = settings.from_earliest() if began else settings
            try:
                await self._open_consumers(
                    consumer, [name], wanted.with_queue(queue), inbox, start, start_inclusive
                )
            except BrokerRefused as error:
                if error.code != ServerError.TopicNotFound:  # It is gone already.
                    raise

        async def changed(new: list[TopicName], gone: list[str]) -> None:
            await consumer.drop_links(
                [link for link in consumer.links if link.topic in gone or link.topic_is_gone]
            )
            topics = len(consumer.links) + len(new)
            queue = max(1, min(settings.receiver_queue_size, _QUEUE_OVER_PARTITIONS // max(1, topics)))
            results = await asyncio.gather(*(open_one(name, queue) for name in new), return_exceptions=True)
            for failure in results:
                if failure is not None:
                    raise failure

        def known() -> list[str]:
            return [link.topic for link in consumer.links if not link.topic_is_gone]

        watch = TopicWatch(self._session, pattern, every_s, known, changed)
        await watch.begin()
        began = True
        consumer.accompany(watch.follow())
        await asyncio.sleep(0)  # It has begun: a close right now ends the watch, too.

    async def _open_consumers(
        self,
        consumer: Consumer,
        names: Sequence[TopicName],
        settings: ConsumerSettings,
        inbox: Inbox,
        start: MessageId | None,
        start_inclusive: bool,
    ) -> None:
        """Attach consumers of single topics and add them to `consumer`."""
        share = max(1, min(settings.receiver_queue_size, _QUEUE_OVER_PARTITIONS // len(names)))
        links = [
            TopicConsumer(
                self._session,
                name,
                settings.with_queue(share),
                inbox,
                StartFilter(start, inclusive=start_inclusive, reader=not settings.durable),
                consumer.on_change,
            )
            for name in names
        ]
        consumer.add_links(links)
        results = await asyncio.gather(*(link.open() for link in links), return_exceptions=True)
        failure = next((result for result in results if result is not None), None)
        if failure is not None:
            await consumer.drop_links(links)
            raise failure


def _with_partitions(partitions: Mapping[TopicName, int]) -> list[TopicName]:
    """Topics with partitioned ones replaced by their partitions."""
    return [
        each
        for name, count in partitions.items()
        for each in ([name.partition_name(index) for index in range(count)] if count else [name])
    ]
