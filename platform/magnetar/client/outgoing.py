"""Messages on their way out, and the entries they are packed into."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.compression import compress
from magnetar.protocol.hot_commands import send
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import build_message_parts
from magnetar.protocol.pulsar_pb2 import NONE, CompressionType, MessageMetadata

OVERHEAD_BYTES = 64
"""What a pending message is reckoned to take beyond its payload."""


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

    @property
    def plain(self) -> bool:
        """Whether there is nothing but a payload."""
        return (
            self.payload is not None
            and self.key is None
            and not self.properties
            and self.event_time is None
            and self.ordering_key is None
        )


class Entry:
    """One SEND frame without its receipt yet, and whom to tell."""

    __slots__ = (
        "_batched",
        "charged",
        "deadline",
        "duplicates",
        "flushes",
        "futures",
        "highest_id",
        "is_chunk",
        "message",
        "num_messages",
        "sequence_id",
        "stored",
        "whole",
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
        self.is_chunk = is_chunk
        self._batched = batched
        self.charged = 0
        """What it takes of the memory budget."""
        self.deadline = 0.0
        self.duplicates = 0
        """How many messages at its beginning the broker had already, so that they were left out."""
        self.futures: Sequence[asyncio.Future[MessageId]] = ()
        """One for each message, in order; none where `whole` is told."""
        self.whole: asyncio.Future[list[MessageId]] | None = None
        """The one future of a batch sent as a whole."""
        self.stored: asyncio.Future[MessageId] | None = None
        """The one future of a batch that came encoded, told the entry's id."""
        self.flushes: list[Flush] = []

    def frame(self, producer_id: int) -> list[Buffer]:
        """The SEND frame, in parts."""
        head, payload = self.message
        start = send(
            producer_id,
            self.sequence_id,
            len(head) + len(payload),
            num_messages=self.num_messages,
            highest_sequence_id=self.highest_id if self._batched else None,
            is_chunk=self.is_chunk,
        )
        return [start + bytes(head), payload]

    @property
    def size(self) -> int:
        """Bytes of the message, metadata included."""
        return len(self.message[0]) + len(self.message[1])

    @property
    def batched(self) -> bool:
        """Whether the entry is a batch, though it be of one message."""
        return self._batched


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


@dataclass(frozen=True, slots=True)
class Envelope:
    """What every entry of a producer's present attachment has in common."""

    producer_name: str
    compression: CompressionType.ValueType
    schema_version: bytes
    partition: int

    def metadata(self, sequence_id: int, publish_time: int) -> MessageMetadata:
        """The metadata of an entry, to be completed."""
        metadata = MessageMetadata(
            producer_name=self.producer_name, sequence_id=sequence_id, publish_time=publish_time
        )
        if self.compression != NONE:
            metadata.compression = self.compression
        if self.schema_version:
            metadata.schema_version = self.schema_version
        return metadata


def pack_single(
    envelope: Envelope, message: OutgoingMessage, sequence_id: int, publish_time: int
) -> tuple[MessageMetadata, bytes]:
    """A message that is an entry of its own: its metadata, and its payload as it will travel."""
    metadata = envelope.metadata(sequence_id, publish_time)
    _describe(metadata, message)
    if message.deliver_at is not None:
        metadata.deliver_at_time = message.deliver_at
    payload = message.payload or b""
    metadata.uncompressed_size = len(payload)
    if envelope.compression != NONE:
        payload = compress(envelope.compression, payload)
    return metadata, payload


def single_entry(metadata: MessageMetadata, payload: Buffer, *, is_chunk: bool = False) -> Entry:
    """The entry of a packed message, or of one chunk of it."""
    parts = build_message_parts(metadata.SerializeToString(), payload)
    return Entry(parts, metadata.sequence_id, metadata.sequence_id, 1, batched=False, is_chunk=is_chunk)


def batch_entry(
    envelope: Envelope, batch: BatchBuilder, first: OutgoingMessage | None, publish_time: int
) -> Entry:
    """The entry of a batch. The key of its first message, if any, stands for all of it."""
    metadata = envelope.metadata(batch.first_sequence_id, publish_time)
    metadata.highest_sequence_id = batch.last_sequence_id
    metadata.num_messages_in_batch = batch.count
    if first is not None:
        if first.key is not None:
            metadata.partition_key = first.key
        if first.ordering_key is not None:
            metadata.ordering_key = first.ordering_key
    payload = batch.payload()
    metadata.uncompressed_size = len(payload)
    if envelope.compression != NONE:
        payload = compress(envelope.compression, payload)
    parts = build_message_parts(metadata.SerializeToString(), payload)
    return Entry(parts, batch.first_sequence_id, batch.last_sequence_id, batch.count, batched=True)


def encoded_entry(
    envelope: Envelope, payload: bytes, count: int, first_id: int, last_id: int, publish_time: int
) -> Entry:
    """The entry of a batch whose messages are encoded already."""
    metadata = envelope.metadata(first_id, publish_time)
    metadata.highest_sequence_id = last_id
    metadata.num_messages_in_batch = count
    metadata.uncompressed_size = len(payload)
    if envelope.compression != NONE:
        payload = compress(envelope.compression, payload)
    parts = build_message_parts(metadata.SerializeToString(), payload)
    return Entry(parts, first_id, last_id, count, batched=True)


def add_to_batch(batch: BatchBuilder, message: OutgoingMessage, sequence_id: int) -> None:
    """Add a message with all it carries."""
    if message.plain:
        batch.add(message.payload or b"", sequence_id)
    else:
        batch.add_full(
            message.payload,
            sequence_id,
            key=message.key,
            ordering_key=message.ordering_key,
            properties=message.properties,
            event_time=message.event_time,
        )


def _describe(metadata: MessageMetadata, message: OutgoingMessage) -> None:
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
    if message.payload is None:
        metadata.null_value = True
