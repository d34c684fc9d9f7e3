"""A bookie behind a socket: `BookieConnection` over TCP.

Requests are pipelined, and what is asked within one turn of the loop is written at once. Every request is
answered: by the bookie, by TIMEOUT, or by UNREACHABLE when the connection is lost or cannot be made. There is
one timer for all of them: request ids rise, so that a time-out is a mark on the ids given out before it.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from magnetar.environment.logs import get_logger
from magnetar.protocol import bookie_frames as frames
from magnetar.protocol.bookie import (
    MAX_RUN_BYTES,
    AddDone,
    AddFlags,
    BookieAddress,
    BookieInfo,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import ProtocolError

log = get_logger("magnetar.ledger")

Resolve = Callable[[], Awaitable[BookieAddress | None]]
"""Where the bookie listens now; None while it is not registered."""

_PAUSED_S = 1.0
"""A timer that is later than this tells that the process was stopped, or its loop held up."""

_Failure = Callable[[BookieStatus], Any]


@dataclass(frozen=True, slots=True)
class BookieClientSettings:
    request_timeout_s: float = 5.0
    """A request without answer for this long is answered TIMEOUT. Longer than a bookie's slowest fsync."""
    connect_timeout_s: float = 3.0
    backoff_s: float = 0.05
    """The first pause after a failed connection; it doubles up to `backoff_max_s`."""
    backoff_max_s: float = 5.0
    unsent_bytes: int = 320 * 1024 * 1024
    """With more than this waiting for the socket, adds are answered TOO_MANY_REQUESTS. A last resort: it is more
    than what a ledger client lets pile up."""
    tick_s: float = 0.25


class BookieClient:
    """One bookie's connection, made when first needed and again after it was lost."""

    def __init__(
        self,
        bookie_id: str,
        resolve: Resolve,
        *,
        dice: random.Random,
        settings: BookieClientSettings | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self._resolve = resolve
        self._dice = dice
        self._settings = settings or BookieClientSettings()
        self._loop = asyncio.get_running_loop()
        self._link: _Link | None = None
        """The connection in use, once the bookie has said who it is."""
        self._connecting: asyncio.Task[None] | None = None
        self._retry_at = 0.0
        self._backoff_s = self._settings.backoff_s
        self._next_id = 1
        self._adds: dict[int, AddDone] = {}
        self._asked: dict[int, tuple[asyncio.Future[Any], _Failure]] = {}
        self._unsent: list[Buffer] = []
        self._held_bytes = 0
        """Of adds that wait for a connection."""
        self._flush_scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._tick_due = 0.0
        self._marks: deque[tuple[float, int]] = deque()
        """(time, id): at that time, requests below that id have had their time."""
        self._closed = False

    # The requests.

    def add_entry(
        self,
        ledger_id: int,
        entry_id: int,
        parts: Sequence[Buffer],
        flags: AddFlags,
        master_key: bytes,
        done: AddDone,
    ) -> None:
        if not self._may_send():
            self._loop.call_soon(done, BookieStatus.UNREACHABLE)
            return
        link = self._link
        if link is None:
            # Nothing is sent before the bookie has said who it is, and that may take its time.
            self._held_bytes += sum(map(len, parts))
            congested = self._held_bytes > self._settings.unsent_bytes
        else:
            congested = link.congested
        if congested:
            self._loop.call_soon(done, BookieStatus.TOO_MANY_REQUESTS)
            return
        request_id = self._next_id
        self._next_id = request_id + 1
        self._adds[request_id] = done
        self._unsent += frames.encode_add(request_id, ledger_id, entry_id, parts, flags, master_key)
        if not self._flush_scheduled:
            self._schedule_flush()

    async def read_entry(
        self, ledger_id: int, entry_id: int, *, fence: bool = False, master_key: bytes = b""
    ) -> EntryRead:
        encode = partial(
            frames.encode_read, ledger_id=ledger_id, entry_id=entry_id, fence=fence, master_key=master_key
        )
        answer: EntryRead = await self._ask(encode, EntryRead)
        return answer

    async def read_entries(
        self, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
    ) -> tuple[BookieStatus, list[bytes]]:
        encode = partial(
            frames.encode_read_run,
            ledger_id=ledger_id,
            first=first,
            count=count,
            max_bytes=min(max_bytes, MAX_RUN_BYTES),
            background=background,
        )
        answer: tuple[BookieStatus, list[bytes]] = await self._ask(encode, _no_run)
        return answer

    async def read_lac(self, ledger_id: int, *, fence: bool = False, master_key: bytes = b"") -> LacRead:
        encode = partial(frames.encode_read_lac, ledger_id=ledger_id, fence=fence, master_key=master_key)
        answer: LacRead = await self._ask(encode, LacRead)
        return answer

    async def write_lac(self, ledger_id: int, lac: int, master_key: bytes = b"") -> BookieStatus:
        encode = partial(frames.encode_write_lac, ledger_id=ledger_id, lac=lac, master_key=master_key)
        answer: BookieStatus = await self._ask(encode, BookieStatus)
        return answer

    async def list_entries(self, ledger_id: int) -> EntryList:
        answer: EntryList = await self._ask(partial(frames.encode_list, ledger_id=ledger_id), EntryList)
        return answer

    async def wait_lac(self, ledger_id: int, above: int, timeout_s: float) -> LacRead:
        """Asked for a part of the request time-out at a time, so that a bookie that is gone is noticed."""
        end = self._loop.time() + timeout_s
        while True:
            left = end - self._loop.time()
            ask_s = max(0.0, min(left, self._settings.request_timeout_s / 2))
            encode = partial(frames.encode_wait_lac, ledger_id=ledger_id, above=above, timeout_s=ask_s)
            answer: LacRead = await self._ask(encode, LacRead)
            early = self._loop.time() < end - left + 0.9 * ask_s  # It had something to tell.
            if early or answer.lac > above or left <= ask_s or answer.status is BookieStatus.TIMEOUT:
                return answer

    async def info(self) -> BookieInfo:
        answer: BookieInfo = await self._ask(frames.encode_info, _no_info)
        return answer

    def reset(self) -> None:
        """Drop the connection with all that waits, which is answered UNREACHABLE; the next request makes another."""
        link = self._link
        if link is not None:
            link.transport.abort()
            self.lost(link, ConnectionAbortedError("given up: it lags behind"))

    async def close(self) -> None:
        """Close the connection; whatever waits is answered UNREACHABLE."""
        self._closed = True
        connecting = self._connecting
        if connecting is not None:
            connecting.cancel()
            await asyncio.wait([connecting])
        if self._link is not None:
            self._link.transport.close()
        self._drop_all()

    def _ask(self, encode: Callable[[int], bytes], failure: _Failure) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._may_send():
            future.set_result(failure(BookieStatus.UNREACHABLE))
            return future
        request_id = self._next_id
        self._next_id = request_id + 1
        self._asked[request_id] = (future, failure)
        self._unsent.append(encode(request_id))
        if not self._flush_scheduled:
            self._schedule_flush()
        return future

    # Sending.

    def _may_send(self) -> bool:
        """Whether there is a connection, or one may be tried."""
        if self._link is not None or self._connecting is not None:
            return True
        if self._closed or self._loop.time() < self._retry_at:
            return False
        self._connecting = self._loop.create_task(self._connect())
        return True

    def _schedule_flush(self) -> None:
        if self._timer is None:
            self._start_timer()
        if self._link is not None:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._link is not None and self._unsent:
            unsent, self._unsent = self._unsent, []
            self._held_bytes = 0
            self._link.transport.writelines(unsent)

    # The connection.

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                address = await self._resolve()
                if address is None:
                    raise ConnectionError("it is not registered")
                _, link = await self._loop.create_connection(partial(_Link, self), address.host, address.port)
                try:
                    await link.welcomed
                except BaseException:
                    link.transport.abort()
                    raise
        except Exception as error:  # Whatever it was, nobody may wait for it.
            self._connecting = None
            self._retry_at = self._loop.time() + self._backoff_s * (0.5 + self._dice.random())
            self._backoff_s = min(self._backoff_s * 2, self._settings.backoff_max_s)
            log.warning("bookie.unreachable", bookie=self.bookie_id, reason=str(error) or "no answer")
            self._drop_all()
        except asyncio.CancelledError:
            self._connecting = None
            raise
        else:
            self._connecting = None
            self._backoff_s = self._settings.backoff_s
            if link.transport.is_closing():
                self._drop_all()
                return
            self._link = link
            link.transport.set_write_buffer_limits(self._settings.unsent_bytes)
            self._flush()

    def lost(self, link: _Link, error: Exception | None) -> None:
        """The connection is gone, and with it every answer it owed."""
        if self._link is link:
            self._link = None
            if not self._closed:
                log.warning(
                    "bookie.connection_lost", bookie=self.bookie_id, reason=str(error or "closed by it")
                )
            self._drop_all()

    def _drop_all(self) -> None:
        self._unsent.clear()
        self._held_bytes = 0
        self._marks.clear()
        adds, self._adds = self._adds, {}
        asked, self._asked = self._asked, {}
        for done in adds.values():
            done(BookieStatus.UNREACHABLE)
        for future, failure in asked.values():
            if not future.done():
                future.set_result(failure(BookieStatus.UNREACHABLE))

    # Answers.

    def answered(self, answer: frames.Answer) -> None:
        if type(answer) is frames.Added:
            adds, status = self._adds, answer.status
            for request_id in answer.request_ids:
                done = adds.pop(request_id, None)
                if done is not None:  # Otherwise it came after its time-out.
                    done(status)
            return
        match answer:
            case frames.EntryAnswer(request_id, read):
                self._resolve_one(request_id, read)
            case frames.RunAnswer(request_id, status, entries):
                self._resolve_one(request_id, (status, entries))
            case frames.LacAnswer(request_id, lac):
                self._resolve_one(request_id, lac)
            case frames.LacWritten(request_id, status):
                self._resolve_one(request_id, status)
            case frames.InfoAnswer(request_id, info):
                self._resolve_one(request_id, info)
            case frames.ListAnswer(request_id, entries):
                self._resolve_one(request_id, entries)

    def _resolve_one(self, request_id: int, result: object) -> None:
        asked = self._asked.pop(request_id, None)
        if asked is not None and not asked[0].done():
            asked[0].set_result(result)

    # Time-outs.

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        late_s = now - self._tick_due
        if late_s > _PAUSED_S:
            # This process stood still. What bookies have answered meanwhile is not read yet: give it time.
            self._marks = deque((at + late_s, below) for at, below in self._marks)
        marks = self._marks
        overdue = 0
        while marks and marks[0][0] <= now:
            overdue = marks.popleft()[1]
        if overdue:
            self._time_out(overdue)
        if not self._adds and not self._asked:
            marks.clear()
            return
        marks.append((now + self._settings.request_timeout_s, self._next_id))
        self._start_timer()

    def _start_timer(self) -> None:
        self._tick_due = self._loop.time() + self._settings.tick_s
        self._timer = self._loop.call_later(self._settings.tick_s, self._tick)

    def _time_out(self, below: int) -> None:
        late = []
        for request_id in self._adds:
            if request_id >= below:
                break
            late.append(request_id)
        for request_id in late:
            done = self._adds.pop(request_id, None)
            if done is not None:
                done(BookieStatus.TIMEOUT)
        for request_id in [each for each in self._asked if each < below]:
            future, failure = self._asked.pop(request_id)
            if not future.done():
                future.set_result(failure(BookieStatus.TIMEOUT))
        if late:
            log.warning("bookie.timed_out", bookie=self.bookie_id, adds=len(late))


class _Link(asyncio.Protocol):
    """One TCP connection. Nothing but the hello is sent before the bookie has said who it is."""

    transport: asyncio.Transport

    def __init__(self, client: BookieClient) -> None:
        self._client = client
        self._decoder = frames.AnswerDecoder()
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.congested = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it.
        self.transport = transport
        transport.write(frames.encode_hello())

    def data_received(self, data: bytes) -> None:
        try:
            for answer in self._decoder.feed(data):
                if self.welcomed.done():
                    self._client.answered(answer)
                else:
                    self._greeted(answer)
        except ProtocolError as error:
            log.warning("bookie.spoke_nonsense", bookie=self._client.bookie_id, reason=str(error))
            self.transport.abort()

    def _greeted(self, answer: frames.Answer) -> None:
        if not isinstance(answer, frames.Welcome):
            raise ProtocolError("the first frame is no welcome")
        if answer.version != frames.PROTOCOL_VERSION:
            self._refuse(f"it speaks version {answer.version} and not {frames.PROTOCOL_VERSION}")
        elif answer.bookie_id != self._client.bookie_id:
            self._refuse(f"at its address answers bookie {answer.bookie_id!r}")
        else:
            self.welcomed.set_result(None)

    def _refuse(self, reason: str) -> None:
        self.welcomed.set_exception(ConnectionError(reason))
        self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_exception(error or ConnectionError("it closed the connection"))
        self._client.lost(self, error)

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = False


def _no_run(status: BookieStatus) -> tuple[BookieStatus, list[bytes]]:
    return status, []


def _no_info(status: BookieStatus) -> BookieInfo:
    return BookieInfo(0, 0, read_only=True)
