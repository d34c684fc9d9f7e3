"""Frames no honest client sends, made from the protocol's own description, and the broker they are thrown at.

`python -m tests.property.broker.hostile_frames --frames 1000000 [--seed N]` runs for long. A life is one connection: it is
brought into some state, hears valid, wild and mangled frames, and must at every moment be either answering or closed for a
reason that was logged; somebody else's connection must notice nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import random
import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from magnetar.broker.broker import Broker
from magnetar.broker.connection import Connection
from magnetar.broker.handlers.routes import ROUTES
from magnetar.broker.settings import BrokerSettings
from magnetar.environment.clock import SystemClock
from magnetar.metadata.opening import open_store
from magnetar.policies.resources import Resources
from magnetar.protocol import commands
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, MessageMetadata
from magnetar.security.authorizer import AllowAll
from tests.unit.broker.memory_log import MemoryLogs

TOPICS: Final = tuple(f"persistent://public/default/fuzz-{number}" for number in range(4))
FOR_BROKERS: Final = [field for field in BaseCommand.DESCRIPTOR.fields if field.number in ROUTES]
FOR_CLIENTS: Final = [
    field for field in BaseCommand.DESCRIPTOR.fields if field.message_type and field.number not in ROUTES
]
STATES: Final = ("new", "connected", "producing", "consuming", "both", "creating", "closed")
_NUMBERS: Final = (0, 1, 2, 3, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS: Final = (
    *TOPICS,
    "",
    "public/default",
    "s",
    "x" * 300,
    "persistent://a/b/c/d",
    "non-persistent://public/default/n",
    f"{TOPICS[0]}-partition-0",
    "ключ",
    ".*",
    "(" * 60,
    "\x00",
)
_BYTES: Final = (b"", b"\x00", b"\xff" * 8, b"{}", b"\x80" * 40)


class Wire(asyncio.Transport):
    """A transport that remembers what was written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written: list[bytes] = []
        self.closed = False

    def writelines(self, list_of_data: Any) -> None:
        self.written.extend(bytes(part) for part in list_of_data)

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


class Line:
    """A connection without a socket."""

    def __init__(self, broker: Broker, *, connect: bool = True) -> None:
        self.wire = Wire()
        self.connection = Connection(broker)
        self.connection.connection_made(self.wire)
        self.heard: list[BaseCommand] = []
        self._decoder = FrameDecoder()
        if connect:
            self.say(commands.connect("fuzz", protocol_version=21))

    def say(self, data: bytes) -> None:
        if not self.wire.closed:
            self.connection.data_received(data)

    def listen(self) -> None:
        """Take what was written: whole frames, each of them one that a client can read."""
        written, self.wire.written = b"".join(self.wire.written), []
        self.heard += [frame.command for frame in self._decoder.feed(written)]
        assert self._decoder.pending_bytes == 0, "half a frame was sent"

    @property
    def waits_for_more(self) -> bool:
        """Whether a frame was cut short, and what follows is taken for its rest."""
        return self.connection._decoder.pending_bytes > 0

    def answered(self) -> set[int]:
        """The ids of all requests that have their answer."""
        self.listen()
        found: set[int] = set()
        for command in self.heard:
            for _, body in command.ListFields()[1:]:
                if "request_id" in body.DESCRIPTOR.fields_by_name:
                    found.add(body.request_id)
        return found

    def end(self) -> None:
        self.connection.connection_lost(None)


# Frames.


def frame_of(field: Any, body: bytes, message: bytes = b"") -> bytes:
    """The frame of a command whose message is `body`, whatever that holds."""
    number = field.number
    tag = _varint(number << 3 | 2)
    command = b"\x08" + _varint(number) + tag + _varint(len(body)) + body
    return (
        (len(command) + 4 + len(message)).to_bytes(4, "big")
        + len(command).to_bytes(4, "big")
        + command
        + message
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def value_for(field: Any, dice: random.Random, *, wild: bool) -> Any:
    """Something the field can hold: plausible, or at the edge of what it can."""
    number = dice.choice(_NUMBERS) if wild else dice.randrange(3)
    if field.enum_type is not None:
        return dice.choice(list(field.enum_type.values_by_number))
    if field.cpp_type == field.CPPTYPE_UINT32:
        return number % 2**32
    if field.cpp_type == field.CPPTYPE_INT32:
        return number % 2**32 - 2**31 if wild else number
    if field.cpp_type == field.CPPTYPE_INT64:
        return number % 2**64 - 2**63 if wild else number
    if field.cpp_type == field.CPPTYPE_UINT64:
        return number
    if field.cpp_type == field.CPPTYPE_BOOL:
        return dice.random() < 0.5
    if field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return dice.random()
    if field.type == field.TYPE_BYTES:
        return dice.choice(_BYTES) if wild else b"x"
    if not wild:
        return dice.choice(TOPICS) if field.name == "topic" else "s"
    return dice.choice(_TEXTS) if dice.random() < 0.98 else "y" * 100_000


def without_field(data: bytes, number: int) -> bytes:
    """An encoded message with one of its fields left out."""
    out, at = bytearray(), 0
    while at < len(data):
        start = at
        tag, at = _read_varint(data, at)
        match tag & 7:
            case 0:
                _, at = _read_varint(data, at)
            case 1:
                at += 8
            case 5:
                at += 4
            case _:
                size, at = _read_varint(data, at)
                at += size
        if tag >> 3 != number:
            out += data[start:at]
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while data[at] & 128:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
    return value | data[at] << shift, at + 1


def fill(message: Any, dice: random.Random, *, wild: bool, depth: int = 0) -> None:
    """Give a message its required fields, and some of the others."""
    for field in message.DESCRIPTOR.fields:
        if not field.is_required and dice.random() < 0.6:
            continue
        if field.message_type is not None:
            if depth < 3:
                target = getattr(message, field.name)
                target = target.add() if field.is_repeated else target
                target.SetInParent()
                fill(target, dice, wild=wild, depth=depth + 1)
            continue
        value = value_for(field, dice, wild=wild)
        if field.is_repeated:
            times = dice.choice((1, 2, 50)) if wild else 1
            getattr(message, field.name).extend([value] * times)
        else:
            setattr(message, field.name, value)


def command_frame(
    field: Any, dice: random.Random, request_id: int, *, wild: bool = False, without: str = ""
) -> bytes:
    """A command with a request id of its own, speaking of producer or consumer 1, or of strangers."""
    body = getattr(BaseCommand(), field.name)
    fill(body, dice, wild=wild)
    names = body.DESCRIPTOR.fields_by_name
    if "request_id" in names:
        body.request_id = request_id
    for name in ("producer_id", "consumer_id", "watcher_id"):
        if name in names and dice.random() < 0.9:
            setattr(body, name, 1)
    if field.name == "flow" and not wild:
        body.messagePermits = 10
    data = body.SerializeToString()
    if without:
        data = without_field(data, names[without].number)
    return frame_of(field, data, message_bytes(dice, wild) if field.name == "send" else b"")


def message_bytes(dice: random.Random, wild: bool) -> bytes:
    """What follows a SEND."""
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if wild and dice.random() < 0.5:
        fill(metadata, dice, wild=True)
    message = build_message(metadata, dice.randbytes(20))
    return message[: dice.randrange(len(message))] if wild and dice.random() < 0.1 else message


def mangled(frame: bytes, dice: random.Random) -> bytes:
    """A frame with bytes flipped, dropped, doubled, or lengths that lie."""
    data = bytearray(frame)
    for _ in range(dice.randrange(1, 4)):
        at = dice.randrange(len(data)) if data else 0
        match dice.randrange(6):
            case 0 if data:
                data[at] ^= 1 << dice.randrange(8)
            case 1:
                del data[at : at + dice.randrange(1, 5)]
            case 2:
                data[at:at] = dice.randbytes(dice.randrange(1, 5))
            case 3:
                data[:4] = dice.choice((0, 3, 4, 2**20, 2**31, 2**32 - 1)).to_bytes(4, "big")
            case 4:
                data[4:8] = dice.choice((0, 1, len(data), 2**32 - 1)).to_bytes(4, "big")
            case _ if data:
                data[at] = dice.choice((0, 1, 127, 128, 255))
    return bytes(data)


def each_bad_field(field: Any, dice: random.Random, request_ids: Callable[[], int]) -> list[bytes]:
    """Every field of a command missing, at its edges, of the wrong wire type, and many times over."""
    frames = [frame_of(field, b""), frame_of(field, b"\xff" * 12)]
    body = getattr(BaseCommand(), field.name)
    for each in body.DESCRIPTOR.fields:
        frames.append(command_frame(field, dice, request_ids(), without=each.name))
        whole = getattr(BaseCommand(), field.name)
        fill(whole, dice, wild=False)
        if "request_id" in whole.DESCRIPTOR.fields_by_name:
            whole.request_id = request_ids()
        plain = whole.SerializeToString()
        for wire_type in (0, 1, 2, 5):
            content = {0: b"\x01", 1: b"\x01" * 8, 2: b"\x02\x08\x01", 5: b"\x01" * 4}[wire_type]
            frames.append(frame_of(field, plain + _varint(each.number << 3 | wire_type) + content))
        if each.enum_type is not None:
            frames.append(frame_of(field, plain + _varint(each.number << 3) + _varint(250)))
        if each.cpp_type in (
            each.CPPTYPE_INT32,
            each.CPPTYPE_INT64,
            each.CPPTYPE_UINT32,
            each.CPPTYPE_UINT64,
        ):
            frames += [
                frame_of(field, plain + _varint(each.number << 3) + _varint(number)) for number in _NUMBERS
            ]
        if each.type in (each.TYPE_STRING, each.TYPE_BYTES):
            frames += [
                frame_of(field, plain + _varint(each.number << 3 | 2) + _varint(len(text)) + text)
                for text in (b"", b"\xff\xfe", b"\x00" * 3, b"z" * 70_000)
            ]
        if each.is_repeated:
            item = _varint(each.number << 3 | 2) + b"\x00"
            frames.append(frame_of(field, plain + item * 3000))
    return frames


# Lives.


class Observed(logging.Handler):
    """What the broker logs: reasons for closing, and what nobody expected."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.closed = 0
        self.surprises: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message == "connection.closed_by_broker":
            assert getattr(record, "fields", {}).get("reason"), "closed without a reason"
            self.closed += 1
        if record.levelno >= logging.ERROR:
            self.surprises.append(f"{message} {getattr(record, 'fields', '')} {record.exc_info}")


class Arena:
    """A broker, and somebody who only wants to be left alone."""

    def __init__(self) -> None:
        self.observed = Observed()
        self.request_ids = itertools.count(1)
        self.frames = 0
        self.answers = 0
        self.closings = 0

    async def open(self) -> None:
        self._store = await open_store("memory:")
        self._resources = Resources(self._store)
        self.broker = Broker(
            BrokerSettings(failover_delay_s=0.0, liveness_check_timeout_s=0.01, lookup_wait_s=0.05),
            metadata=self._store,
            ledgers=MemoryLogs(),  # type: ignore[arg-type]  # It does what the contract says.
            resources=self._resources,
            authorizer=AllowAll(),
            clock=SystemClock(),
            random=random.Random(1),
        )
        await self._resources.bootstrap("standalone", "http://127.0.0.1:8080", "pulsar://127.0.0.1:6650")
        logging.getLogger("magnetar").addHandler(self.observed)
        self.bystander = Line(self.broker)

    async def close(self) -> None:
        logging.getLogger("magnetar").removeHandler(self.observed)
        self.bystander.end()
        await self.broker.topics.close_all()
        self.broker.context.lease.close()
        self._resources.close()
        await self._store.close()

    async def settle(self, turns: int = 8) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def line(self, state: str) -> Line:
        """A connection in some state."""
        line = Line(self.broker, connect=state != "new")
        topic = TOPICS[next(self.request_ids) % len(TOPICS)]
        if state in ("producing", "both", "creating", "closed"):
            line.say(commands.producer(topic, 1, next(self.request_ids)))
        if state in ("consuming", "both", "creating", "closed"):
            line.say(commands.subscribe(topic, "s", CommandSubscribe.Shared, 1, next(self.request_ids)))
        if state != "creating":
            await self.settle(20)
        if state == "closed":
            line.say(commands.close_producer(1, next(self.request_ids)))
            line.say(commands.close_consumer(1, next(self.request_ids)))
            await self.settle()
        return line

    async def judge(self, line: Line, closings_before: int) -> None:
        """It answers, or it is closed and the log says why; the bystander is answered in any case."""
        if line.wire.closed:
            self.closings += 1
            assert self.observed.closed > closings_before, "closed without a word in the log"
        elif line.connection.connected and not line.waits_for_more:
            line.listen()
            line.heard.clear()
            line.say(commands.ping())
            await self.settle(2)
            line.listen()
            assert line.heard, "neither answering nor closed"
        line.end()
        self.bystander.say(commands.ping())
        await self.settle(2)
        self.bystander.listen()
        assert self.bystander.heard, "the bystander is not answered any more"
        assert self.bystander.heard[-1].type == BaseCommand.PONG
        self.bystander.heard.clear()
        assert not self.observed.surprises, self.observed.surprises

    async def until_answered(self, line: Line, wanted: set[int]) -> None:
        """All requests have their answers, unless the connection is closed."""
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            await self.settle(30)
            if line.wire.closed or wanted <= line.answered():
                self.answers += len(wanted)
                return
            await asyncio.sleep(0.005)
        raise AssertionError(f"never answered: {wanted - line.answered()}")

    async def life(self, dice: random.Random, frames: int = 25) -> None:
        """One connection, from a state it may be in to its end."""
        line = await self.line(dice.choice(STATES))
        closed = self.observed.closed
        for _ in range(frames):
            if line.wire.closed:
                break
            self.frames += 1
            fields = FOR_BROKERS if dice.random() < 0.997 else FOR_CLIENTS
            field = dice.choice(fields)
            if field.name in ("connect", "authResponse") and dice.random() < 0.97:
                continue  # They end a life.
            frame = command_frame(field, dice, next(self.request_ids), wild=dice.random() < 0.6)
            line.say(mangled(frame, dice) if dice.random() < 0.03 else frame)
            if dice.random() < 0.2:
                await self.settle(dice.randrange(6))
        await self.settle()
        await self.judge(line, closed)

    async def at_rest(self) -> None:
        """Nothing is left of those that are gone."""
        for _ in range(400):
            context = self.broker.context
            if not context.budget.used_bytes and self.broker.connections == {self.bystander.connection}:
                break
            await asyncio.sleep(0.005)
        assert self.broker.context.budget.used_bytes == 0, (
            "memory for messages on their way was not given back"
        )
        assert self.broker.connections == {self.bystander.connection}, "connections are left over"
        topics = self.broker.topics.loaded()
        consumers = [
            (str(topic.name), each.name, consumer.peer.client_version)
            for topic in topics
            for each in topic.subscriptions.values()
            for consumer in each.consumers
        ]
        assert not consumers, f"consumers are left over: {consumers[:3]}"
        producers = [
            (str(topic.name), each.name, each.mode.name, each.identifier, each.peer.client_version)
            for topic in topics
            for each in topic.producers.values()
        ]
        assert not producers, f"producers are left over: {producers[:3]}"


async def run(frames: int, seed: int, lives_of_an_arena: int = 400) -> Arena:
    """Throw so many frames; a new broker now and then, for topics full of rubbish are slow."""
    dice = random.Random(seed)
    thrown = 0
    while True:
        arena = Arena()
        await arena.open()
        try:
            for number in range(lives_of_an_arena):
                try:
                    await arena.life(dice)
                except BaseException:
                    sys.stderr.write(f"seed {seed}, life {number} after {thrown + arena.frames} frames\n")
                    raise
                if thrown + arena.frames >= frames:
                    break
            await arena.at_rest()
        finally:
            await arena.close()
        thrown += arena.frames
        if thrown >= frames:
            arena.frames = thrown
            return arena


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Throw hostile frames at a broker.")
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    logging.getLogger("magnetar").setLevel(logging.INFO)
    logging.getLogger("magnetar").propagate = False
    logging.lastResort = None
    began, thrown, part = time.monotonic(), 0, 50_000
    while thrown < chosen.frames:
        arena = asyncio.run(run(min(part, chosen.frames - thrown), chosen.seed + thrown))
        thrown += arena.frames
        gc.collect()
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        rate = thrown / (time.monotonic() - began)
        sys.stdout.write(f"{thrown} frames, {rate:.0f}/s, at most {size} MB of memory\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
