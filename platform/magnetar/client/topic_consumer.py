"""The consumer of one topic, or of one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from magnetar.client.acknowledgements import Place, acknowledged_part
from magnetar.client.acknowledger import Acknowledger
from magnetar.client.connection import Connection
from magnetar.client.errors import BrokerRefused, ClientError, ConnectionLost, InvalidUse, OperationTimedOut
from magnetar.client.inbox import Delivery, Inbox
from magnetar.client.link import TopicLink
from magnetar.client.messages import MessageBatch
from magnetar.client.session import Session
from magnetar.client.start import StartFilter
from magnetar.client.transactions import Transaction
from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.protocol import ack_sets, commands
from magnetar.protocol.chunks import ChunkAssembler
from magnetar.protocol.entry import StoredEntry, split_entry
from magnetar.protocol.errors import BatchUnopenable, ChecksumMismatch, ProtocolError
from magnetar.protocol.ids import MessageId, to_signed
from magnetar.protocol.message import SplitMessage, read_metadata, split_message
from magnetar.protocol.pulsar_pb2 import (
    CommandAck,
    CommandActiveConsumerChange,
    CommandGetLastMessageIdResponse,
    CommandMessage,
    CommandSubscribe,
    CommandSuccess,
    KeySharedMeta,
    KeySharedMode,
    MessageMetadata,
    Schema,
    ServerError,
)

log = get_logger("magnetar.client")

SubscriptionType: TypeAlias = Literal["exclusive", "shared", "failover", "key_shared"]

_SUB_TYPES: dict[SubscriptionType, CommandSubscribe.SubType.ValueType] = {
    "exclusive": CommandSubscribe.Exclusive,
    "shared": CommandSubscribe.Shared,
    "failover": CommandSubscribe.Failover,
    "key_shared": CommandSubscribe.Key_Shared,
}


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """How a consumer works; the meaning of each is told by `Client.subscribe`."""

    subscription: str
    type: SubscriptionType
    consumer_name: str
    initial: Literal["earliest", "latest"] = "latest"
    receiver_queue_size: int = 1000
    durable: bool = True
    negative_ack_delay_s: float = 60.0
    ack_group_s: float = 0.1
    ack_group_size: int = 1000
    priority: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    read_compacted: bool = False
    schema: Schema | None = None
    create_topic: bool = True
    """Whether a topic that is not there may come to be by being subscribed to."""

    @property
    def ordered(self) -> bool:
        """Whether one consumer at a time receives everything in order."""
        return self.type in ("exclusive", "failover")

    def with_queue(self, receiver_queue_size: int) -> ConsumerSettings:
        """The same with another queue: partitions share one bound."""
        return replace(self, receiver_queue_size=receiver_queue_size)

    def from_earliest(self) -> ConsumerSettings:
        """The same for a partition found later, which is new as a whole."""
        return replace(self, initial="earliest")


class TopicConsumer(TopicLink):
    """Gives permits, reads what arrives, and tells the broker what was acknowledged."""

    def __init__(
        self,
        session: Session,
        topic: TopicName,
        settings: ConsumerSettings,
        inbox: Inbox,
        start: StartFilter,
        on_change: Callable[[], None],
    ) -> None:
        super().__init__(session, str(topic))
        self.settings = settings
        self.start = start
        self.ended = False
        """Whether the topic is terminated and everything in it was delivered."""
        self.active: bool | None = None
        """Whether this is the one that receives, where the broker has told."""
        self.partition = topic.partition
        self._id = session.ids.consumer()
        self._inbox = inbox
        self._on_change = on_change
        self._permits_to_give = 0
        self._acknowledger = Acknowledger(
            self,
            self._id,
            group_s=settings.ack_group_s,
            group_size=settings.ack_group_size,
            negative_delay_s=settings.negative_ack_delay_s,
        )
        self._acknowledger.epoch = 0 if settings.ordered else None
        self._chunks: ChunkAssembler[MessageId] = ChunkAssembler()
        self._chunk_ids: dict[Place, tuple[MessageId, ...]] = {}
        self._seeking = False
        self._left_behind: list[Delivery] = []
        """What came during a seek."""

    # What arrives.

    def on_message(self, command: CommandMessage, payload: memoryview) -> None:
        """An entry has come."""
        if command.HasField("consumer_epoch") and command.consumer_epoch < (self._acknowledger.epoch or 0):
            self._give_back(_permits(payload, command.ack_set))
            return
        place = command.message_id
        message_id = MessageId(to_signed(place.ledgerId), to_signed(place.entryId), self.partition)
        delivery = Delivery(self, message_id, payload, command.redelivery_count, list(command.ack_set))
        if self._seeking:  # Of the position that is being left, unless the broker will not have it left.
            self._left_behind.append(delivery)
        else:
            self._inbox.put(delivery)

    def on_end_of_topic(self) -> None:
        """The topic is terminated, and all of it delivered."""
        self.ended = True
        self._on_change()

    def on_active_change(self, change: CommandActiveConsumerChange) -> None:
        """Another consumer of the failover subscription, or this one, has its turn."""
        self.active = change.is_active

    def read(self, delivery: Delivery) -> MessageBatch | None:
        """Read an entry whose turn has come; None if nothing of it is to be consumed."""
        try:
            stored = split_entry(delivery.payload)
            message = split_message(stored.message)
        except ProtocolError as error:
            self._discard(delivery, error)
            return None
        metadata = message.metadata
        self._give_back(_messages_in(metadata, delivery.ack_set))
        if self._acknowledger.holds(delivery.message_id[:2]):
            return None
        if metadata.num_chunks_from_msg > 1:
            return self._read_chunk(delivery, stored, message)
        skip = self.start.skip(delivery.message_id, metadata, stored.broker_timestamp)
        if skip is None:
            self._pass_over(delivery)
            return None
        batch = self._batch(delivery, stored, metadata, message.payload, skip=skip)
        if self.settings.read_compacted:
            try:
                batch.leave_out_compacted()
            except BatchUnopenable:
                log.debug("entry.encrypted", topic=self.topic, message_id=str(delivery.message_id))
            except ProtocolError as error:
                self._discard(delivery, error)
                return None
        if len(batch) == 0:
            self._acknowledger.entries((delivery.message_id,))
            return None
        self.start.consumed(delivery.message_id)
        return batch

    def _read_chunk(
        self, delivery: Delivery, stored: StoredEntry, message: SplitMessage
    ) -> MessageBatch | None:
        if self.start.skip(delivery.message_id, message.metadata, stored.broker_timestamp) is None:
            self._pass_over(delivery)
            return None
        assembled, abandoned = self._chunks.add(
            message.metadata, message.payload, delivery.message_id, self.session.clock.monotonic()
        )
        for given_up in abandoned:
            log.warning(
                "chunks.given_up", topic=self.topic, first=str(given_up.places[0]), reason=given_up.reason
            )
        if assembled is None:
            return None
        if self.settings.durable:  # Of a reader nothing is acknowledged one by one, nor asked for again.
            self._chunk_ids[delivery.message_id[:2]] = assembled.places
        self.start.consumed(delivery.message_id)
        return self._batch(delivery, stored, message.metadata, assembled.payload, chunk_ids=assembled.places)

    def _batch(
        self,
        delivery: Delivery,
        stored: StoredEntry,
        metadata: MessageMetadata,
        payload: memoryview | bytes,
        *,
        skip: int = 0,
        chunk_ids: Sequence[MessageId] = (),
    ) -> MessageBatch:
        return MessageBatch(
            self.topic,
            delivery.message_id,
            metadata,
            payload,
            index=stored.index,
            broker_timestamp=stored.broker_timestamp,
            redelivery_count=delivery.redelivery_count,
            ack_set=delivery.ack_set,
            skip=skip,
            chunk_ids=chunk_ids,
        )

    def _pass_over(self, delivery: Delivery) -> None:
        """An entry before the message that a seek named: the broker begins with it, and would keep it as backlog."""
        if self.settings.durable:
            self._acknowledger.entries((delivery.message_id,))

    def _discard(self, delivery: Delivery, error: ProtocolError) -> None:
        """An entry that cannot be read is acknowledged, as official clients do; or it would block for ever."""
        log.error(
            "entry.unreadable", topic=self.topic, message_id=str(delivery.message_id), reason=str(error)
        )
        self._give_back(_permits(delivery.payload, delivery.ack_set))
        if self.connection is not None:
            reason = (
                CommandAck.ChecksumMismatch
                if isinstance(error, ChecksumMismatch)
                else CommandAck.BatchDeSerializeError
            )
            self.connection.write(
                commands.ack(self._id, [(delivery.message_id, ())], validation_error=reason)
            )

    # Permits.

    def _give_back(self, permits: int) -> None:
        """So many messages have left the queue; let the broker send as many once it is half a queue."""
        self._permits_to_give += permits
        if self._permits_to_give * 2 >= self.settings.receiver_queue_size and self.connection is not None:
            self.connection.write(commands.flow(self._id, self._permits_to_give))
            self._permits_to_give = 0

    # Acknowledging.

    def acknowledge_entry(self, message_id: MessageId) -> None:
        """Acknowledge a whole entry, and the chunks before it if it ends a chunked message."""
        chunks = self._chunk_ids.pop(message_id[:2], None)
        self._acknowledger.entries(chunks or (message_id.entry,))

    def acknowledge_member(self, message_id: MessageId, already: Sequence[int]) -> None:
        """Acknowledge one message of a batch, whose entry came with the ack set `already`."""
        self._acknowledger.member(message_id, already)

    def acknowledge_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and with a message."""
        if not self.settings.ordered:
            raise InvalidUse(f"a {self.settings.type} subscription cannot be acknowledged cumulatively")
        for place in [place for place in self._chunk_ids if place <= message_id[:2]]:
            del self._chunk_ids[place]
        self._acknowledger.cumulative(message_id)

    def acknowledge_in(
        self,
        transaction: Transaction,
        message_id: MessageId,
        *,
        member: bool = False,
        cumulative: bool = False,
    ) -> asyncio.Task[None]:
        """Acknowledge an entry, one message of it, or everything up to it, within a transaction."""
        if cumulative and not self.settings.ordered:
            raise InvalidUse(f"a {self.settings.type} subscription cannot be acknowledged cumulatively")
        chunks = None if cumulative or member else self._chunk_ids.get(message_id[:2])
        positions = [
            acknowledged_part(each, member=member, cumulative=cumulative) for each in chunks or (message_id,)
        ]

        def tell() -> Awaitable[None]:
            return self._acknowledger.told_in(
                (transaction.most, transaction.least), positions, cumulative=cumulative
            )

        return transaction.acknowledge(self.topic, self.settings.subscription, tell)

    def negative_acknowledge(self, message_id: MessageId) -> None:
        """Ask for an entry again after the delay."""
        self._acknowledger.again(self._chunk_ids.get(message_id[:2], (message_id.entry,)))

    async def flush_acknowledgements(self) -> None:
        """Tell the broker all acknowledgements, and wait until they are durable."""
        await self._acknowledger.flush()

    def redeliver_unacknowledged(self) -> None:
        """Ask at once for everything that was received and not acknowledged."""
        acknowledger = self._acknowledger
        acknowledger.tell()
        acknowledger.on_detached()
        if acknowledger.epoch is not None:
            acknowledger.epoch += 1
        self._forget_received()
        if self.connection is not None:
            self.connection.write(commands.redeliver(self._id, consumer_epoch=acknowledger.epoch))

    @property
    def topic_is_gone(self) -> bool:
        """Whether it has given up because its topic was deleted, and may not come to be again by it."""
        failure = self._failure
        return (
            not self.settings.create_topic
            and isinstance(failure, BrokerRefused)
            and failure.code == ServerError.TopicNotFound
        )

    # Moving about.

    async def seek(self, target: MessageId | int, *, inclusive: bool) -> None:
        """Move the subscription: to a message, or to a time in milliseconds since 1970.

        Raises:
            BrokerRefused: the broker will not.
            OperationTimedOut: it could not be reached or did not answer.
        """
        timeout_s = self.session.settings.operation_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                backoff = self.session.backoff()
                while True:
                    await asyncio.sleep(backoff.next_delay())
                    if await self._try_seek(target, timeout_s):
                        break
        except TimeoutError as error:
            raise OperationTimedOut(f"{self._describe()}: seek not done within {timeout_s:g} s") from error
        self._acknowledger.forget()
        self.ended = False
        self.start.moved_to(target, inclusive=inclusive)
        self._forget_received()
        await self.attached()

    async def _try_seek(self, target: MessageId | int, timeout_s: float) -> bool:
        connection = await self.attached()
        request_id = self.session.ids.request()
        frame = (
            commands.seek_to_message(
                self._id, request_id, target.entry if target.batch_index >= 0 else target
            )
            if isinstance(target, MessageId)
            else commands.seek_to_time(self._id, request_id, target)
        )
        self._seeking = True
        try:
            await connection.request(request_id, frame, CommandSuccess, timeout_s)
        except ConnectionLost:
            return False
        except BrokerRefused as error:
            if not error.retriable:
                raise
            return False
        finally:
            self._seeking = False
            left_behind, self._left_behind = self._left_behind, []
            for delivery in left_behind:
                self._inbox.put(delivery)  # A seek that is done forgets them, and gives their permits back.
        return True

    async def last_message_id(self) -> CommandGetLastMessageIdResponse:
        """What the topic's last message is, and up to where the subscription is acknowledged.

        Raises:
            BrokerRefused, OperationTimedOut: it cannot be told.
        """
        while True:
            connection = await self.attached()
            try:
                return await self._ask_last_message_id(connection)
            except ConnectionLost:
                continue

    async def _ask_last_message_id(self, connection: Connection) -> CommandGetLastMessageIdResponse:
        request_id = self.session.ids.request()
        frame = commands.get_last_message_id(self._id, request_id)
        return await connection.request(
            request_id,
            frame,
            CommandGetLastMessageIdResponse,
            self.session.settings.operation_timeout_s,
        )

    async def unsubscribe(self, *, force: bool) -> None:
        """Delete the subscription and close.

        Raises:
            BrokerRefused: others are connected to it.
        """
        connection = await self.attached()
        request_id = self.session.ids.request()
        await connection.request(
            request_id,
            commands.unsubscribe(self._id, request_id, force=force),
            CommandSuccess,
            self.session.settings.operation_timeout_s,
        )
        await self.stop()
        connection.consumers.pop(self._id, None)

    async def close(self) -> None:
        """Tell what is acknowledged, and leave."""
        if self._failure is not None:
            return
        self._acknowledger.tell()
        connection = await self.stop()
        if connection is not None and connection.usable:
            request_id = self.session.ids.request()
            try:
                await connection.request(
                    request_id,
                    commands.close_consumer(self._id, request_id),
                    CommandSuccess,
                    self.session.settings.operation_timeout_s,
                )
            except ClientError as error:
                log.debug("consumer.close_unanswered", consumer=self._describe(), reason=str(error))
            connection.consumers.pop(self._id, None)

    # Attaching.

    async def _attach(self, connection: Connection) -> None:
        settings = self.settings
        request_id = self.session.ids.request()
        frame = commands.subscribe(
            self.topic,
            settings.subscription,
            _SUB_TYPES[settings.type],
            self._id,
            request_id,
            consumer_name=settings.consumer_name,
            priority_level=settings.priority,
            durable=settings.durable,
            start_message_id=None if settings.durable else self.start.from_message,
            metadata=settings.properties,
            subscription_properties=settings.subscription_properties,
            read_compacted=settings.read_compacted,
            force_topic_creation=settings.create_topic,
            schema=settings.schema,
            initial_position=(
                CommandSubscribe.Earliest if settings.initial == "earliest" else CommandSubscribe.Latest
            ),
            key_shared=(
                KeySharedMeta(keySharedMode=KeySharedMode.AUTO_SPLIT)
                if settings.type == "key_shared"
                else None
            ),
            consumer_epoch=self._acknowledger.epoch,
        )
        connection.consumers[self._id] = self
        try:
            await connection.request(
                request_id, frame, CommandSuccess, self.session.settings.operation_timeout_s
            )
        except BaseException as error:
            connection.consumers.pop(self._id, None)
            if not isinstance(error, BrokerRefused):  # It may yet come about: take it back.
                connection.write(commands.close_consumer(self._id, self.session.ids.request()))
            raise
        if self.start.needs_pin:
            answer = await self._ask_last_message_id(connection)
            self.start.pin(MessageId.from_data(answer.consumer_mark_delete_position))

    def _when_attached(self, connection: Connection) -> None:
        self._permits_to_give = 0
        self._acknowledger.tell()
        connection.write(commands.flow(self._id, self.settings.receiver_queue_size))

    def _when_detached(self) -> None:
        """The broker sends everything unacknowledged again, so what waits here would come twice."""
        self._forget_received()
        self._acknowledger.on_detached()
        self.active = None

    def _forget_received(self) -> None:
        forgotten = [*self._inbox.take_all_of(self), *self._left_behind]
        self._left_behind.clear()
        if self.settings.durable:  # A reader is not sent again what it was handed out, and keeps the rest.
            self._inbox.drop_opened_of(self)
        self._chunks.clear()
        if self.connection is not None:
            self._give_back(sum(_permits(d.payload, d.ack_set) for d in forgotten))

    def _when_given_up(self, error: ClientError) -> None:
        self._acknowledger.stop()
        self._inbox.take_all_of(self)
        self._left_behind.clear()
        self._on_change()

    def _describe(self) -> str:
        return f"consumer {self.settings.consumer_name} of {self.topic} ({self.settings.subscription})"


def _messages_in(metadata: MessageMetadata, ack_set: Sequence[int]) -> int:
    """How many permits the broker reckoned for an entry."""
    if not metadata.HasField("num_messages_in_batch"):
        return 1
    return ack_sets.count(ack_set) if ack_set else metadata.num_messages_in_batch


def _permits(payload: memoryview, ack_set: Sequence[int]) -> int:
    """The permits of an entry that is dropped unread."""
    try:
        return _messages_in(read_metadata(split_entry(payload).message), ack_set)
    except ProtocolError:
        return 1
