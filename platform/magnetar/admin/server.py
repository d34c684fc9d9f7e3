"""The web server: uvicorn's parser and protocol on the loop that is running, with limits of our own.

Uvicorn's `Server` is not used: it would take the process's signals, and wake up ten times a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from magnetar.admin.answers import encode
from magnetar.admin.settings import AdminSettings
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

log = get_logger("magnetar.admin")


class BoundedHttp(HttpToolsProtocol):
    """A connection whose headers are bounded in size and in time, and whose answers must be read."""

    settings = AdminSettings()
    _header_bytes = 0
    _header_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _between_requests = True

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.settings.connections_max:
            transport.close()
            return
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_are_here()
        self._answer_is_read()
        if self.transport is not None:
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            super().data_received(_keep_to_http_1(data) if self._between_requests else data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        self._await_headers()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._between_requests = False
        self._headers_are_here()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._between_requests = True
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.settings.header_bytes_max:
            raise HeadersTooLarge

    def _await_headers(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.settings.header_timeout_s, self._too_slow)

    def _headers_are_here(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _too_slow(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.settings.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._answer_is_read()
        super().resume_writing()

    def _answer_is_read(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def send_400_response(self, msg: str) -> None:
        """Malformed HTTP, told as everything else is."""
        body = encode({"reason": msg, "code": "bad_request"})
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (len(body), body)
        )
        self.transport.close()


def _keep_to_http_1(data: bytes) -> bytes:
    """The beginning of a request without its offer to speak HTTP/2.

    Java's HttpClient makes that offer with every request, and the parser, once it has seen one, takes what
    follows the headers for something else than the body.
    """
    if b"h2c" not in data:
        return data
    headers, blank, rest = data.partition(b"\r\n\r\n")
    lines = [line for line in headers.split(b"\r\n") if line.lower() != b"upgrade: h2c"]
    return b"\r\n".join(lines) + blank + rest


class HeadersTooLarge(Exception):
    """More headers than anybody needs. The parser turns it into a refusal of the request."""


class WebServer:
    """Serves an ASGI application on the running loop."""

    def __init__(self, app: Any, settings: AdminSettings | None = None) -> None:
        self._app = app
        self._settings = settings or AdminSettings()
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port, which the system chooses for 0. Raises OSError: it is in use."""
        config = Config(
            self._app,
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=max(1, round(self._settings.keep_alive_s)),
        )
        config.load()
        self._server = await asyncio.get_running_loop().create_server(self._protocol(config), host, port)
        chosen: int = self._server.sockets[0].getsockname()[1]
        log.info("web.started", host=host, port=chosen)
        return chosen

    def _protocol(self, config: Config) -> Callable[[], BoundedHttp]:
        def make() -> BoundedHttp:
            protocol = BoundedHttp(config, self._state, {})
            protocol.settings = self._settings
            return protocol

        return make

    async def stop(self, deadline_s: float = 5.0) -> None:
        """Take nothing new, let requests under way end, close."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(set(self._state.tasks), timeout=deadline_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        self._server = None
        log.info("web.stopped")
