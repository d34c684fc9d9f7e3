"""Messages on their way out, and the entries they are packed into."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from magnetar.client.errors import InvalidUse
from magnetar.client.recipients import DUPLICATE, EntryAlone, Nobody, Recipients
from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.compression import compress
from magnetar.protocol.hot_commands import send
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import build_message_parts
from magnetar.protocol.pulsar_pb2 import NONE, CompressionType, MessageMetadata

OVERHEAD_BYTES = 64
"""What a pending message is reckoned to take beyond its payload."""

_NOBODY = Nobody()


@dataclass(slots=True)
class OutgoingMessage:
    """A message to be sent. A payload of None is a null value: a tombstone."""

    payload: bytes | None
    key: str | None = None
    ordering_key: bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time: int | None = None
    """Milliseconds since 1970, by the application."""
    sequence_id: int | None = None
    """The producer's next one if None. Increases, with gaps if need be, under one producer name."""
    deliver_at: int | None = None
    """Milliseconds since 1970: not before. Such a message is an entry of its own."""

    def __post_init__(self) -> None:
        """Refuse what could not be written: later there would be nobody to tell."""
        if self.payload is not None and type(self.payload) is not bytes:
            self.payload = as_payload(self.payload)
        if self.key is not None and not isinstance(self.key, str):
            raise InvalidUse(f"a key is text, not {type(self.key).__name__}")
        if self.properties and not all(
            isinstance(name, str) and isinstance(value, str) for name, value in self.properties.items()
        ):
            raise InvalidUse("properties are text, names and values")
        if self.event_time is not None and not 0 <= self.event_time < 2**63:
            raise InvalidUse(f"an event time is milliseconds since 1970, not {self.event_time!r}")


def as_payload(payload: object) -> bytes:
    """A payload that is not `bytes`, if it can be: a copy of a buffer.

    Raises:
        InvalidUse: it holds no bytes.
    """
    if isinstance(payload, bytearray | memoryview):
        return bytes(payload)
    raise InvalidUse(f"a payload is bytes, not {type(payload).__name__}: encode it first")


class Flush:
    """A wait for every entry that was pending at one moment."""

    __slots__ = ("_error", "_remaining", "future")

    def __init__(self, remaining: int, future: asyncio.Future[None]) -> None:
        self._remaining = remaining
        self._error: Exception | None = None
        self.future = future

    def entry_done(self, error: Exception | None) -> None:
        """One of the entries is stored, or failed."""
        self._remaining -= 1
        self._error = self._error or error
        if self._remaining == 0 and not self.future.done():
            if self._error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(self._error)


class Entry:
    """One SEND frame without its receipt yet, and whom to tell."""

    __slots__ = (
        "batched",
        "charged",
        "deadline",
        "flushes",
        "highest_id",
        "is_chunk",
        "message",
        "num_messages",
        "recipients",
        "sequence_id",
        "txn",
    )

    def __init__(
        self,
        message: tuple[Buffer, Buffer],
        sequence_id: int,
        highest_id: int,
        num_messages: int,
        *,
        batched: bool,
        is_chunk: bool = False,
    ) -> None:
        self.message = message
        """The bytes from 0x0e01 on, in two parts."""
        self.sequence_id = sequence_id
        self.highest_id = highest_id
        self.num_messages = num_messages
        self.batched = batched
        """Whether it is a batch, though it be of one message."""
        self.is_chunk = is_chunk
        self.charged = 0
        """What it takes of the memory budget."""
        self.deadline = 0.0
        self.recipients: Recipients = _NOBODY
        self.flushes: list[Flush] = []
        self.txn: tuple[int, int] | None = None
        """The transaction it belongs to."""

    @property
    def size(self) -> int:
        """Bytes of the message, metadata included."""
        return len(self.message[0]) + len(self.message[1])

    def frame(self, producer_id: int) -> list[Buffer]:
        """The SEND frame, in parts."""
        head, payload = self.message
        start = send(
            producer_id,
            self.sequence_id,
            len(head) + len(payload),
            num_messages=self.num_messages,
            highest_sequence_id=self.highest_id if self.batched else None,
            is_chunk=self.is_chunk,
            txn=self.txn,
        )
        return [start, head, payload]

    def stored(self, ledger_id: int, entry_id: int, partition: int) -> None:
        """Tell everybody that it is stored; a ledger of -1 says that it was before."""
        count = self.num_messages
        if isinstance(self.recipients, EntryAlone):  # Wants no id for each of a thousand messages.
            place = DUPLICATE if ledger_id < 0 else MessageId(ledger_id, entry_id, partition)
            self.recipients.stored((), place)
        elif ledger_id < 0:
            self.recipients.stored([DUPLICATE] * count, DUPLICATE)
        elif self.batched:
            ids = MessageId.of_batch(ledger_id, entry_id, partition, count)
            self.recipients.stored(ids, MessageId(ledger_id, entry_id, partition))
        else:
            message_id = MessageId(ledger_id, entry_id, partition)
            self.recipients.stored((message_id,), message_id)
        for flush in self.flushes:
            flush.entry_done(None)

    def failed(self, error: Exception) -> None:
        """Tell everybody that it is not stored, as far as is known."""
        self.recipients.failed(error)
        for flush in self.flushes:
            flush.entry_done(error)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every entry of a producer's present attachment has in common."""

    producer_name: str
    compression: CompressionType.ValueType
    schema_version: bytes
    txn: tuple[int, int] | None = None
    """The transaction its messages belong to."""

    def metadata(self, sequence_id: int, publish_time: int) -> MessageMetadata:
        """The metadata of an entry, to be completed."""
        metadata = MessageMetadata(
            producer_name=self.producer_name, sequence_id=sequence_id, publish_time=publish_time
        )
        if self.compression != NONE:
            metadata.compression = self.compression
        if self.schema_version:
            metadata.schema_version = self.schema_version
        if self.txn is not None:
            metadata.txnid_most_bits, metadata.txnid_least_bits = self.txn
        return metadata

    def compressed(self, metadata: MessageMetadata, payload: bytes) -> bytes:
        """The payload as it will travel; its size before is noted."""
        metadata.uncompressed_size = len(payload)
        return payload if self.compression == NONE else compress(self.compression, payload)


def pack_single(
    envelope: Envelope, message: OutgoingMessage | bytes, sequence_id: int, publish_time: int
) -> tuple[MessageMetadata, bytes]:
    """A message that is an entry of its own: its metadata, and its payload as it will travel."""
    metadata = envelope.metadata(sequence_id, publish_time)
    if isinstance(message, bytes):
        return metadata, envelope.compressed(metadata, message)
    if message.key is not None:
        metadata.partition_key = message.key
    if message.ordering_key is not None:
        metadata.ordering_key = message.ordering_key
    if message.properties:
        add = metadata.properties.add
        for name, value in message.properties.items():
            add(key=name, value=value)
    if message.event_time is not None:
        metadata.event_time = message.event_time
    if message.deliver_at is not None:
        metadata.deliver_at_time = message.deliver_at
    if message.payload is None:
        metadata.null_value = True
    return metadata, envelope.compressed(metadata, message.payload or b"")


def single_entry(metadata: MessageMetadata, payload: Buffer, *, is_chunk: bool = False) -> Entry:
    """The entry of a packed message, or of one chunk of it."""
    parts = build_message_parts(metadata.SerializeToString(), payload)
    return Entry(parts, metadata.sequence_id, metadata.sequence_id, 1, batched=False, is_chunk=is_chunk)


def batch_entry(
    envelope: Envelope,
    messages: Sequence[OutgoingMessage | bytes],
    sequence_ids: Sequence[int],
    publish_time: int,
) -> Entry:
    """The entry of a batch. The key of its first message, if any, stands for all of it."""
    batch = BatchBuilder()
    payloads = plain_payloads(messages)
    if payloads is not None:
        batch.add_many(payloads, sequence_ids)
    else:
        for message, sequence_id in zip(messages, sequence_ids, strict=True):
            if isinstance(message, bytes):
                batch.add(message, sequence_id)
            else:
                batch.add_full(
                    message.payload,
                    sequence_id,
                    key=message.key,
                    ordering_key=message.ordering_key,
                    properties=message.properties,
                    event_time=message.event_time,
                )
    first = messages[0]
    return _batch_entry(
        envelope,
        batch.payload(),
        len(messages),
        sequence_ids[0],
        sequence_ids[-1],
        publish_time,
        first if isinstance(first, OutgoingMessage) else None,
    )


def encoded_entry(
    envelope: Envelope, payload: bytes, count: int, first_id: int, last_id: int, publish_time: int
) -> Entry:
    """The entry of a batch whose messages are encoded already."""
    return _batch_entry(envelope, payload, count, first_id, last_id, publish_time, None)


def _batch_entry(
    envelope: Envelope,
    payload: bytes,
    count: int,
    first_id: int,
    last_id: int,
    publish_time: int,
    keyed_as: OutgoingMessage | None,
) -> Entry:
    metadata = envelope.metadata(first_id, publish_time)
    metadata.highest_sequence_id = last_id
    metadata.num_messages_in_batch = count
    if keyed_as is not None:
        if keyed_as.key is not None:
            metadata.partition_key = keyed_as.key
        if keyed_as.ordering_key is not None:
            metadata.ordering_key = keyed_as.ordering_key
    payload = envelope.compressed(metadata, payload)
    parts = build_message_parts(metadata.SerializeToString(), payload)
    return Entry(parts, first_id, last_id, count, batched=True)


def plain_payloads(messages: Sequence[OutgoingMessage | bytes]) -> Sequence[bytes] | None:
    """The payloads of messages that are nothing else; None if one of them is more."""
    if set(map(type, messages)) == {bytes}:
        return cast(Sequence[bytes], messages)
    payloads: list[bytes] = []
    append = payloads.append
    for message in messages:
        if isinstance(message, bytes):
            append(message)
        elif (
            message.payload is not None
            and message.key is None
            and not message.properties
            and message.event_time is None
            and message.ordering_key is None
        ):
            append(message.payload)
        else:
            return None
    return payloads
