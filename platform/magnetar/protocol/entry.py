"""The broker entry metadata before a stored entry: when the broker took it, and its dense index.

Stored form: magic 0x0e02, 4-byte size, BrokerEntryMetadata, then the message from 0x0e01 on. `index` is
that of the entry's last message, counted over the whole topic. Source: Pulsar binary protocol, PIP-70.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import FrameTruncated, LyingLength, MalformedMetadata
from magnetar.protocol.pulsar_pb2 import BrokerEntryMetadata

ENTRY_MAGIC = b"\x0e\x02"

_PREFIX = struct.Struct(">2sI")


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry, its broker metadata read. Both fields are None where the entry has none."""

    broker_timestamp: int | None
    """Milliseconds since 1970, by the broker's clock."""
    index: int | None
    """The index of the entry's last message."""
    message: memoryview
    """From 0x0e01 on: what the producer sent, viewed, not copied."""


def wrap_entry(timestamp_ms: int, index: int) -> bytes:
    """The bytes to put before a message that is about to be stored."""
    metadata = BrokerEntryMetadata(broker_timestamp=timestamp_ms, index=index).SerializeToString()
    return _PREFIX.pack(ENTRY_MAGIC, len(metadata)) + metadata


def split_entry(data: Buffer) -> StoredEntry:
    """Separate an entry from its broker metadata.

    Raises:
        FrameTruncated: the entry ends inside the prefix.
        LyingLength: the metadata's size points past the end.
        MalformedMetadata: it does not parse.
    """
    view = memoryview(data)
    start = _message_start(view)
    if start == 0:
        return StoredEntry(None, None, view)
    try:
        metadata = BrokerEntryMetadata.FromString(bytes(view[_PREFIX.size : start]))
    except DecodeError as error:
        raise MalformedMetadata(f"broker entry metadata does not parse: {error}") from None
    return StoredEntry(
        metadata.broker_timestamp if metadata.HasField("broker_timestamp") else None,
        metadata.index if metadata.HasField("index") else None,
        view[start:],
    )


def strip_entry(data: Buffer) -> memoryview:
    """The message of a stored entry, for readers that do not want the broker metadata.

    Raises:
        FrameTruncated, LyingLength: as `split_entry`.
    """
    view = memoryview(data)
    return view[_message_start(view) :]


def _message_start(view: memoryview) -> int:
    """Where the message begins: 0 in an entry without broker metadata."""
    if view[:2] != ENTRY_MAGIC:
        return 0
    if len(view) < _PREFIX.size:
        raise FrameTruncated(f"entry of {len(view)} bytes ends inside its broker metadata prefix")
    size: int = _PREFIX.unpack_from(view)[1]
    if _PREFIX.size + size > len(view):
        raise LyingLength(f"broker entry metadata of {size} bytes in an entry of {len(view)}")
    return _PREFIX.size + size
