"""Frames: how commands, and the messages behind some of them, stand in a connection's bytes.

A frame is its size (4 bytes, without themselves), the command's size (4 bytes), the command, and, for
SEND and MESSAGE, a message that fills the rest. Everything is big-endian.
Source: Pulsar binary protocol, "Framing".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import (
    FrameTooLarge,
    FrameTruncated,
    LyingLength,
    MalformedCommand,
    UnknownCommand,
)
from magnetar.protocol.pulsar_pb2 import BaseCommand
from magnetar.protocol.texts import holds_text_only

MAX_MESSAGE_BYTES = 5 * 1024 * 1024
"""The largest message both sides accept unless told otherwise: metadata and payload together."""
FRAME_SLACK_BYTES = 10 * 1024
"""What a frame may hold beyond its message."""

_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")
_FIELD_OF_TYPE: dict[int, Any] = {  # Any: HasField wants literals.
    field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.name != "type"
}
_CONNECT = BaseCommand.CONNECT
_ACK = BaseCommand.ACK
_WITH_MESSAGE = frozenset((BaseCommand.SEND, BaseCommand.MESSAGE))
_UNCHECKED = frozenset((BaseCommand.SEND, BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE))
"""One for every entry: a missing id reads as 0 there, which is a wrong id like any other."""
_WITHOUT_TEXT = _UNCHECKED | {
    BaseCommand.ACK,
    BaseCommand.FLOW,
    BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES,
}


class Frame:
    """A command, and the message behind it if there is one."""

    __slots__ = ("command", "payload", "type")

    def __init__(self, number: int, command: BaseCommand, payload: memoryview | None) -> None:
        self.type = number
        """The command's `BaseCommand.Type`."""
        self.command = command
        self.payload = payload
        """What follows the command of a SEND or a MESSAGE. A view of what was fed to the decoder, which
        it keeps alive as a whole: copy what is to be kept (`message.take_message`)."""

    def __repr__(self) -> str:
        size = "" if self.payload is None else f", {len(self.payload)} bytes"
        return f"Frame({BaseCommand.Type.Name(self.command.type)}{size})"


class FrameDecoder:
    """Cut a stream of bytes into frames.

    Frames are views of the bytes fed; only one that straddles two reads is put together by a copy.
    A frame's announced size is checked before any of it is kept, so what waits here never exceeds
    `max_frame_bytes`.
    """

    def __init__(self, max_frame_bytes: int = MAX_MESSAGE_BYTES + FRAME_SLACK_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        """The limit on a whole frame, size field included. May be changed between reads."""
        self._pending: list[Buffer] = []
        self._missing = 0  # Bytes that the pending frame, or its size field, still lacks.
        self.pending_bytes = 0
        """Bytes of a frame whose end has not been fed yet."""

    def feed(self, data: Buffer) -> list[Frame]:
        """Take the next bytes of the stream and return the frames they complete.

        Frames are views of `data`; anything but `bytes` is copied first, because it might change.

        Raises:
            FrameError: the stream is out of step or hostile. The decoder is of no more use; close the
                connection. Frames before the bad one in the same read are lost with it.
        """
        if type(data) is not bytes:
            data = bytes(data)
        view = memoryview(data)
        frames: list[Frame] = []
        offset = self._complete_pending(view, frames) if self._pending else 0
        end = len(data)
        while end - offset >= 4:
            stop = offset + self._checked_size(data, offset)
            if stop > end:
                break
            frames.append(_decode(data, view, offset, stop))
            offset = stop
        if offset < end:
            self._keep(data[offset:])
        return frames

    def _keep(self, rest: bytes) -> None:
        """Keep the beginning of a frame until what follows arrives."""
        wanted = self._checked_size(rest, 0) if len(rest) >= 4 else 4
        self._pending = [rest]
        self.pending_bytes = len(rest)
        self._missing = wanted - len(rest)

    def _complete_pending(self, view: memoryview, frames: list[Frame]) -> int:
        """Add to the pending frame, and decode it if that completes it. Returns where `view` goes on."""
        offset = 0
        while True:
            taken = view[offset : offset + self._missing]
            # A read taken as a whole is kept as it is; a part of one would pin the rest.
            self._pending.append(taken if len(taken) == len(view) else bytes(taken))
            self.pending_bytes += len(taken)
            self._missing -= len(taken)
            offset += len(taken)
            if self._missing:
                return offset
            whole = b"".join(self._pending)
            size = self._checked_size(whole, 0)
            if size == len(whole):
                break
            self._pending = [whole]  # Only the size field was complete: now the frame it announces.
            self._missing = size - len(whole)
        self._pending = []
        self.pending_bytes = 0
        frames.append(_decode(whole, memoryview(whole), 0, size))
        return offset

    def _checked_size(self, data: bytes, offset: int) -> int:
        """The size of the frame at `offset`, its size field included."""
        size: int = _SIZE.unpack_from(data, offset)[0] + 4
        if size > self.max_frame_bytes:
            raise FrameTooLarge(size, self.max_frame_bytes)
        if size < 8:
            raise FrameTruncated(f"frame of {size} bytes ends before its command")
        return size


def _decode(data: bytes, view: memoryview, start: int, stop: int) -> Frame:
    """Read the whole frame that lies between `start` and `stop`."""
    end_of_command: int = start + 8 + _SIZE.unpack_from(data, start + 4)[0]
    if end_of_command > stop:
        raise LyingLength(f"command of {end_of_command - start - 8} bytes in a frame of {stop - start}")
    try:
        command = BaseCommand.FromString(data[start + 8 : end_of_command])
    except DecodeError as error:
        raise MalformedCommand(f"command does not parse: {error}") from None
    number = command.type  # An unknown or missing type reads as the first one, CONNECT.
    if number == _CONNECT and not command.HasField("type"):
        raise UnknownCommand
    if not command.HasField(_FIELD_OF_TYPE[number]):
        raise MalformedCommand(f"{BaseCommand.Type.Name(number)} without the message it announces")
    if number not in _UNCHECKED and not command.IsInitialized():
        raise MalformedCommand(f"{BaseCommand.Type.Name(number)} lacks a required field")
    may_hold_text = number not in _WITHOUT_TEXT or (number == _ACK and command.ack.properties)
    if may_hold_text and not holds_text_only(command):
        raise MalformedCommand(f"{BaseCommand.Type.Name(number)} holds a string that is no UTF-8")
    return Frame(number, command, view[end_of_command:stop] if number in _WITH_MESSAGE else None)


def encode_command(command: BaseCommand) -> bytes:
    """The frame of a command without a message."""
    body = command.SerializeToString()
    size = len(body)
    return _SIZES.pack(size + 4, size) + body


def encode_head(command: BaseCommand, message_bytes: int) -> bytes:
    """What stands before a message of `message_bytes` bytes: both sizes and the command."""
    body = command.SerializeToString()
    size = len(body)
    return _SIZES.pack(size + 4 + message_bytes, size) + body


def encode_payload_command(command: BaseCommand, parts: Sequence[Buffer]) -> list[Buffer]:
    """The frame of a command and its message. The parts of the message are passed on as they are."""
    return [encode_head(command, sum(map(len, parts))), *parts]
