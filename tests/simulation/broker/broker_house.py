"""A real broker over real managed ledgers, with bookies in memory, in virtual time and without sockets.

Its clients are real connections whose frames are heard at the very moment the broker decides to send them, so that a
model can judge each by what holds just then. A broker can die and another take its place.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from magnetar.broker.broker import Broker
from magnetar.broker.connection import Connection
from magnetar.broker.settings import BrokerSettings
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.naming import TopicName
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.resources import Resources
from magnetar.protocol import commands
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.frames import FrameDecoder, encode_command
from magnetar.protocol.pulsar_pb2 import BaseCommand
from magnetar.security.authorizer import AllowAll
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

Heard = Callable[["Line", BaseCommand, bytes | None], None]


class _Nowhere(asyncio.Transport):
    """Where written bytes end: they were heard before."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.closed = False

    def writelines(self, list_of_data: Any) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


class Line(Connection):
    """A client's connection, and the client."""

    def __init__(self, broker: Broker, heard: Heard, version: str = "Pulsar-Java-v4.0.0") -> None:
        super().__init__(broker)
        self._listener = heard
        self._frames = FrameDecoder()
        self.lost: Callable[[], None] = lambda: None
        """Called when the broker closes it."""
        self.deaf = False
        """Whether nobody listens any more: its broker is dead."""
        self.transport = _Nowhere()
        self.connection_made(self.transport)
        self.data_received(commands.connect(version, protocol_version=21))

    def send(self, frame: bytes) -> None:
        self._hear(frame)

    def send_claim(self, frame: bytes) -> None:
        self._hear(frame)

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        self._hear(b"".join(parts))

    def _hear(self, data: bytes) -> None:
        if self.deaf or not self.open:
            return
        for frame in self._frames.feed(data):
            if frame.type == BaseCommand.PING:
                asyncio.get_running_loop().call_soon(self.data_received, commands.pong())
            else:
                self._listener(self, frame.command, None if frame.payload is None else bytes(frame.payload))

    def say(self, data: bytes) -> None:
        if not self.deaf and self.open and not self.transport.closed:
            self.data_received(data)

    def command(self, field: str, **fields: Any) -> None:
        command = BaseCommand(type=BaseCommand.DESCRIPTOR.fields_by_name[field].number)  # type: ignore[arg-type]  # Fields and types have the same numbers.
        getattr(command, field).MergeFrom(type(getattr(command, field))(**fields))
        self.say(encode_command(command))

    def abort(self, reason: str) -> None:
        """The broker gives it up."""
        if self.open:
            self.lost()
        super().abort(reason)

    def close(self, reason: str) -> None:
        if self.open:
            self.lost()
        super().close(reason)

    def cut(self) -> None:
        """The connection is lost."""
        if not self.deaf:
            self.transport.closed = True
            self.connection_lost(None)


class House:
    """What outlives a broker: metadata, bookies, time."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.metadata = MemoryEnsemble()
        self.bookies = {"b0": MemoryBookie("b0")}
        self.settings = BrokerSettings(failover_delay_s=0.0, ledger_min_age_s=0.0)
        self.defaults = replace(PolicyDefaults(), ensemble_size=1, write_quorum=1, ack_quorum=1)
        self.delay_s = 0.002
        self.lines: list[Line] = []
        self.request_ids = itertools.count(1)
        self._ways: MemoryBookies | None = None
        self._factory: ManagedLedgerFactory | None = None

    async def start(self) -> Broker:
        """A broker, with a session of its own."""
        self._store = self.metadata.connect(self.clock)
        self._ways = MemoryBookies(self.bookies, self.dice, BookieFaults(delay_s=self.delay_s))
        client = LedgerClient(self._store, self._ways, clock=self.clock, random=self.dice)
        self._factory = ManagedLedgerFactory(
            self._store, client, clock=self.clock, cache=EntryCache(1 << 20), random=self.dice
        )
        resources = Resources(self._store, self.defaults)
        self.broker = Broker(
            self.settings,
            metadata=self._store,
            ledgers=self._factory,
            resources=resources,
            authorizer=AllowAll(),
            clock=self.clock,
            random=self.dice,
        )
        await resources.bootstrap("standalone", "http://127.0.0.1:8080", "pulsar://127.0.0.1:6650")
        return self.broker

    async def crash(self) -> Broker:
        """The broker is gone from one moment to the next; another takes over."""
        assert self._ways is not None
        for bookie in self.bookies:
            self._ways.connection(bookie).cut = True
        for line in self.lines:
            line.deaf = True
        self.lines.clear()
        self._store.expire()
        return await self.start()

    async def unload(self, name: TopicName) -> None:
        await self.broker.topics.unload(name)

    def line(self, heard: Heard) -> Line:
        line = Line(self.broker, heard)
        self.lines.append(line)
        return line

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)
