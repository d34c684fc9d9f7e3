"""The bookie behind a socket: pipelined, bounded, and unimpressed by rubbish."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server import BookieServer
from magnetar.protocol import bookie_frames as frames
from magnetar.protocol.bookie import AddFlags, BookieStatus
from magnetar.protocol.buffers import Buffer
from tests.unit.bookie.disks import GatedDisk
from tests.unit.bookie.workbench import KEY, KIB, add_many, entry, make_bookie, running, until, whole

OK = BookieStatus.OK


class Client:
    """A client that sends what it is told to, byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._decoder = frames.AnswerDecoder()
        self._answers: list[frames.Answer] = []

    def send(self, *buffers: Buffer) -> None:
        self.writer.writelines(buffers)

    def add(self, request_id: int, ledger_id: int, entry_id: int, payload: bytes = b"payload") -> None:
        self.send(
            *frames.encode_add(
                request_id, ledger_id, entry_id, entry(ledger_id, entry_id, payload), AddFlags.NONE, KEY
            )
        )

    async def answer(self) -> frames.Answer:
        async with asyncio.timeout(10):
            while not self._answers:
                data = await self._reader.read(65536)
                if not data:
                    raise EOFError
                self._answers += self._decoder.feed(data)
        return self._answers.pop(0)

    async def added(self, count: int) -> dict[int, BookieStatus]:
        """The answers to `count` adds."""
        statuses: dict[int, BookieStatus] = {}
        while len(statuses) < count:
            answer = await self.answer()
            assert isinstance(answer, frames.Added)
            statuses.update(dict.fromkeys(answer.request_ids, answer.status))
        return statuses

    async def closed(self) -> bool:
        async with asyncio.timeout(10):
            try:
                while await self._reader.read(65536):
                    pass
            except ConnectionError:
                return True
        return True


class Service:
    def __init__(self, bookie: Bookie, server: BookieServer, port: int) -> None:
        self.bookie = bookie
        self.server = server
        self.port = port
        self._clients: list[Client] = []

    async def client(self, *, hello: bool = True) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self._clients.append(client)
        if hello:
            client.send(frames.encode_hello())
            assert await client.answer() == frames.Welcome(frames.PROTOCOL_VERSION, "b1")
        return client

    async def works(self) -> bool:
        client = await self.client()
        client.add(1, 77, 0)
        return await client.added(1) == {1: OK}

    def hang_up(self) -> None:
        for client in self._clients:
            client.writer.close()


@asynccontextmanager
async def serving(directory: Path, *, disk: GatedDisk | None = None, **limits: int) -> AsyncIterator[Service]:
    async with running(directory, disk=disk) as bookie:
        server = BookieServer(bookie, "127.0.0.1", 0, **limits)
        service = Service(bookie, server, await server.start())
        try:
            yield service
        finally:
            if disk is not None:
                disk.open_gate()
            service.hang_up()
            await server.stop(1)


async def test_requests_are_pipelined_and_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        client = await service.client()
        for entry_id in range(100):
            client.add(entry_id, 1, entry_id, b"x" * 300)
        assert await client.added(100) == dict.fromkeys(range(100), OK)
        client.send(
            frames.encode_read(1, 1, 5, fence=False, master_key=b""),
            frames.encode_read_run(2, 1, 90, 100, 1 << 20),
            frames.encode_read_lac(3, 1, fence=False, master_key=b""),
            frames.encode_write_lac(4, 1, 99, KEY),
            frames.encode_info(5),
            frames.encode_read(6, 9, 0, fence=False, master_key=b""),
        )
        answers = {answer.request_id: answer for answer in [await client.answer() for _ in range(6)]}  # type: ignore[union-attr]
        assert answers[1].read.entry == whole(1, 5, b"x" * 300)  # type: ignore[union-attr]
        assert answers[2].entries == [whole(1, e, b"x" * 300) for e in range(90, 100)]  # type: ignore[union-attr]
        assert answers[3].read.last_entry == 99  # type: ignore[union-attr]
        assert answers[4].status is OK  # type: ignore[union-attr]
        assert answers[5].info.free_bytes > 0  # type: ignore[union-attr]
        assert answers[6].read.status is BookieStatus.NO_SUCH_LEDGER  # type: ignore[union-attr]


async def test_adds_that_end_together_share_an_answer(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with serving(tmp_path, disk=disk) as service:
        client = await service.client()
        disk.close_gate()
        client.add(0, 1, 0)
        await asyncio.to_thread(disk.waiting.wait, 10)
        for entry_id in range(1, 50):
            client.add(entry_id, 1, entry_id)
        await until(lambda: service.server.in_flight >= 50 * 43)
        disk.open_gate()
        first, second = await client.answer(), await client.answer()
        assert isinstance(first, frames.Added)
        assert isinstance(second, frames.Added)
        assert first.request_ids == (0,)
        assert second.request_ids == tuple(range(1, 50))


async def test_a_fence_over_the_wire(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        client = await service.client()
        client.send(frames.encode_read_lac(1, 1, fence=True, master_key=KEY))
        answer = await client.answer()
        assert isinstance(answer, frames.LacAnswer)
        assert answer.read.status is OK
        client.add(2, 1, 0)
        assert await client.added(1) == {2: BookieStatus.FENCED}


def rubbish() -> list[tuple[str, Sequence[Buffer]]]:
    source = random.Random(11)
    add = b"".join(frames.encode_add(1, 1, 0, entry(1, 0), AddFlags.NONE, KEY))
    return [
        ("no hello", [add]),
        ("two hellos", [frames.encode_hello(), frames.encode_hello()]),
        ("http", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]),
        ("zeros", [bytes(1000)]),
        ("too large", [frames.encode_hello(), b"\x7f\xff\xff\xff", bytes(20)]),
        ("an answer", [frames.encode_hello(), frames.encode_added(OK, [1])]),
        ("unknown opcode", [frames.encode_hello(), b"\x00\x00\x00\x09\x66" + bytes(8)]),
        ("short fields", [frames.encode_hello(), b"\x00\x00\x00\x0a\x02" + bytes(9)]),
        ("lying key length", [frames.encode_hello(), add[:30] + b"\xff" + add[31:]]),
        ("unknown flags", [frames.encode_hello(), add[:29] + b"\xf0" + add[30:]]),
        ("noise", [frames.encode_hello(), source.randbytes(5000)]),
        ("another version", [frames.encode_hello(200)]),
        ("another protocol", [frames.encode_hello().replace(b"MGBK", b"XXXX")]),
    ]


@pytest.mark.parametrize(("name", "buffers"), rubbish(), ids=[name for name, _ in rubbish()])
async def test_rubbish_closes_the_connection_with_a_reason(
    tmp_path: Path, name: str, buffers: Sequence[Buffer], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as service:
        client = await service.client(hello=False)
        client.send(*buffers)
        assert await client.closed()
        reasons = [r.__dict__["fields"]["reason"] for r in caplog.records if r.message == "connection.closed"]
        assert len(reasons) == 1
        assert reasons[0]
        assert await service.works(), "the process lives"


async def test_a_silent_connection_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookie.server._HELLO_WAIT_S", 0.02)
    async with serving(tmp_path) as service:
        assert await (await service.client(hello=False)).closed()


async def test_a_heavy_connection_is_not_read_from(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with serving(tmp_path, disk=disk, connection_bytes_max=64 * KIB) as service:
        client = await service.client()
        disk.close_gate()
        for entry_id in range(2000):
            client.add(entry_id, 1, entry_id, b"x" * 4 * KIB)
        await asyncio.to_thread(disk.waiting.wait, 10)
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert service.server.in_flight < 64 * KIB + 512 * KIB, (
            "a limit, and what one read of the socket brings"
        )
        disk.open_gate()
        assert await client.added(2000) == dict.fromkeys(range(2000), OK)
        assert service.server.in_flight == 0


async def test_all_connections_together_are_bounded(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with serving(tmp_path, disk=disk, server_bytes_max=128 * KIB) as service:
        clients = [await service.client() for _ in range(4)]
        disk.close_gate()
        for number, client in enumerate(clients):
            for entry_id in range(500):
                client.add(entry_id, number, entry_id, b"x" * 4 * KIB)
        for _ in range(50):
            await asyncio.sleep(0.002)
        assert service.server.in_flight < 128 * KIB + 4 * 512 * KIB
        disk.open_gate()
        for client in clients:
            assert await client.added(500) == dict.fromkeys(range(500), OK)


async def test_a_client_that_does_not_read_is_not_read_from(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        await add_many(service.bookie, 1, range(20), b"x" * 50 * KIB)
        client = await service.client()
        for request_id in range(80):
            client.send(frames.encode_read_run(request_id, 1, 0, 100, 1 << 20))
        (connection,) = service.server._connections
        await until(lambda: connection._paused)
        for _ in range(80):
            answer = await client.answer()
            assert isinstance(answer, frames.RunAnswer)
            assert len(answer.entries) == 20
        assert service.server.in_flight == 0


async def test_a_connection_that_goes_away_cancels_nothing(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with serving(tmp_path, disk=disk) as service:
        client = await service.client()
        disk.close_gate()
        client.add(1, 1, 0)
        client.send(frames.encode_read_lac(2, 2, fence=True, master_key=KEY))
        await asyncio.to_thread(disk.waiting.wait, 10)
        client.writer.transport.abort()
        await until(lambda: not service.server.connections)
        disk.open_gate()
        other = await service.client()
        other.send(frames.encode_read(1, 1, 0, fence=False, master_key=b""))
        answer = await other.answer()
        assert isinstance(answer, frames.EntryAnswer)
        assert answer.read.status is OK
        other.add(2, 2, 0)
        assert await other.added(1) == {2: BookieStatus.FENCED}


async def test_stopping_answers_what_was_asked(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with serving(tmp_path, disk=disk) as service:
        client = await service.client()
        disk.close_gate()
        client.add(1, 1, 0)
        await asyncio.to_thread(disk.waiting.wait, 10)
        stopping = asyncio.ensure_future(service.server.stop())
        await asyncio.sleep(0)
        disk.open_gate()
        assert await client.added(1) == {1: OK}
        await stopping
        assert await client.closed()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", service.port)


async def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as service:
        with pytest.raises(OSError):
            await BookieServer(make_bookie(tmp_path), "127.0.0.1", service.port).start()
