"""Whatever bytes come, a connection answers, ignores or closes with a reason; others notice nothing."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.connection import Connection
from magnetar.broker.handlers.routes import ROUTES
from magnetar.broker.settings import BrokerSettings
from magnetar.environment.clock import SystemClock
from magnetar.metadata.opening import open_store
from magnetar.policies.resources import Resources
from magnetar.protocol import commands
from magnetar.protocol.frames import FrameDecoder, encode_command
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandSubscribe, MessageMetadata
from magnetar.security.authorizer import AllowAll
from tests.unit.broker.memory_log import MemoryLogs

TOPIC = "persistent://public/default/fuzz"
_COMMANDS = [field for field in BaseCommand.DESCRIPTOR.fields if field.name not in ("type", "connect")]
_FOR_BROKERS = [field for field in _COMMANDS if field.number in ROUTES and field.name != "authResponse"]


class Wire(asyncio.Transport):
    """A transport that remembers what was written, and gives no more than a real one would."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written: list[bytes] = []
        self.closed = False

    def writelines(self, list_of_data: Any) -> None:
        self.written.extend(bytes(part) for part in list_of_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

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

    def __init__(self, broker: Broker) -> None:
        self.wire = Wire()
        self.connection = Connection(broker)
        self.connection.connection_made(self.wire)
        self.say(commands.connect("fuzz", protocol_version=21))

    def say(self, data: bytes) -> None:
        if not self.wire.closed:
            self.connection.data_received(data)

    def heard(self) -> list[int]:
        """The types of all frames written so far; each of them is a whole frame."""
        decoder = FrameDecoder()
        types = [frame.type for frame in decoder.feed(b"".join(self.wire.written))]
        assert decoder.pending_bytes == 0
        return types

    def end(self) -> None:
        self.connection.connection_lost(None)


@pytest.fixture(autouse=True)
def nothing_unexpected(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Bad input is refused by somebody who expected it: no traceback, no task that died."""
    yield
    surprises = [
        record
        for when in ("setup", "call")
        for record in caplog.get_records(when)
        if record.levelno >= logging.ERROR
    ]
    assert not surprises, [
        f"{record.getMessage()} {getattr(record, 'fields', '')} {record.exc_text}" for record in surprises
    ]


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    store = await open_store("memory:")
    resources = Resources(store)
    broker = Broker(
        BrokerSettings(),
        metadata=store,
        ledgers=MemoryLogs(),  # type: ignore[arg-type]  # It does what the contract says.
        resources=resources,
        authorizer=AllowAll(),
        clock=SystemClock(),
        random=random.Random(1),
    )
    await resources.bootstrap("standalone", "http://127.0.0.1:8080", "pulsar://127.0.0.1:6650")
    yield broker
    await broker.topics.close_all()
    await broker.context.tasks.drain()
    resources.close()
    await store.close()


async def settle() -> None:
    for _ in range(15):
        await asyncio.sleep(0)


def number(dice: random.Random) -> int:
    return dice.choice(
        (0, 1, 2, 3, 7, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1, dice.randrange(2**64))
    )


def fill(message: Any, dice: random.Random, depth: int = 0) -> None:
    """Give a message fields: small, huge, wrong, or none."""
    for field in message.DESCRIPTOR.fields:
        if field.name in ("request_id", "requestId") or (dice.random() < 0.4 and not field.is_required):
            continue
        if field.message_type is not None:
            if depth < 2:
                target = getattr(message, field.name)
                fill(target.add() if field.is_repeated else target, dice, depth + 1)
            continue
        value: Any
        if field.enum_type is not None:
            value = dice.choice(list(field.enum_type.values_by_number))
        elif field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_INT32):
            value = number(dice) % 2**31
        elif field.cpp_type == field.CPPTYPE_UINT64:
            value = number(dice)
        elif field.cpp_type == field.CPPTYPE_INT64:
            value = number(dice) - 2**63
        elif field.cpp_type == field.CPPTYPE_BOOL:
            value = dice.random() < 0.5
        elif field.cpp_type in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
            value = dice.random()
        elif field.type == field.TYPE_BYTES:
            value = dice.randbytes(dice.randrange(9))
        else:
            value = dice.choice(
                (TOPIC, "", "public/default", "s", "x" * 300, "persistent://a/b/c/d", "ключ", ".*", "(")
            )
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def wild_command(dice: random.Random) -> bytes:
    field = dice.choice(_FOR_BROKERS if dice.random() < 0.99 else _COMMANDS)
    command = BaseCommand(type=field.number)  # type: ignore[arg-type]  # Numbers of fields and types agree.
    body = getattr(command, field.name)
    body.SetInParent()
    fill(body, dice)
    if "request_id" in body.DESCRIPTOR.fields_by_name:
        body.request_id = dice.randrange(1 << 30)
    for small in ("producer_id", "consumer_id"):
        if small in body.DESCRIPTOR.fields_by_name:
            setattr(body, small, 1 if field.name == "send" and dice.random() < 0.98 else dice.randrange(3))
    if field.name == "flow":
        body.messagePermits = dice.randrange(50)
    frame = encode_command(command) if command.IsInitialized() else b"\x00\x00\x00\x04\x00\x00\x00\x00"
    if field.name == "send":
        metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
        if dice.random() < 0.5:
            fill(metadata, dice)
        message = build_message(metadata, dice.randbytes(20))
        message = message[: dice.randrange(len(message))] if dice.random() < 0.02 else message
        body_bytes = frame[8:]
        size = len(body_bytes)
        return (size + 4 + len(message)).to_bytes(4, "big") + size.to_bytes(4, "big") + body_bytes + message
    return frame


def opening() -> bytes:
    """A producer and a consumer, so that what follows meets something."""
    return commands.producer(TOPIC, 1, 1) + commands.subscribe(TOPIC, "s", CommandSubscribe.Shared, 1, 2)


@pytest.mark.parametrize("seed", range(30))
async def test_wild_commands(broker: Broker, seed: int) -> None:
    """Well-formed commands of every kind, with fields of every size, in any order."""
    dice = random.Random(seed)
    bystander = Line(broker)
    heard = 0
    for _ in range(8):
        line = Line(broker)
        line.say(opening())
        await settle()
        for _ in range(30):
            line.say(wild_command(dice))
            if dice.random() < 0.3:
                await settle()
        await settle()
        heard += len(line.heard())
        line.end()
    assert heard > 40, "most of it was never answered"
    bystander.say(commands.ping())
    await settle()
    assert bystander.heard()[-1] == BaseCommand.PONG
    assert broker.context.budget.used_bytes == 0
    bystander.end()


@pytest.mark.parametrize("seed", range(20))
async def test_broken_bytes(broker: Broker, seed: int) -> None:
    """Frames with bytes flipped, dropped and doubled, in pieces of any size."""
    dice = random.Random(1000 + seed)
    bystander = Line(broker)
    for _ in range(25):
        line = Line(broker)
        data = bytearray(opening() + b"".join(wild_command(dice) for _ in range(10)))
        for _ in range(dice.randrange(1, 8)):
            at = dice.randrange(len(data))
            match dice.randrange(3):
                case 0:
                    data[at] ^= 1 << dice.randrange(8)
                case 1:
                    del data[at : at + dice.randrange(1, 5)]
                case _:
                    data[at:at] = dice.randbytes(dice.randrange(1, 5))
        while data:
            size = dice.randrange(1, 200)
            line.say(bytes(data[:size]))
            del data[:size]
        await settle()
        line.heard()
        line.end()
    bystander.say(commands.ping())
    await settle()
    assert bystander.heard()[-1] == BaseCommand.PONG
    bystander.end()
