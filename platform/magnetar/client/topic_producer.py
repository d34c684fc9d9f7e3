"""The producer of one topic, or of one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from magnetar.client.connection import Connection
from magnetar.client.errors import (
    BrokerRefused,
    ClientError,
    InvalidUse,
    MessageTooLarge,
    ProducerQueueFull,
    SendTimedOut,
)
from magnetar.client.link import TopicLink
from magnetar.client.outbox import Outbox, ReceiptOutOfStep, Settled
from magnetar.client.outgoing import (
    OVERHEAD_BYTES,
    Entry,
    Envelope,
    Flush,
    OutgoingMessage,
    add_to_batch,
    batch_entry,
    encoded_entry,
    pack_single,
    single_entry,
)
from magnetar.client.producer import DUPLICATE, Producer
from magnetar.client.session import Session
from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.chunks import cut_into_chunks
from magnetar.protocol.frames import MAX_MESSAGE_BYTES
from magnetar.protocol.ids import MessageId, to_signed
from magnetar.protocol.pulsar_pb2 import (
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    CommandSuccess,
    CompressionType,
    MessageMetadata,
    ProducerAccessMode,
    Schema,
    ServerError,
)

log = get_logger("magnetar.client")

_CHUNK_METADATA_BYTES = 1024
"""Left of an entry for the metadata of a chunk, beyond what the message's own take."""


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """How a producer works; the meaning of each is told by `Client.create_producer`."""

    compression: CompressionType.ValueType
    batching: bool = True
    batching_max_delay_s: float = 0.001
    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    max_pending_messages: int = 0
    send_timeout_s: float = 30.0
    chunking: bool = False
    access_mode: ProducerAccessMode.ValueType = ProducerAccessMode.Shared
    initial_sequence_id: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None


class TopicProducer(TopicLink, Producer):
    """Batches, sends, matches receipts, and sends again after a reconnection."""

    def __init__(
        self, session: Session, topic: TopicName, name: str | None, settings: ProducerSettings
    ) -> None:
        super().__init__(session, str(topic))
        self.name = name or ""
        self._settings = settings
        self._id = session.ids.producer()
        self._epoch = -1
        self._name_is_ours = name is not None
        self._topic_epoch: int | None = None
        self._partition = topic.partition
        self._schema_version = b""
        self._max_message_bytes = MAX_MESSAGE_BYTES
        self._next_id: int | None = (
            None if settings.initial_sequence_id is None else settings.initial_sequence_id + 1
        )
        self._stored_before = -1  # What the broker said, at the last connect, that it has.
        self._last_stored = -1
        self._outbox = Outbox()
        # The batch being filled: its messages, their sequence ids, and one future for each.
        self._open: list[bytes | OutgoingMessage] = []
        self._open_ids: list[int] = []
        self._open_futures: list[asyncio.Future[MessageId]] = []
        self._open_bytes = 0
        self._open_plain = True
        self._seal_timer: asyncio.Handle | None = None
        self._seals_soon = False
        self._send_timer: asyncio.TimerHandle | None = None
        self._to_renew: Connection | None = None

    # What a program calls.

    @property
    def last_sequence_id(self) -> int:
        return self._last_stored

    @property
    def fills_a_batch(self) -> bool:
        """Whether a batch is being filled."""
        return bool(self._open)

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
    ) -> asyncio.Future[MessageId]:
        if payload is not None and type(payload) is not bytes:
            payload = _as_bytes(payload)
        size = len(payload) + OVERHEAD_BYTES if payload is not None else OVERHEAD_BYTES
        self._check_room(1, size)
        future: asyncio.Future[MessageId] = self._loop.create_future()
        if sequence_id is None:
            sequence_id = self._next_id or 0
        elif sequence_id < 0:
            raise InvalidUse(f"sequence id {sequence_id} is negative")
        self._next_id = sequence_id + 1
        if sequence_id <= self._stored_before:
            future.set_result(DUPLICATE)
            return future
        message: bytes | OutgoingMessage
        if (
            payload is not None
            and key is None
            and properties is None
            and event_time is None
            and ordering_key is None
            and deliver_at is None
        ):
            message = payload
        else:
            message = OutgoingMessage(payload, key, ordering_key, properties, event_time, None, deliver_at)
        if not self._settings.batching or deliver_at is not None or size > self._settings.batching_max_bytes:
            self.seal()
            self._send_single(message, sequence_id, size, future)
            return future
        ids = self._open_ids
        if ids and (sequence_id <= ids[-1] or self._open_bytes + size > self._settings.batching_max_bytes):
            self.seal()
            ids = self._open_ids
        self._open.append(message)
        ids.append(sequence_id)
        self._open_futures.append(future)
        self._open_bytes += size
        self.session.memory.used += size
        if message is not payload:
            self._open_plain = False
        if len(ids) >= self._settings.batching_max_messages:
            self.seal()
        elif self._seal_timer is None:
            self._seal_timer = self._loop.call_later(self._settings.batching_max_delay_s, self.seal)
        return future

    def send_batch_nowait(
        self, messages: Sequence[OutgoingMessage | bytes]
    ) -> asyncio.Future[list[MessageId]]:
        future: asyncio.Future[list[MessageId]] = self._loop.create_future()
        if not messages:
            future.set_result([])
            return future
        plain = all(type(message) is bytes for message in messages)
        size = sum(map(len if plain else _size_of, messages)) + len(messages) * OVERHEAD_BYTES  # type: ignore[arg-type]
        self._check_room(len(messages), size)
        self.seal()
        ids = self._ids_of(messages, plain=plain)
        self._next_id = ids[-1] + 1
        duplicates = 0
        while duplicates < len(ids) and ids[duplicates] <= self._stored_before:
            duplicates += 1
        if duplicates:
            messages, ids = messages[duplicates:], ids[duplicates:]
            if not messages:
                future.set_result([DUPLICATE] * duplicates)
                return future
        entry = self._pack_batch(messages, ids, plain=plain)
        if entry.size > self._max_message_bytes:
            raise MessageTooLarge(entry.size, self._max_message_bytes)
        entry.whole = future
        entry.duplicates = duplicates
        entry.charged = size
        self.session.memory.used += size
        self._push(entry)
        return future

    def send_encoded_batch_nowait(
        self,
        payload: bytes,
        count: int,
        *,
        sequence_id: int | None = None,
        highest_sequence_id: int | None = None,
    ) -> asyncio.Future[MessageId]:
        size = len(payload) + OVERHEAD_BYTES
        self._check_room(count, size)
        self.seal()
        first = (self._next_id or 0) if sequence_id is None else sequence_id
        last = first + count - 1 if highest_sequence_id is None else highest_sequence_id
        self._next_id = last + 1
        future: asyncio.Future[MessageId] = self._loop.create_future()
        if last <= self._stored_before:
            future.set_result(DUPLICATE)
            return future
        entry = encoded_entry(self._envelope(), payload, count, first, last, self.session.clock.time_ms())
        if entry.size > self._max_message_bytes:
            raise MessageTooLarge(entry.size, self._max_message_bytes)
        entry.stored = future
        entry.charged = size
        self.session.memory.used += size
        self._push(entry)
        return future

    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
    ) -> MessageId:
        await self.room()
        future = self.send_nowait(
            payload,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
        )
        self.seal_soon()
        return await future

    async def room(self) -> None:
        while self._failure is None and self._is_full(1, OVERHEAD_BYTES):
            self.seal()
            await self.session.memory.released()
        self.check_usable()

    async def flush(self) -> None:
        self.seal()
        if self._outbox:
            flush = Flush(len(self._outbox), self._loop.create_future())
            for entry in self._outbox:
                entry.flushes.append(flush)
            await flush.future

    async def close(self) -> None:
        if self._failure is not None:
            return
        try:
            await self.flush()
        except ClientError as error:
            log.warning("producer.closed_with_failed_messages", producer=self._describe(), reason=str(error))
        connection = await self.stop()
        if connection is not None and connection.usable:
            request_id = self.session.ids.request()
            frame = commands.close_producer(self._id, request_id)
            try:
                await connection.request(
                    request_id, frame, CommandSuccess, self.session.settings.operation_timeout_s
                )
            except ClientError as error:
                log.debug("producer.close_unanswered", producer=self._describe(), reason=str(error))
            connection.producers.pop(self._id, None)

    # Filling and sending.

    def seal_soon(self) -> None:
        """Seal the batch being filled at the end of this turn of the loop."""
        if self._open and not self._seals_soon:
            self._seals_soon = True
            if self._seal_timer is not None:
                self._seal_timer.cancel()
            self._seal_timer = self._loop.call_soon(self.seal)

    def seal(self) -> None:
        """Make an entry of the batch being filled, and send it."""
        if self._seal_timer is not None:
            self._seal_timer.cancel()
            self._seal_timer = None
            self._seals_soon = False
        if not self._open:
            return
        messages, ids, futures = self._open, self._open_ids, self._open_futures
        size, plain = self._open_bytes, self._open_plain
        self._open, self._open_ids, self._open_futures = [], [], []
        self._open_bytes, self._open_plain = 0, True
        if len(messages) == 1:
            self.session.memory.used -= size
            self._send_single(messages[0], ids[0], size, futures[0])
            return
        entry = self._pack_batch(messages, ids, plain=plain)
        entry.futures = futures
        entry.charged = size
        if entry.size > self._max_message_bytes:
            self._complete(entry, MessageTooLarge(entry.size, self._max_message_bytes))
        else:
            self._push(entry)

    def _pack_batch(
        self, messages: Sequence[bytes | OutgoingMessage], ids: Sequence[int], *, plain: bool
    ) -> Entry:
        batch = BatchBuilder()
        first = messages[0]
        if plain and ids[-1] - ids[0] + 1 == len(ids):
            batch.add_run(messages, ids[0])  # type: ignore[arg-type]  # `plain`: nothing but bytes
        else:
            for message, sequence_id in zip(messages, ids, strict=True):
                if isinstance(message, bytes):
                    batch.add(message, sequence_id)
                else:
                    add_to_batch(batch, message, sequence_id)
        return batch_entry(
            self._envelope(),
            batch,
            first if isinstance(first, OutgoingMessage) else None,
            self.session.clock.time_ms(),
        )

    def _send_single(
        self,
        message: bytes | OutgoingMessage,
        sequence_id: int,
        size: int,
        future: asyncio.Future[MessageId],
    ) -> None:
        if isinstance(message, bytes):
            message = OutgoingMessage(message)
        metadata, payload = pack_single(self._envelope(), message, sequence_id, self.session.clock.time_ms())
        entry = single_entry(metadata, payload)
        if entry.size > self._max_message_bytes:
            self._send_chunks(metadata, payload, entry.size, size, future)
            return
        entry.futures = (future,)
        entry.charged = size
        self.session.memory.used += size
        self._push(entry)

    def _send_chunks(
        self,
        metadata: MessageMetadata,
        payload: bytes,
        entry_bytes: int,
        size: int,
        future: asyncio.Future[MessageId],
    ) -> None:
        room = self._max_message_bytes - metadata.ByteSize() - _CHUNK_METADATA_BYTES
        if not self._settings.chunking or room <= 0:
            future.set_exception(MessageTooLarge(entry_bytes, self._max_message_bytes))
            return
        entries = [
            single_entry(chunk, part, is_chunk=True)
            for chunk, part in cut_into_chunks(metadata, payload, room)
        ]
        entries[-1].futures = (future,)
        entries[-1].charged = size
        self.session.memory.used += size
        for entry in entries:
            self._push(entry)

    def _push(self, entry: Entry) -> None:
        timeout_s = self._settings.send_timeout_s
        if timeout_s > 0:
            entry.deadline = self.session.clock.monotonic() + timeout_s
            if self._send_timer is None:
                self._send_timer = self._loop.call_later(timeout_s, self._check_deadlines)
        self._outbox.push(entry)
        if self.connection is not None:
            self.connection.write_parts(entry.frame(self._id))

    def _check_deadlines(self) -> None:
        """Fail everything once the oldest has waited too long: the rest must not overtake it."""
        self._send_timer = None
        oldest = self._outbox.oldest
        if oldest is None:
            return
        left = oldest.deadline - self.session.clock.monotonic()
        if left > 0:
            self._send_timer = self._loop.call_later(left, self._check_deadlines)
            return
        error = SendTimedOut(
            f"{self._describe()}: no receipt within {self._settings.send_timeout_s:g} s; it may be stored or not"
        )
        for entry in self._outbox.clear():
            self._complete(entry, error)

    # What the connection tells.

    def on_receipt(self, receipt: CommandSendReceipt) -> None:
        """A message is stored."""
        try:
            entry = self._outbox.take(receipt.sequence_id)
        except ReceiptOutOfStep as error:
            if self.connection is not None:
                self.connection.abort(f"{self._describe()}: {error}")
            return
        if entry is None:
            return  # It was given up meanwhile.
        if entry.highest_id > self._last_stored:
            self._last_stored = entry.highest_id
        place = receipt.message_id
        self._complete(entry, None, to_signed(place.ledgerId), to_signed(place.entryId))

    def on_send_error(self, error: CommandSendError) -> None:
        """A message is not stored."""
        refusal = BrokerRefused(error.error, error.message)
        if error.error in (ServerError.ChecksumError, ServerError.NotAllowedError):
            entry = self._outbox.take_failed(error.sequence_id)
            if entry is not None:
                self._complete(entry, refusal)
        elif error.error in (ServerError.TopicTerminatedError, ServerError.ProducerFenced):
            self.give_up(refusal)
        elif self.connection is not None:
            log.warning("producer.send_failed", producer=self._describe(), reason=str(refusal))
            self._to_renew = self.connection
            self.reattach()

    async def _attach(self, connection: Connection) -> None:
        ids = self.session.ids
        timeout_s = self.session.settings.operation_timeout_s
        if self._to_renew is connection and connection.usable:  # What is on its way must come to rest first.
            request_id = ids.request()
            frame = commands.close_producer(self._id, request_id)
            await connection.request(request_id, frame, CommandSuccess, timeout_s)
        self._to_renew = None
        self._epoch += 1
        request_id = ids.request()
        frame = commands.producer(
            self.topic,
            self._id,
            request_id,
            producer_name=self.name or None,
            user_provided_name=self._name_is_ours,
            epoch=self._epoch,
            metadata=self._settings.properties,
            schema=self._settings.schema,
            access_mode=self._settings.access_mode,
            topic_epoch=self._topic_epoch,
        )
        connection.producers[self._id] = self
        try:
            success = await connection.request(request_id, frame, CommandProducerSuccess, timeout_s)
        except BaseException as error:
            connection.producers.pop(self._id, None)
            if not isinstance(error, BrokerRefused):  # It may yet come about: take it back.
                connection.write(commands.close_producer(self._id, ids.request()))
            raise
        self.name = success.producer_name
        self._schema_version = success.schema_version
        self._max_message_bytes = connection.max_message_bytes
        if success.HasField("topic_epoch"):
            self._topic_epoch = success.topic_epoch
        self._stored_before = success.last_sequence_id
        self._last_stored = max(self._last_stored, success.last_sequence_id)
        if self._next_id is None:
            self._next_id = success.last_sequence_id + 1

    def _when_attached(self, connection: Connection) -> None:
        for settled in self._outbox.settle(self._stored_before):
            self._tell_duplicates(settled)
        for entry in self._outbox:
            connection.write_parts(entry.frame(self._id))

    def _when_given_up(self, error: ClientError) -> None:
        self._fail_open_batch(error)
        for timer in (self._seal_timer, self._send_timer):
            if timer is not None:
                timer.cancel()
        for entry in self._outbox.clear():
            self._complete(entry, error)
        self.session.memory.release(0)  # Whoever waits for room shall see that there will be none.

    def _describe(self) -> str:
        return f"producer {self.name or '(unnamed)'} of {self.topic}"

    # Telling.

    def _complete(
        self, entry: Entry, error: Exception | None, ledger_id: int = -1, entry_id: int = -1
    ) -> None:
        """Tell everybody who waits for an entry, and give back its memory."""
        count = entry.num_messages
        if entry.stored is not None:
            if not entry.stored.done():
                if error is not None:
                    entry.stored.set_exception(error)
                else:
                    entry.stored.set_result(
                        DUPLICATE if ledger_id < 0 else MessageId(ledger_id, entry_id, self._partition)
                    )
        elif entry.whole is not None:
            if not entry.whole.done():
                if error is not None:
                    entry.whole.set_exception(error)
                else:
                    entry.whole.set_result(
                        [DUPLICATE] * entry.duplicates + self._ids_in(entry, ledger_id, entry_id)
                    )
        elif error is not None:
            for future in entry.futures:
                if not future.done():
                    future.set_exception(error)
        elif count == 1 or ledger_id < 0:
            message_id = self._ids_in(entry, ledger_id, entry_id)[0]
            for future in entry.futures:
                if not future.done():
                    future.set_result(message_id)
        else:
            partition = self._partition
            for index, future in enumerate(entry.futures):
                if not future.done():
                    future.set_result(MessageId(ledger_id, entry_id, partition, index, count))
        for flush in entry.flushes:
            flush.entry_done(error)
        self.session.memory.release(entry.charged)

    def _ids_in(self, entry: Entry, ledger_id: int, entry_id: int) -> list[MessageId]:
        """The ids of an entry's messages, once it is stored at a place; -1 means it was a duplicate."""
        count = entry.num_messages
        if ledger_id < 0:
            return [DUPLICATE] * count
        if not entry.batched:
            return [MessageId(ledger_id, entry_id, self._partition)]
        return [MessageId(ledger_id, entry_id, self._partition, index, count) for index in range(count)]

    def _tell_duplicates(self, settled: Settled) -> None:
        """The first messages of an entry turned out to be stored; unless finished, it goes on."""
        entry = settled.entry
        if settled.finished:
            self._complete(entry, None)
            return
        entry.duplicates += settled.duplicates
        for future in entry.futures[: settled.duplicates]:
            if not future.done():
                future.set_result(DUPLICATE)
        entry.futures = entry.futures[settled.duplicates :]

    def _fail_open_batch(self, error: ClientError) -> None:
        for future in self._open_futures:
            if not future.done():
                future.set_exception(error)
        self.session.memory.used -= self._open_bytes
        self._open, self._open_ids, self._open_futures, self._open_bytes = [], [], [], 0

    # Limits and ids.

    def _check_room(self, messages: int, size: int) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_full(messages, size):
            raise ProducerQueueFull(
                f"{self._describe()}: {self._outbox.messages + len(self._open)} messages and "
                f"{self.session.memory.used} bytes are pending; await room() or send()"
            )

    def _is_full(self, messages: int, size: int) -> bool:
        most = self._settings.max_pending_messages
        pending = self._outbox.messages + len(self._open)
        if most and pending and pending + messages > most:
            return True
        memory = self.session.memory
        return memory.used > 0 and memory.used + size > memory.limit

    def _ids_of(self, messages: Sequence[OutgoingMessage | bytes], *, plain: bool) -> Sequence[int]:
        """The sequence id of each message, chosen where it has none."""
        following = self._next_id or 0
        if plain:
            return range(following, following + len(messages))
        ids: list[int] = []
        for message in messages:
            if isinstance(message, OutgoingMessage):
                if message.deliver_at is not None:
                    raise InvalidUse("a message with a delivery time cannot be part of a batch")
                if message.sequence_id is not None:
                    if ids and message.sequence_id < following:
                        raise InvalidUse("sequence ids must increase within a batch")
                    following = message.sequence_id
            ids.append(following)
            following += 1
        return ids

    def _envelope(self) -> Envelope:
        return Envelope(self.name, self._settings.compression, self._schema_version, self._partition)


def _size_of(message: OutgoingMessage | bytes) -> int:
    payload = message if isinstance(message, bytes) else message.payload
    return len(payload or b"")


def _as_bytes(payload: object) -> bytes:
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise InvalidUse(f"a payload is bytes, not {type(payload).__name__}: encode it first")
