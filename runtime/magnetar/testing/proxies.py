"""Proxied sockets: a network whose links can be cut, one way too, delayed, slowed to a trickle, and reset.

with Proxies(name_of_process) as proxies:
    proxies.listen("bookie-1", ("127.9.1.1", 3181), ("127.9.0.1", 3181))
    proxies.spoil(Link("broker-0", "bookie-1"), Weather(cut=True))     # only what the broker sends there
    proxies.clear()

Who has connected is found out by the operating system's table of sockets, so that a server is known to everybody by
one address and still each pair can be cut by itself. A cut loses nothing and says nothing, as where packets are
dropped: what was sent stays on its way until the link is whole again, or reset.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

ANYBODY = ""
_CHUNK = 65536
_QUEUED_CHUNKS = 64
_TRICKLE_TICK_S = 0.05


@dataclass(frozen=True, slots=True)
class Weather:
    """How a link fares."""

    cut: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    """0: as fast as it goes."""


FAIR = Weather()


@dataclass(frozen=True, slots=True)
class Link:
    """What `source` sends to `target`. ANYBODY stands for everybody."""

    source: str
    target: str


class Proxies:
    """The proxies of a cluster: one for each server, all in one thread of their own."""

    def __init__(self, processes: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """`processes`: name and process id of whoever may connect; anybody else is called ANYBODY."""
        self._processes = processes
        self._weather: dict[Link, Weather] = {}
        self._changed = asyncio.Event()
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def listen(self, server: str, at: tuple[str, int], target: tuple[str, int]) -> None:
        """From now on, whoever connects to `at` is talking to `server`, which listens at `target`."""
        asyncio.run_coroutine_threadsafe(self._listen(server, at, target), self._loop).result()

    def spoil(self, link: Link, weather: Weather) -> None:
        """From now on, and for connections that stand already."""
        self._do(self._set, {**self._weather, link: weather})

    def clear(self, *links: Link) -> None:
        """Fair weather again on `links`; on all where none is said."""
        kept = {link: weather for link, weather in self._weather.items() if links and link not in links}
        self._do(self._set, kept)

    def reset(self, one: str, other: str) -> None:
        """Break every connection between the two, with what is on its way."""
        self._do(self._reset, {one, other})

    def _do(self, change: Callable[..., None], *arguments: object) -> None:
        done = threading.Event()

        def act() -> None:
            try:
                change(*arguments)
            finally:
                done.set()

        self._loop.call_soon_threadsafe(act)
        done.wait()

    def _set(self, weather: dict[Link, Weather]) -> None:
        self._weather = weather
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _reset(self, pair: set[str]) -> None:
        for connection in self._connections:
            if pair <= {connection.client, connection.server, ANYBODY} and connection.task is not None:
                connection.task.cancel()

    async def fair(self, source: str, target: str) -> Weather:
        """Wait until the link is not cut; then, how it fares."""
        while True:
            found = [
                weather
                for link, weather in self._weather.items()
                if link.source in (source, ANYBODY) and link.target in (target, ANYBODY)
            ]
            if not any(weather.cut for weather in found):
                return max(found, key=lambda weather: (weather.delay_s, -weather.bytes_per_s), default=FAIR)
            await self._changed.wait()

    async def _listen(self, server: str, at: tuple[str, int], target: tuple[str, int]) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            client = self._client_of(writer)
            connection = _Connection(client, server, writer, asyncio.current_task())
            self._connections.add(connection)
            try:
                await self._carry(connection, reader, writer, target)
            except asyncio.CancelledError:
                connection.abort()  # By `reset`, or the end: nobody else waits for this task.
            finally:
                self._connections.discard(connection)
                connection.abort()

        self._servers.append(await asyncio.start_server(accept, *at, limit=_CHUNK))

    async def _carry(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        target: tuple[str, int],
    ) -> None:
        """Until both sides have ended, or one breaks; then the other one learns it by a break too."""
        await self.fair(connection.client, connection.server)
        try:
            onward, back = await asyncio.open_connection(*target, limit=_CHUNK)
            connection.back = back
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, back, connection.client, connection.server))
                pumps.create_task(self._pump(onward, writer, connection.server, connection.client))
        except* OSError:
            connection.abort()

    async def _pump(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, sender: str, receiver: str
    ) -> None:
        """Pass on what comes, each chunk when its time has come."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_CHUNKS)

        async def read() -> None:
            data = b"-"
            while data:
                try:
                    data = await source.read(_CHUNK)
                except OSError:
                    data = b""
                await queue.put((self._loop.time(), data))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            while True:
                arrived, data = await queue.get()
                weather = await self.fair(sender, receiver)
                if weather.delay_s:
                    await asyncio.sleep(arrived + weather.delay_s - self._loop.time())
                if not data:
                    break
                await self._write(target, data, weather)
            if target.can_write_eof():
                target.write_eof()

    async def _write(self, target: asyncio.StreamWriter, data: bytes, weather: Weather) -> None:
        step = max(1, int(weather.bytes_per_s * _TRICKLE_TICK_S)) if weather.bytes_per_s else len(data)
        for at in range(0, len(data), step):
            target.write(data[at : at + step])
            await target.drain()
            if weather.bytes_per_s:
                await asyncio.sleep(_TRICKLE_TICK_S)

    def _client_of(self, writer: asyncio.StreamWriter) -> str:
        inode = _inode_of(writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        if inode is None:
            return ANYBODY
        wanted = f"socket:[{inode}]"
        for name, pid in self._processes():
            if wanted in _files_of(pid):
                return name
        return ANYBODY

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        tasks = [connection.task for connection in self._connections if connection.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True, eq=False)
class _Connection:
    client: str
    server: str
    writer: asyncio.StreamWriter
    task: asyncio.Task[None] | None
    back: asyncio.StreamWriter | None = None

    def abort(self) -> None:
        for writer in (self.writer, self.back):
            if writer is not None:
                writer.transport.abort()


def _inode_of(own: tuple[str, int], peer: tuple[str, int]) -> int | None:
    """The inode of the socket whose own side is `own`."""
    wanted = [_as_in_table(own), _as_in_table(peer)]
    with open("/proc/net/tcp") as table:
        for line in table:
            fields = line.split()
            if fields[1:3] == wanted:
                return int(fields[9])
    return None


def _as_in_table(address: tuple[str, int]) -> str:
    return f"{int.from_bytes(socket.inet_aton(address[0]), 'little'):08X}:{address[1]:04X}"


def _files_of(pid: int) -> set[str]:
    """What the process has open; nothing once it has ended."""
    directory = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(directory)
    except OSError:
        return set()
    found = set()
    for number in numbers:
        try:
            found.add(os.readlink(f"{directory}/{number}"))
        except OSError:  # Closed since it was listed.
            continue
    return found
