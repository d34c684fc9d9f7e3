"""The user process' end of the socketpair: whole frames in, whole frames out, from any thread."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections import deque
from typing import Any

from magnetar.functions.process.wire import FRAME_HEADER, ToHost, ToProcess, json_frame

READ_BYTES = 256 * 1024
QUEUED_BYTES_MAX = 64 * 1024


class HostGone(Exception):
    """The host closed its end: there is nobody to work for."""


class Channel:
    """Blocking. Frames are read by the main thread only; anyone may send."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._readable = (
            select.poll()
        )  # unlike select(), it takes descriptors above 1,023: user code may hold many
        self._readable.register(sock, select.POLLIN)
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._start = 0
        self._deferred: deque[tuple[int, bytes]] = deque()
        self._calls = 0
        self._queued: list[bytes] = []
        self._queued_bytes = 0

    def queue(self, frame: bytes) -> None:
        """Send a frame with others: with the next that is sent, or before `receive` next waits. Raises HostGone."""
        with self._sending:
            self._queued.append(frame)
            self._queued_bytes += len(frame)
            if self._queued_bytes >= QUEUED_BYTES_MAX:
                self._send_queued()

    def flush(self) -> None:
        """Send what is queued. Raises HostGone."""
        if self._queued:
            with self._sending:
                self._send_queued()

    def send(self, frame: bytes) -> None:
        """Send a whole frame, after those that are queued. Raises HostGone."""
        with self._sending:
            self._queued.append(frame)
            self._send_queued()

    def _send_queued(self) -> None:
        """Needs the lock."""
        frames, self._queued, self._queued_bytes = self._queued, [], 0
        try:
            self._socket.sendall(frames[0] if len(frames) == 1 else b"".join(frames))
        except OSError as error:
            raise HostGone(str(error)) from None

    def receive(self) -> tuple[int, bytes]:
        """Wait for a frame: its kind and body. Raises HostGone."""
        if self._deferred:
            return self._deferred.popleft()
        return self._read()

    def put_back(self, kind: int, body: bytes) -> None:
        """Have `receive` return this frame next. Main thread only."""
        self._deferred.appendleft((kind, body))

    def waiting(self) -> bool:
        """Whether `receive` need not wait long: a frame is here, or on its way."""
        if self._deferred or len(self._buffer) > self._start:
            return True
        return bool(self._readable.poll(0))

    def ask(self, question: dict[str, Any]) -> Any:
        """Ask the host and wait for its answer; other frames wait for `receive`. Main thread only."""
        call = self.number_call()
        self.send(json_frame(ToHost.ASK, {**question, "call": call}))
        while True:
            kind, body = self._read()
            if kind == ToProcess.ANSWER:
                answer = json.loads(body)
                if answer.get("call") == call:
                    return answer
            self._deferred.append((kind, body))

    def number_call(self) -> int:
        """A number that an ANSWER can refer to."""
        with self._sending:
            self._calls += 1
            return self._calls

    def _read(self) -> tuple[int, bytes]:
        length, kind = FRAME_HEADER.unpack(self._take(FRAME_HEADER.size))
        return kind, self._take(length - 1)

    def _take(self, size: int) -> bytes:
        while len(self._buffer) - self._start < size:
            self.flush()
            if self._start:
                del self._buffer[: self._start]
                self._start = 0
            try:
                chunk = self._socket.recv(max(READ_BYTES, size - len(self._buffer)))
            except OSError as error:
                raise HostGone(str(error)) from None
            if not chunk:
                raise HostGone("the host closed the channel")
            self._buffer += chunk
        taken = bytes(memoryview(self._buffer)[self._start : self._start + size])
        self._start += size
        return taken
