"""The host's end of the socketpair: frames to and from a user process, on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from magnetar.functions.process.wire import FRAME_BYTES_MAX, FRAME_HEADER

FrameListener = Callable[[int, memoryview], None]
"""Takes a frame's kind and body. The body is gone when it returns."""

WRITE_HIGH_WATER_BYTES = 64 * 1024 * 1024


class ProcessProtocol(asyncio.Protocol):
    """Cuts what comes into frames; forgets nothing and copies each byte at most once."""

    def __init__(self, on_frame: FrameListener, on_closed: Callable[[], None]) -> None:
        self._on_frame = on_frame
        self._on_closed = on_closed
        self._partial = bytearray()
        self._outgoing: list[bytes | memoryview] = []
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it.
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._partial:
            rest = self._frames(memoryview(data))
            self._partial += memoryview(data)[len(data) - rest :]
            return
        self._partial += data
        if len(self._partial) < FRAME_HEADER.size:
            return
        if len(self._partial) < FRAME_HEADER.size - 1 + FRAME_HEADER.unpack_from(self._partial)[0]:
            return
        whole = bytes(self._partial)
        rest = self._frames(memoryview(whole))
        self._partial = bytearray(memoryview(whole)[len(whole) - rest :])

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._on_closed()

    def write(self, *chunks: bytes | memoryview) -> None:
        """Send, together with all else that is written in this turn of the loop.

        What is written after the process has gone is dropped: its loss is reported anyway.
        """
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outgoing += chunks

    def _flush(self) -> None:
        chunks, self._outgoing = self._outgoing, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(chunks)

    def pause(self) -> None:
        """Hear nothing more for now: the user process will block when it speaks."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _frames(self, view: memoryview) -> int:
        """Hand on every whole frame; returns how many bytes are left over."""
        position, end = 0, len(view)
        while end - position >= FRAME_HEADER.size:
            length, kind = FRAME_HEADER.unpack_from(view, position)
            if length > FRAME_BYTES_MAX:
                assert self._transport is not None
                self._transport.abort()  # User code wrote on a descriptor that is not its own.
                return 0
            following = position + FRAME_HEADER.size - 1 + length
            if following > end:
                break
            self._on_frame(kind, view[position + FRAME_HEADER.size : following])
            position = following
        return end - position
