"""The part of kazoo that reaches for servers, held to short sessions.

kazoo gives every server a whole session time-out to accept a connection, and takes any request it sends for a
ping: with one server that swallows packets, or with a request always waiting, it would hang on until the session
is over. Here a server gets a share of the session, and whoever counts signs of life may drop a connection that
answers none.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

_CONNECT_SHARE = 1 / 6
"""Of a session's time-out, for one server to accept a connection: several are tried before the session ends."""
_CONNECT_MIN_S = 0.2


class _HurriedHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, with less patience for a server that does not accept."""

    def __init__(self, connect_timeout_s: float) -> None:
        super().__init__()
        self._connect_timeout_s = connect_timeout_s

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        options["timeout"] = min(options.get("timeout", self._connect_timeout_s), self._connect_timeout_s)
        return super().create_connection(*arguments, **options)


class ZooKeeperConnection:
    """A kazoo client, its session's true time-out, and the means to let go of a dead connection."""

    def __init__(self, hosts: str, session_timeout_s: float) -> None:
        """Raises ValueError for an address that is none."""
        self.client = KazooClient(
            hosts=hosts,
            timeout=session_timeout_s,
            handler=_HurriedHandler(max(session_timeout_s * _CONNECT_SHARE, _CONNECT_MIN_S)),
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5},
        )
        self.session_timeout_s = session_timeout_s
        """What the server has granted, which may be less or more than what was asked for."""
        connect: Callable[..., tuple[float, float]] = self.client._connection._connect
        self._connect = connect
        self.client._connection._connect = self._connect_and_note

    def drop(self) -> None:
        """Let go of the present connection; kazoo turns to the next server. The session goes on."""
        current = self.client._connection._socket
        if current is not None:
            with contextlib.suppress(OSError):  # It has just been closed, which is what was wanted.
                current.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the session and the threads. Blocks."""
        self.client.stop()
        self.client.close()

    def _connect_and_note(self, *arguments: Any) -> tuple[float, float]:
        read_timeout_ms, connect_timeout_ms = self._connect(*arguments)
        # kazoo keeps of the granted time-out nothing but the two thirds it waits for an answer.
        self.session_timeout_s = read_timeout_ms * 3 / 2 / 1000
        return read_timeout_ms, connect_timeout_ms
