"""A message: what follows the command of a SEND or a MESSAGE, and what is stored as an entry.

Magic 0x0e01, CRC32-C (4 bytes), metadata size (4 bytes), metadata, payload; the checksum covers all
that comes after it. The magic and checksum may be absent. The broker never writes a message anew: its
bytes go from producer to disk to consumer as they came. Source: Pulsar binary protocol.
"""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.checksum import crc32c
from magnetar.protocol.errors import ChecksumMismatch, FrameTruncated, LyingLength, MalformedMetadata
from magnetar.protocol.pulsar_pb2 import MessageMetadata

MESSAGE_MAGIC = b"\x0e\x01"

_CHECKED_PREFIX = struct.Struct(">2sI")  # Magic and checksum.
_SIZE = struct.Struct(">I")


class SplitMessage:
    """A message taken apart. The payload is as it travels: compressed, encrypted, batched."""

    __slots__ = ("metadata", "metadata_bytes", "payload")

    def __init__(self, metadata: MessageMetadata, metadata_bytes: bytes, payload: memoryview) -> None:
        self.metadata = metadata
        self.metadata_bytes = metadata_bytes
        self.payload = payload


def split_message(data: Buffer, *, verify: bool = True) -> SplitMessage:
    """Take a message apart, from its 0x0e01 (or, without a checksum, its metadata size) on.

    Raises:
        ChecksumMismatch: the CRC32-C differs. Answer `SendError(ChecksumError)`; the connection stays
            usable.
        FrameTruncated: the message ends inside its prefix. Close the connection.
        LyingLength: the metadata's size points past the end. Close the connection.
        MalformedMetadata: the metadata does not parse or lacks a required field. Close the connection.
    """
    view = memoryview(data)
    if verify:
        verify_checksum(view)
    start = _CHECKED_PREFIX.size if view[:2] == MESSAGE_MAGIC else 0
    if len(view) < start + 4:
        raise FrameTruncated(f"message of {len(view)} bytes ends before its metadata")
    end = start + 4 + _SIZE.unpack_from(view, start)[0]
    if end > len(view):
        raise LyingLength(f"metadata of {end - start - 4} bytes in a message of {len(view)}")
    metadata_bytes = bytes(view[start + 4 : end])
    return SplitMessage(_parse_metadata(metadata_bytes), metadata_bytes, view[end:])


def read_metadata(data: Buffer) -> MessageMetadata:
    """The metadata of a message, its payload and checksum left alone.

    Raises:
        FrameTruncated, LyingLength, MalformedMetadata: as `split_message`.
    """
    return split_message(data, verify=False).metadata


def verify_checksum(data: Buffer) -> None:
    """Compare a message's checksum with its bytes; one without a checksum passes.

    Raises:
        ChecksumMismatch, FrameTruncated: as `split_message`.
    """
    view = memoryview(data)
    if view[:2] == MESSAGE_MAGIC:
        _compare_checksum(view[:6], bytes(view[6:]))


def take_message(data: Buffer, *, verify: bool = True) -> tuple[bytes, bytes]:
    """Copy a received message out of the read buffer it lies in, and check it, in one pass.

    Returns the message in two parts, to be written one after the other: its first bytes, and all that
    the checksum covers. One copy serves both purposes, which is why a broker should call this and not
    `verify_checksum`. The first part is empty for a message without a checksum.

    Raises:
        ChecksumMismatch, FrameTruncated: as `split_message`.
    """
    view = memoryview(data)
    if view[:2] != MESSAGE_MAGIC:
        return b"", bytes(view)
    head, covered = bytes(view[:6]), bytes(view[6:])
    if verify:
        _compare_checksum(head, covered)
    return head, covered


def build_message(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """The bytes of a message, checksum included."""
    return b"".join(build_message_parts(metadata.SerializeToString(), payload))


def build_message_parts(metadata: bytes, payload: Buffer) -> tuple[bytes, Buffer]:
    """The bytes of a message as what stands before the payload, and the payload itself, not copied."""
    covered = _SIZE.pack(len(metadata)) + metadata
    return _CHECKED_PREFIX.pack(MESSAGE_MAGIC, crc32c(covered, payload)) + covered, payload


def _parse_metadata(data: bytes) -> MessageMetadata:
    try:
        metadata = MessageMetadata.FromString(data)
    except DecodeError as error:
        raise MalformedMetadata(f"message metadata does not parse: {error}") from None
    if not metadata.IsInitialized():
        raise MalformedMetadata("message metadata lacks a producer name, sequence id or publish time")
    return metadata


def _compare_checksum(head: Buffer, covered: bytes) -> None:
    if len(head) < _CHECKED_PREFIX.size:
        raise FrameTruncated(f"message of {len(head)} bytes ends inside its checksum")
    expected: int = _CHECKED_PREFIX.unpack(head)[1]
    actual = crc32c(covered)
    if actual != expected:
        raise ChecksumMismatch(expected, actual)
