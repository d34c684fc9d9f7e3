"""The producer of one topic, or of one partition."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence

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
from magnetar.client.open_batch import OpenBatch, size_of
from magnetar.client.outbox import Outbox, ReceiptOutOfStep, cut_entry
from magnetar.client.outgoing import (
    OVERHEAD_BYTES,
    Entry,
    Envelope,
    Flush,
    OutgoingMessage,
    batch_entry,
    encoded_entry,
    pack_single,
    single_entry,
)
from magnetar.client.producer import Producer
from magnetar.client.producer_settings import ProducerSettings
from magnetar.client.recipients import DUPLICATE, EachMessage, EntryAlone, WholeBatch
from magnetar.client.session import Session
from magnetar.client.transactions import Transaction
from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.chunks import cut_into_chunks
from magnetar.protocol.frames import MAX_MESSAGE_BYTES
from magnetar.protocol.ids import MessageId, to_signed
from magnetar.protocol.pulsar_pb2 import (
    CommandProducerSuccess,
    CommandSendError,
    CommandSendReceipt,
    CommandSuccess,
    MessageMetadata,
    ServerError,
)

log = get_logger("magnetar.client")

_CHUNK_METADATA_BYTES = 1024
"""Left of an entry for the metadata of a chunk, beyond what the message's own take."""


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
        self._next_id = -1 if settings.initial_sequence_id is None else settings.initial_sequence_id + 1
        self._stored_before = -1  # What the broker said, at the last connect, that it has.
        self._last_stored = -1
        self._outbox = Outbox()
        self._memory = session.memory
        self._new_future = self._loop.create_future
        self._filling: OpenBatch | None = None
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
        return self._filling is not None

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
        transaction: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        filling = self._filling
        if (
            filling is not None
            and filling.transaction is transaction
            and type(payload) is bytes
            and (sequence_id is None or sequence_id == self._next_id)
            and deliver_at is None
            and filling.ids is None
            and len(payload) + OVERHEAD_BYTES <= filling.room
        ):
            # The way of nearly every message, written out: it joins a batch. Whatever had to be checked
            # was checked when the batch was opened.
            future = self._new_future()
            self._next_id += 1
            filling.room -= len(payload) + OVERHEAD_BYTES
            messages = filling.messages
            if key is None and properties is None and event_time is None and ordering_key is None:
                messages.append(payload)
            else:
                messages.append(OutgoingMessage(payload, key, ordering_key, properties, event_time))
            filling.futures.append(future)
            if len(messages) >= filling.most:
                self.seal()
            return future if transaction is None else transaction.track(future)
        message = OutgoingMessage(payload, key, ordering_key, properties, event_time, None, deliver_at)
        if transaction is None:
            return self._send(message, sequence_id)
        transaction.check_open()
        if transaction.writes_to(self.topic):
            return transaction.track(self._send(message, sequence_id, transaction))
        return transaction.send_later(self.topic, lambda: self._send_soon(message, sequence_id, transaction))

    def _send_soon(
        self, message: OutgoingMessage, sequence_id: int | None, transaction: Transaction
    ) -> asyncio.Future[MessageId]:
        """Send what has waited for its transaction's coordinator."""
        sent = self._send(message, sequence_id, transaction)
        self.seal_soon()
        return sent

    def _send(
        self,
        message: bytes | OutgoingMessage,
        sequence_id: int | None,
        transaction: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Queue a message that is not plain, or opens a batch."""
        size = size_of(message) + OVERHEAD_BYTES
        self._check_room(1, size)
        if sequence_id is None:
            sequence_id = self._next_id
        elif sequence_id < 0:
            raise InvalidUse(f"sequence id {sequence_id} is negative")
        future = self._new_future()
        self._next_id = sequence_id + 1
        settings = self._settings
        if sequence_id <= self._stored_before:
            future.set_result(DUPLICATE)
        elif (
            not settings.batching
            or size > settings.batching_max_bytes
            or (isinstance(message, OutgoingMessage) and message.deliver_at is not None)
        ):
            self.seal()
            try:
                self._send_single(message, sequence_id, size, future, transaction)
            except ValueError as error:
                raise InvalidUse(f"the message cannot be written: {error}") from error
        else:
            if self._filling is not None and (
                self._filling.transaction is not transaction or not self._filling.takes(sequence_id, size)
            ):
                self.seal()
            filling = self._filling or self._open_batch(sequence_id, transaction)
            filling.add(message, sequence_id, size, future)
            if len(filling.messages) >= filling.most:
                self.seal()
        return future

    def _open_batch(self, first_id: int, transaction: Transaction | None) -> OpenBatch:
        settings = self._settings
        most = settings.batching_max_messages
        if settings.max_pending_messages:
            most = min(most, max(1, settings.max_pending_messages - self._outbox.messages))
        self._filling = OpenBatch(first_id, most, settings.batching_max_bytes, transaction)
        self._seal_timer = self._loop.call_later(settings.batching_max_delay_s, self.seal)
        return self._filling

    def send_batch_nowait(
        self, messages: Sequence[OutgoingMessage | bytes], *, transaction: Transaction | None = None
    ) -> asyncio.Future[list[MessageId]]:
        if transaction is not None:
            transaction.check_open()
            if not transaction.writes_to(self.topic):
                raise InvalidUse(
                    f"await transaction.join_topic({self.topic!r}) before batches are sent in it"
                )
        future: asyncio.Future[list[MessageId]] = self._loop.create_future()
        if not messages:
            future.set_result([])
            return future
        plain = set(map(type, messages)) == {bytes}
        size = sum(map(len if plain else size_of, messages)) + len(messages) * OVERHEAD_BYTES  # type: ignore[arg-type]
        self._check_room(len(messages), size)
        self.seal()
        ids = range(self._next_id, self._next_id + len(messages)) if plain else self._ids_of(messages)
        self._next_id = ids[-1] + 1
        duplicates = bisect_right(ids, self._stored_before)
        if duplicates == len(ids):
            future.set_result([DUPLICATE] * duplicates)
            return future
        if duplicates:
            messages, ids = messages[duplicates:], ids[duplicates:]
        try:
            entry = batch_entry(self._envelope(transaction), messages, ids, self.session.clock.time_ms())
        except ValueError as error:  # Text that is no Unicode, such as lone surrogates.
            raise InvalidUse(f"a message of the batch cannot be written: {error}") from error
        if entry.size > self._max_message_bytes:
            raise MessageTooLarge(entry.size, self._max_message_bytes)
        entry.recipients = WholeBatch(future, duplicates)
        self._push(entry, size, transaction)
        return future if transaction is None else transaction.track_batch(future)

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
        first = self._next_id if sequence_id is None else sequence_id
        last = first + count - 1 if highest_sequence_id is None else highest_sequence_id
        self._next_id = last + 1
        future = self._new_future()
        if last <= self._stored_before:
            future.set_result(DUPLICATE)
            return future
        entry = encoded_entry(self._envelope(), payload, count, first, last, self.session.clock.time_ms())
        if first <= self._stored_before:
            cut_entry(entry, self._stored_before)
        if entry.size > self._max_message_bytes:
            raise MessageTooLarge(entry.size, self._max_message_bytes)
        entry.recipients = EntryAlone(future)
        self._push(entry, size)
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
        transaction: Transaction | None = None,
    ) -> MessageId:
        await self.room(len(payload or b""))
        if transaction is not None:
            await transaction.join_topic(self.topic)
        future = self.send_nowait(
            payload,
            key=key,
            ordering_key=ordering_key,
            properties=properties,
            event_time=event_time,
            sequence_id=sequence_id,
            deliver_at=deliver_at,
            transaction=transaction,
        )
        self.seal_soon()
        return await future

    async def room(self, size: int = 0) -> None:
        while self._failure is None and self._is_full(1, size + OVERHEAD_BYTES):
            self.seal()
            await self._memory.released()
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
            async with asyncio.timeout(self.session.settings.operation_timeout_s):
                await self.flush()
        except (ClientError, TimeoutError) as error:
            log.warning("producer.closed_with_failed_messages", producer=self._describe(), reason=repr(error))
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
        if self._filling is not None and not self._seals_soon:
            self._seals_soon = True
            if self._seal_timer is not None:
                self._seal_timer.cancel()
            self._seal_timer = self._loop.call_soon(self.seal)

    def seal(self) -> None:
        """Make an entry of the batch being filled, and send it."""
        batch = self._take_filling()
        if batch is None:
            return
        ids = batch.sequence_ids
        try:
            if len(ids) == 1:
                self._send_single(
                    batch.messages[0], ids[0], batch.charge, batch.futures[0], batch.transaction
                )
                return
            entry = batch_entry(
                self._envelope(batch.transaction), batch.messages, ids, self.session.clock.time_ms()
            )
        except ValueError as error:  # Text that is no Unicode, such as lone surrogates.
            EachMessage(batch.futures).failed(
                InvalidUse(f"a message of the batch cannot be written: {error}")
            )
            return
        entry.recipients = EachMessage(batch.futures)
        if entry.size > self._max_message_bytes:
            entry.failed(MessageTooLarge(entry.size, self._max_message_bytes))
        else:
            self._push(entry, batch.charge, batch.transaction)

    def _take_filling(self) -> OpenBatch | None:
        if self._seal_timer is not None:
            self._seal_timer.cancel()
            self._seal_timer = None
            self._seals_soon = False
        batch, self._filling = self._filling, None
        return batch

    def _send_single(
        self,
        message: bytes | OutgoingMessage,
        sequence_id: int,
        size: int,
        future: asyncio.Future[MessageId],
        transaction: Transaction | None = None,
    ) -> None:
        metadata, payload = pack_single(
            self._envelope(transaction), message, sequence_id, self.session.clock.time_ms()
        )
        entry = single_entry(metadata, payload)
        if entry.size > self._max_message_bytes:
            self._send_chunks(metadata, payload, entry.size, size, future, transaction)
            return
        entry.recipients = EachMessage((future,))
        self._push(entry, size, transaction)

    def _send_chunks(
        self,
        metadata: MessageMetadata,
        payload: bytes,
        entry_bytes: int,
        size: int,
        future: asyncio.Future[MessageId],
        transaction: Transaction | None,
    ) -> None:
        room = self._max_message_bytes - metadata.ByteSize() - _CHUNK_METADATA_BYTES
        if not self._settings.chunking or room <= 0:
            future.set_exception(MessageTooLarge(entry_bytes, self._max_message_bytes))
            return
        entries = [
            single_entry(chunk, part, is_chunk=True)
            for chunk, part in cut_into_chunks(metadata, payload, room)
        ]
        entries[-1].recipients = EachMessage((future,))
        for entry in entries:
            self._push(entry, size if entry is entries[-1] else 0, transaction)

    def _push(self, entry: Entry, charge: int, transaction: Transaction | None = None) -> None:
        """Send an entry, now or once there is a connection, and keep it until its receipt comes."""
        if transaction is not None:
            entry.txn = transaction.most, transaction.least
        entry.charged = charge
        self._memory.used += charge
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
            self._finish(entry, error)

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
        self._finish(entry, None, to_signed(place.ledgerId), to_signed(place.entryId))

    def on_send_error(self, error: CommandSendError) -> None:
        """A message is not stored."""
        refusal = BrokerRefused(error.error, error.message)
        if error.error in (ServerError.ChecksumError, ServerError.NotAllowedError):
            entry = self._outbox.take_failed(error.sequence_id)
            if entry is not None:
                self._finish(entry, refusal)
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
        if self._next_id < 0:
            self._next_id = success.last_sequence_id + 1

    def _when_attached(self, connection: Connection) -> None:
        for settled in self._outbox.settle(self._stored_before):
            if settled.finished:
                self._finish(settled.entry, None)
            else:
                settled.entry.recipients.duplicates(settled.duplicates)
        for entry in self._outbox:
            connection.write_parts(entry.frame(self._id))

    def _when_given_up(self, error: ClientError) -> None:
        batch = self._take_filling()
        if batch is not None:
            EachMessage(batch.futures).failed(error)
        if self._send_timer is not None:
            self._send_timer.cancel()
        for entry in self._outbox.clear():
            self._finish(entry, error)
        self._memory.release(0)  # Whoever waits for room shall see that there will be none.

    def _describe(self) -> str:
        return f"producer {self.name or '(unnamed)'} of {self.topic}"

    def _finish(self, entry: Entry, error: Exception | None, ledger_id: int = -1, entry_id: int = -1) -> None:
        """Tell everybody who waits for an entry, and give back its memory."""
        if error is None:
            entry.stored(ledger_id, entry_id, self._partition)
        else:
            entry.failed(error)
        self._memory.release(entry.charged)

    # Limits and ids.

    def _check_room(self, messages: int, size: int) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_full(messages, size):
            raise ProducerQueueFull(
                f"{self._describe()}: {self._pending} messages and "
                f"{self._memory.used} bytes are pending; await room() or send()"
            )

    def _is_full(self, messages: int, size: int) -> bool:
        most = self._settings.max_pending_messages
        pending = self._pending
        if most and pending and pending + messages > most:
            return True
        memory = self._memory
        return memory.used > 0 and memory.used + size > memory.limit

    @property
    def _pending(self) -> int:
        return self._outbox.messages + (len(self._filling.messages) if self._filling is not None else 0)

    def _ids_of(self, messages: Sequence[OutgoingMessage | bytes]) -> Sequence[int]:
        """The sequence id of each message, chosen where it has none."""
        following = self._next_id
        ids: list[int] = []
        for message in messages:
            if isinstance(message, OutgoingMessage):
                if message.deliver_at is not None:
                    raise InvalidUse("a message with a delivery time cannot be part of a batch")
                if message.sequence_id is not None:
                    if message.sequence_id < (following if ids else 0):
                        raise InvalidUse("sequence ids must increase within a batch")
                    following = message.sequence_id
            ids.append(following)
            following += 1
        return ids

    def _envelope(self, transaction: Transaction | None = None) -> Envelope:
        txn = None if transaction is None else (transaction.most, transaction.least)
        return Envelope(self.name, self._settings.compression, self._schema_version, txn)
