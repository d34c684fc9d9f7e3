"""The TCP side of a bookie connection, against a server that answers as a test wants."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.ledger import bookie_client
from magnetar.ledger.bookie_client import BookieClient, BookieClientSettings
from magnetar.protocol import bookie_frames as frames
from magnetar.protocol.bookie import AddFlags, BookieAddress, BookieStatus, EntryRead, LacRead
from magnetar.protocol.ledger_entry import encode_entry_header

Answer = Callable[[frames.Request], list[bytes]]


def entry(entry_id: int, payload: bytes = b"payload") -> tuple[bytes, bytes]:
    return encode_entry_header(1, entry_id, entry_id - 1, len(payload), (payload,)), payload


class ScriptedServer:
    """Answers each request with what `answer` returns for it; by default, as a bookie would."""

    def __init__(self) -> None:
        self.bookie_id = "b1"
        self.requests: list[frames.Request] = []
        self.connections = 0
        self.answer: Answer = self.obliging
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        decoder = frames.RequestDecoder()
        while data := await reader.read(1 << 16):
            for request in decoder.feed(data):
                if isinstance(request, frames.Hello):
                    writer.write(frames.encode_welcome(self.bookie_id))
                    continue
                self.requests.append(request)
                for answer in self.answer(request):
                    writer.write(answer)

    def obliging(self, request: frames.Request) -> list[bytes]:
        match request:
            case frames.AddRequest(request_id):
                return [frames.encode_added(BookieStatus.OK, [request_id])]
            case frames.ReadRequest(request_id, _, entry_id):
                read = EntryRead(BookieStatus.OK, b"".join(entry(entry_id)), 4)
                return [b"".join(frames.encode_entry_answer(request_id, read))]
            case frames.ReadRunRequest(request_id, _, first, count):
                run = [b"".join(entry(each)) for each in range(first, first + count)]
                return [b"".join(frames.encode_run_answer(request_id, BookieStatus.OK, run))]
            case frames.ReadLacRequest(request_id):
                lac = LacRead(BookieStatus.OK, 3, 4, b"".join(entry(4)))
                return [b"".join(frames.encode_lac_answer(request_id, lac))]
            case frames.WriteLacRequest(request_id):
                return [frames.encode_lac_written(request_id, BookieStatus.OK)]
        return []


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[BookieClient]:
    async def resolve() -> BookieAddress:
        return BookieAddress(f"127.0.0.1:{server.port}", "life")

    client = BookieClient(
        "b1",
        resolve,
        dice=random.Random(1),
        settings=BookieClientSettings(
            request_timeout_s=0.2, connect_timeout_s=1.0, backoff_s=0.02, backoff_max_s=0.05, tick_s=0.02
        ),
    )
    yield client
    await client.close()


async def add(client: BookieClient, entry_id: int) -> BookieStatus:
    done: asyncio.Future[BookieStatus] = asyncio.get_running_loop().create_future()
    client.add_entry(1, entry_id, entry(entry_id), AddFlags.NONE, b"key", done.set_result)
    assert not done.done(), "answered from within the call"
    async with asyncio.timeout(10):
        return await done


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def reached(client: BookieClient, entry_id: int) -> None:
    """Add until it succeeds: the client waits a little between its attempts to connect."""
    async with asyncio.timeout(10):
        while await add(client, entry_id) is not BookieStatus.OK:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_requests_of_every_kind_are_answered(client: BookieClient, server: ScriptedServer) -> None:
    assert await asyncio.gather(*(add(client, number) for number in range(100))) == [BookieStatus.OK] * 100
    assert [each.entry_id for each in server.requests if isinstance(each, frames.AddRequest)] == list(
        range(100)
    )
    read = await client.read_entry(1, 7, fence=True, master_key=b"key")
    assert (read.status, read.entry, read.lac) == (BookieStatus.OK, b"".join(entry(7)), 4)
    asked = server.requests[-1]
    assert isinstance(asked, frames.ReadRequest)
    assert (asked.fence, asked.master_key) == (True, b"key")
    status, run = await client.read_entries(1, 5, 3, 1000)
    assert (status, run) == (BookieStatus.OK, [b"".join(entry(each)) for each in (5, 6, 7)])
    assert (await client.read_lac(1)).lac == 3
    assert await client.write_lac(1, 3) is BookieStatus.OK
    assert server.connections == 1


async def test_answers_may_come_in_any_order_and_many_in_one(
    client: BookieClient, server: ScriptedServer
) -> None:
    held: list[int] = []

    def hold(request: frames.Request) -> list[bytes]:
        assert isinstance(request, frames.AddRequest)
        held.append(request.request_id)
        return [frames.encode_added(BookieStatus.OK, held[::-1])] if len(held) == 10 else []

    server.answer = hold
    assert await asyncio.gather(*(add(client, number) for number in range(10))) == [BookieStatus.OK] * 10


async def test_a_process_that_stood_still_reads_what_was_answered_before_it_gives_up(
    client: BookieClient, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookie_client, "_PAUSED_S", 0.1)
    held: list[int] = []

    def both_at_once(request: frames.Request) -> list[bytes]:
        assert isinstance(request, frames.AddRequest)
        held.append(request.request_id)
        return [frames.encode_added(BookieStatus.OK, held)] if len(held) == 2 else []

    assert await add(client, 7) is BookieStatus.OK
    server.answer = both_at_once
    first = asyncio.ensure_future(add(client, 0))
    await asyncio.sleep(0.1)
    second = asyncio.ensure_future(add(client, 1))
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251  # It stands still, for longer than a request may take.
    assert [await first, await second] == [BookieStatus.OK] * 2


async def test_silence_becomes_a_timeout_and_a_late_answer_nothing(
    client: BookieClient, server: ScriptedServer
) -> None:
    server.answer = lambda request: []
    assert set(await asyncio.gather(add(client, 0), add(client, 1))) == {BookieStatus.TIMEOUT}
    assert (await client.read_entry(1, 0)).status is BookieStatus.TIMEOUT
    late = [each.request_id for each in server.requests if isinstance(each, frames.AddRequest)]

    def belated(request: frames.Request) -> list[bytes]:
        return [frames.encode_added(BookieStatus.OK, late), *server.obliging(request)]

    server.answer = belated
    assert await add(client, 2) is BookieStatus.OK


async def test_a_lost_connection_answers_all_and_is_made_anew(
    client: BookieClient, server: ScriptedServer
) -> None:
    assert await add(client, 0) is BookieStatus.OK
    server.answer = lambda request: []
    waiting = [asyncio.create_task(add(client, number)) for number in range(5)]
    reading = asyncio.create_task(client.read_entry(1, 1))
    await until(lambda: len(server.requests) == 7)
    server.hang_up()
    assert await asyncio.gather(*waiting) == [BookieStatus.UNREACHABLE] * 5
    assert (await reading).status is BookieStatus.UNREACHABLE
    server.answer = server.obliging
    await reached(client, 9)
    assert server.connections == 2


async def test_while_it_cannot_be_reached_nobody_waits(client: BookieClient, server: ScriptedServer) -> None:
    await server.stop()
    assert await add(client, 0) is BookieStatus.UNREACHABLE
    assert await add(client, 1) is BookieStatus.UNREACHABLE
    assert (await client.info()).read_only
    assert await client.write_lac(1, 1) is BookieStatus.UNREACHABLE
    await server.start()
    await reached(client, 2)


async def test_another_bookie_at_the_address_gets_nothing(
    client: BookieClient, server: ScriptedServer
) -> None:
    server.bookie_id = "somebody-else"
    assert await add(client, 0) is BookieStatus.UNREACHABLE
    assert server.requests == []


async def test_nonsense_from_a_bookie_ends_the_connection(
    client: BookieClient, server: ScriptedServer
) -> None:
    server.answer = lambda request: [b"\xff\xff\xff\xff nonsense"]
    assert await add(client, 0) is BookieStatus.UNREACHABLE


async def test_closing_answers_whoever_waits(client: BookieClient, server: ScriptedServer) -> None:
    server.answer = lambda request: []
    waiting = asyncio.create_task(add(client, 0))
    await until(lambda: bool(server.requests))
    await client.close()
    assert await waiting is BookieStatus.UNREACHABLE
    assert await add(client, 1) is BookieStatus.UNREACHABLE


async def test_a_cancelled_reader_harms_no_other(client: BookieClient, server: ScriptedServer) -> None:
    reading = asyncio.create_task(client.read_entry(1, 1))
    await asyncio.sleep(0)
    reading.cancel()
    assert (await client.read_entry(1, 2)).status is BookieStatus.OK
