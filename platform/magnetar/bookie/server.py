"""The bookie behind a socket: frames in, calls of a `BookieConnection`, frames out.

Requests are pipelined; an answer goes out when it is there, and all that are there in one turn of the loop go out in one
write. A connection that has too much in flight, or does not read its answers, is not read from until that is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final, cast

from magnetar.bookie.read_lane import ReadLane
from magnetar.environment.logs import get_logger
from magnetar.protocol.bookie import (
    MAX_RUN_BYTES,
    BookieConnection,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.bookie_frames import (
    PROTOCOL_VERSION,
    WAIT_LAC,
    AddRequest,
    Hello,
    InfoRequest,
    ListRequest,
    ReadLacRequest,
    ReadRequest,
    ReadRunRequest,
    Request,
    RequestDecoder,
    WaitLacRequest,
    WriteLacRequest,
    encode_added,
    encode_entry_answer,
    encode_info_answer,
    encode_lac_answer,
    encode_lac_written,
    encode_list_answer,
    encode_run_answer,
    encode_welcome,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import FrameError, MalformedCommand

CONNECTION_BYTES_MAX: Final = 32 * 1024 * 1024
"""What one connection may have in flight before it is paused: adds by size, reads by what they may answer."""
SERVER_BYTES_MAX: Final = 128 * 1024 * 1024
"""The same for all connections together."""
_READS_AT_ONCE = 16
_READ_COST = 64 * 1024
_WAIT_COST = 1024
_HELLO_WAIT_S = 10.0

log = get_logger("magnetar.bookie.server")


class BookieServer:
    def __init__(
        self,
        bookie: BookieConnection,
        host: str,
        port: int,
        *,
        connection_bytes_max: int = CONNECTION_BYTES_MAX,
        server_bytes_max: int = SERVER_BYTES_MAX,
    ) -> None:
        self.bookie = bookie
        self.connection_bytes_max = connection_bytes_max
        self._host = host
        self._port = port
        self._server_bytes_max = server_bytes_max
        self._server: asyncio.Server | None = None
        self._connections: dict[_Connection, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._nobody = asyncio.Event()
        self._nobody.set()
        self.in_flight = 0
        self.adds = 0
        """Adds on their way."""
        self.lane = ReadLane(_READS_AT_ONCE, self._is_adding)

    def _is_adding(self) -> bool:
        return self.adds > 0

    async def start(self) -> int:
        """Listen; returns the port. Raises OSError where the address is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(partial(_Connection, self), self._host, self._port)
        self._port = int(self._server.sockets[0].getsockname()[1])
        log.info("server.listening", host=self._host, port=self._port)
        return self._port

    async def stop(self, drain_s: float = 5.0) -> None:
        """Accept and read nothing more, answer what was asked, close."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        for connection in list(self._connections):
            connection.drain()
        try:
            async with asyncio.timeout(drain_s):
                await self._nobody.wait()
        except TimeoutError:
            log.warning("server.stopped_undrained", connections=len(self._connections))
            for connection in list(self._connections):
                connection.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=drain_s)

    @property
    def connections(self) -> int:
        return len(self._connections)

    # For connections.

    @property
    def is_full(self) -> bool:
        return self.in_flight > self._server_bytes_max

    def take(self, cost: int) -> None:
        self.in_flight += cost

    def give_back(self, cost: int) -> None:
        was_full = self.is_full
        self.in_flight -= cost
        if was_full and not self.is_full:
            for connection in list(self._connections):
                connection.resume_if_light()

    def opened(self, connection: _Connection) -> None:
        self._connections[connection] = None
        self._nobody.clear()

    def closed(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._nobody.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a read. It goes on when its connection is lost: a fence in it must not be cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task


class _Connection(asyncio.Protocol):
    """One client. Only adds are hot: they take no task, and their answers share frames."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._bookie = server.bookie
        self._loop = asyncio.get_running_loop()
        self._decoder = RequestDecoder()
        self._greeted = False
        self._draining = False
        self._in_flight = 0
        self._paused = False
        self._peer_is_slow = False
        self._waits: dict[asyncio.Task[None], None] = {}
        """Long-polls: they end with the connection."""
        self._added: dict[BookieStatus, list[int]] = {}
        self._answers: list[Buffer] = []
        self._flush_is_due = False

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=1 << 20)
        self._peer = transport.get_extra_info("peername")
        self._hello_timer = self._loop.call_later(_HELLO_WAIT_S, self._refuse, "no hello")
        self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        try:
            for request in self._decoder.feed(data):
                self._handle(request)
        except FrameError as error:
            self._refuse(str(error))
            return
        self._pause_if_heavy()

    def connection_lost(self, exc: Exception | None) -> None:
        self._hello_timer.cancel()
        self._server.closed(self)
        self._draining = True
        self._end_waits()
        log.debug("connection.lost", peer=self._peer, reason=str(exc) if exc else "closed")

    def pause_writing(self) -> None:
        self._peer_is_slow = True
        self._pause_if_heavy()

    def resume_writing(self) -> None:
        self._peer_is_slow = False
        self.resume_if_light()

    # What the server tells.

    def drain(self) -> None:
        """Take nothing more; close when everything is answered."""
        self._draining = True
        self._end_waits()
        self._close_if_drained()

    def abort(self) -> None:
        self._transport.abort()

    # Requests.

    def _handle(self, request: Request) -> None:
        if type(request) is AddRequest:
            self._expect_hello()
            size = len(request.entry)
            self._take(size)
            self._server.adds += 1
            self._bookie.add_entry(
                request.ledger_id,
                request.entry_id,
                (request.entry,),
                request.flags,
                request.master_key,
                partial(self._on_added, request.request_id, size),
            )
        elif type(request) is Hello:
            self._on_hello(request)
        else:
            self._expect_hello()
            self._read(request)

    def _on_hello(self, hello: Hello) -> None:
        if self._greeted:
            raise MalformedCommand("a second hello")
        self._hello_timer.cancel()
        self._greeted = True
        self._answer([encode_welcome(self._bookie.bookie_id)])
        if hello.version != PROTOCOL_VERSION:
            self._flush()
            self._refuse(f"protocol version {hello.version}, this side speaks {PROTOCOL_VERSION}")

    def _expect_hello(self) -> None:
        if not self._greeted:
            raise MalformedCommand("a request before the hello")

    def _on_added(self, request_id: int, size: int, status: BookieStatus) -> None:
        ids = self._added.get(status)
        if ids is None:
            self._added[status] = [request_id]
        else:
            ids.append(request_id)
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)
        self._server.adds -= 1
        self._give_back(size)

    def _read(self, request: Request) -> None:
        cost = _READ_COST
        if isinstance(request, ReadRunRequest):
            cost += min(request.max_bytes, MAX_RUN_BYTES)
        elif isinstance(request, WaitLacRequest):
            cost = _WAIT_COST
        self._take(cost)
        task = self._server.spawn(self._answer_read(request, cost))
        if isinstance(request, WaitLacRequest):
            self._waits[task] = None
            task.add_done_callback(self._wait_ended)

    def _wait_ended(self, task: asyncio.Task[None]) -> None:
        self._waits.pop(task, None)
        if task.cancelled():  # With the connection: there is nobody to answer.
            self._give_back(_WAIT_COST)
            self._close_if_drained()

    def _end_waits(self) -> None:
        for task in list(self._waits):
            task.cancel()

    async def _answer_read(self, request: Request, cost: int) -> None:
        try:
            frames = await self._ask(request)
        except Exception:  # A mistake of ours: the client is told, and the connection lives.
            log.exception("request.failed", peer=self._peer, request=type(request).__name__)
            frames = _failed(request)
        self._answer(frames)
        self._give_back(cost)

    async def _ask(self, request: Request) -> list[Buffer]:
        bookie = self._bookie
        match request:
            case ReadRequest(request_id, ledger_id, entry_id, fence, key):
                read = await bookie.read_entry(ledger_id, entry_id, fence=fence, master_key=key)
                return encode_entry_answer(request_id, read)
            case ReadRunRequest(request_id, ledger_id, first, count, max_bytes, background):
                limit = min(max_bytes, MAX_RUN_BYTES)
                if background:  # They have a lane of their own.
                    status, entries = await bookie.read_entries(
                        ledger_id, first, count, limit, background=True
                    )
                else:
                    async with self._server.lane:
                        status, entries = await bookie.read_entries(ledger_id, first, count, limit)
                return encode_run_answer(request_id, status, entries)
            case ReadLacRequest(request_id, ledger_id, fence, key):
                lac = await bookie.read_lac(ledger_id, fence=fence, master_key=key)
                return encode_lac_answer(request_id, lac)
            case WriteLacRequest(request_id, ledger_id, lac_value, key):
                status = await bookie.write_lac(ledger_id, lac_value, key)
                return [encode_lac_written(request_id, status)]
            case InfoRequest(request_id):
                return [encode_info_answer(request_id, await bookie.info())]
            case ListRequest(request_id, ledger_id):
                return [encode_list_answer(request_id, await bookie.list_entries(ledger_id))]
            case WaitLacRequest(request_id, ledger_id, above, timeout_s):
                lac = await bookie.wait_lac(ledger_id, above, timeout_s)
                return encode_lac_answer(request_id, lac, WAIT_LAC)
        raise MalformedCommand(f"{type(request).__name__} is not a request to be answered")

    # Answers.

    def _answer(self, frames: list[Buffer]) -> None:
        self._answers += frames
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        answers, self._answers = self._answers, []
        if self._added:  # They go first: a writer waits for them, and runs are long.
            answers[:0] = [encode_added(status, ids) for status, ids in self._added.items()]
            self._added = {}
        if answers and not self._transport.is_closing():
            self._transport.writelines(answers)
        self._close_if_drained()

    def _close_if_drained(self) -> None:
        if self._draining and not self._in_flight and not self._flush_is_due:
            self._transport.close()

    def _refuse(self, reason: str) -> None:
        log.warning("connection.closed", peer=self._peer, reason=reason)
        self._draining = True
        self._transport.close()

    # Back-pressure.

    def _take(self, cost: int) -> None:
        self._in_flight += cost
        self._server.take(cost)

    def _give_back(self, cost: int) -> None:
        self._in_flight -= cost
        self._server.give_back(cost)
        if self._paused:
            self.resume_if_light()

    def _is_heavy(self, limit: int) -> bool:
        return self._peer_is_slow or self._in_flight > limit or self._server.is_full

    def _pause_if_heavy(self) -> None:
        if (
            not self._paused
            and not self._transport.is_closing()
            and self._is_heavy(self._server.connection_bytes_max)
        ):
            self._paused = True
            self._transport.pause_reading()

    def resume_if_light(self) -> None:
        if (
            self._paused
            and not self._transport.is_closing()
            and not self._is_heavy(self._server.connection_bytes_max // 2)
        ):
            self._paused = False
            self._transport.resume_reading()


def _failed(request: Request) -> list[Buffer]:
    status = BookieStatus.UNKNOWN
    match request:
        case ReadRequest():
            return encode_entry_answer(request.request_id, EntryRead(status))
        case ReadRunRequest():
            return encode_run_answer(request.request_id, status, [])
        case ReadLacRequest():
            return encode_lac_answer(request.request_id, LacRead(status))
        case WriteLacRequest():
            return [encode_lac_written(request.request_id, status)]
        case ListRequest():
            return [encode_list_answer(request.request_id, EntryList(status))]
        case WaitLacRequest():
            return encode_lac_answer(request.request_id, LacRead(status), WAIT_LAC)
    return []
