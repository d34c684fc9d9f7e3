"""Whatever comes, a connection answers or is closed for a reason that is logged; others notice nothing, nothing is left over."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import BaseCommand
from tests.property.broker.hostile_frames import (
    FOR_BROKERS,
    FOR_CLIENTS,
    STATES,
    Arena,
    Line,
    command_frame,
    each_bad_field,
    frame_of,
    run,
)

REQUESTS = [
    field
    for field in FOR_BROKERS
    if "request_id" in getattr(BaseCommand(), field.name).DESCRIPTOR.fields_by_name
    and field.name not in ("ack",)  # Its receipt is asked for by having one.
]


@pytest.fixture(autouse=True)
def seen() -> Iterator[None]:
    """Why connections are closed must be logged, whatever level tests run at."""
    logger = logging.getLogger("magnetar")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


@pytest.fixture
async def arena() -> AsyncIterator[Arena]:
    arena = Arena()
    await arena.open()
    yield arena
    await arena.close()


def by_name(field: Any) -> str:
    return str(field.name)


@pytest.mark.parametrize("field", FOR_BROKERS, ids=by_name)
async def test_every_field_missing_wrong_and_huge(arena: Arena, field: Any) -> None:
    dice = random.Random(field.number)
    for state in ("connected", "both"):
        line = await arena.line(state)
        closed = arena.observed.closed
        for frame in each_bad_field(field, dice, lambda: next(arena.request_ids)):
            if line.wire.closed:
                await arena.judge(line, closed)
                line = await arena.line(state)
                closed = arena.observed.closed
            line.say(frame)
            await arena.settle(2)
        await arena.judge(line, closed)
    await arena.at_rest()


@pytest.mark.parametrize("field", [each for each in FOR_BROKERS if each.name != "connect"], ids=by_name)
async def test_nothing_is_answered_before_connect(arena: Arena, field: Any) -> None:
    line, closed = await arena.line("new"), arena.observed.closed
    line.say(command_frame(field, random.Random(1), 7))
    await arena.settle()
    assert line.wire.closed
    line.listen()
    assert not line.heard
    await arena.judge(line, closed)


@pytest.mark.parametrize("field", REQUESTS, ids=by_name)
async def test_every_request_is_answered_in_every_state(arena: Arena, field: Any) -> None:
    dice = random.Random(field.number)
    for state in STATES[1:]:
        line, closed = await arena.line(state), arena.observed.closed
        wanted = set()
        for wild in (False, False, True):
            request_id = next(arena.request_ids)
            wanted.add(request_id)
            line.say(command_frame(field, dice, request_id, wild=wild))
            await arena.settle(4)
        await arena.until_answered(line, wanted)
        await arena.judge(line, closed)
    assert arena.answers >= len(STATES)
    await arena.at_rest()


@pytest.mark.parametrize("field", FOR_CLIENTS, ids=by_name)
async def test_what_only_brokers_say_closes(arena: Arena, field: Any) -> None:
    line, closed = await arena.line("connected"), arena.observed.closed
    line.say(frame_of(field, b""))
    line.say(command_frame(field, random.Random(1), 7))
    await arena.settle()
    assert line.wire.closed
    await arena.judge(line, closed)


@pytest.mark.parametrize("seed", range(6))
async def test_random_lives(seed: int) -> None:
    """More by `python -m tests.property.broker.hostile_frames`."""
    arena = await run(1000, seed)
    assert arena.frames >= 1000


async def test_a_broker_that_answers_nothing_is_noticed(arena: Arena) -> None:
    line, closed = await arena.line("connected"), arena.observed.closed
    line.connection.send = lambda frame: None  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="neither answering nor closed"):
        await arena.judge(line, closed)


async def test_a_leak_is_noticed(arena: Arena) -> None:
    leaked = Line(arena.broker)
    leaked.say(commands.ping())
    with pytest.raises(AssertionError, match="connections are left over"):
        await arena.at_rest()
    leaked.end()
