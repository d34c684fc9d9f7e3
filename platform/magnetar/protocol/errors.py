"""ProtocolError: bytes that cannot be what they claim to be.

ProtocolError
    FrameError                  the stream is out of step or hostile: close the connection
        FrameTooLarge(size, limit)
        FrameTruncated          a frame, or the message in it, ends before its parts do
        LyingLength             a length inside points past the end of what holds it
        UnknownCommand
        MalformedCommand        the command is no command, or lacks a required field
        MalformedMetadata       the metadata before a message cannot be read
    ChecksumMismatch(expected, actual)   answer SEND_ERROR ChecksumError; the connection stays usable
    CompressionError            a payload cannot be decompressed to the size it claims
    BatchCorrupt                a batch is not what its metadata says
    BatchUnopenable(reason)     a batch that must be cut is encrypted or cannot be read
    InvalidMessageId(text)      neither text nor bytes of a message id
"""

from __future__ import annotations


class ProtocolError(Exception):
    """The root of this room's errors."""


class FrameError(ProtocolError):
    """The bytes of a connection make no frame. Nothing after them can be trusted."""


class FrameTooLarge(FrameError):
    """A frame announces more bytes than this side accepts."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"frame of {size} bytes exceeds the limit of {limit} bytes")
        self.size = size
        self.limit = limit


class FrameTruncated(FrameError):
    """A frame, or the message inside, ends before its parts do."""


class LyingLength(FrameError):
    """A length field points past the end of what holds it."""


class UnknownCommand(FrameError):
    """A command of a type this version of the protocol does not have, or of none."""

    def __init__(self, number: int | None = None) -> None:
        super().__init__("command of an unknown type" if number is None else f"unknown command {number}")
        self.number = number


class MalformedCommand(FrameError):
    """The command does not parse, lacks a required field, or lacks the message its type promises."""


class MalformedMetadata(FrameError):
    """The metadata before a message, or before a member of a batch, does not parse."""


class ChecksumMismatch(ProtocolError):
    """The CRC32-C over metadata size, metadata and payload is not the one sent."""

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"message checksum {actual:#010x} differs from the one sent, {expected:#010x}")
        self.expected = expected
        self.actual = actual


class CompressionError(ProtocolError):
    """A payload cannot be decompressed to the size it claims."""


class BatchCorrupt(ProtocolError):
    """The payload of a batch does not hold the messages its metadata announces."""


class BatchUnopenable(ProtocolError):
    """A batch that has to be cut cannot be read."""


class InvalidMessageId(ProtocolError, ValueError):
    """Text or bytes that are no message id."""
