"""The compacted view of a topic equals a dictionary to which its messages are replayed.

Random histories: single messages and batches of several codecs, deletes, chunks, messages without keys, runs of
compaction while others publish, trimming, and loading the topic anew. Whatever is read compacted must be a history
whose replay gives the same dictionary as all messages ever published, in order, with nothing twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.compaction.messages import cut, read_contents
from magnetar.broker.compaction.reading import CompactedReading
from magnetar.broker.compaction.survivors import Chunk, Survivors
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.managed_ledger import EARLIEST, Position
from magnetar.protocol.message import split_message
from magnetar.protocol.pulsar_pb2 import CompressionType
from tests.unit.broker.compaction.conftest import (
    Said,
    Topics,
    batch,
    logs,
    open_topic,
    publish,
    read_view,
    said_in,
    single,
)
from tests.unit.broker.conftest import start_broker

__all__ = ["logs", "open_topic", "start_broker"]

CODECS = (CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD, CompressionType.SNAPPY)
KEYS = ("a", "b", "c", "d", "e" * 40, "f" * 50)

said = st.tuples(st.sampled_from([*KEYS, None]), st.sampled_from(["", "1", "2", "x" * 100]))


def replay(history: Sequence[tuple[Any, ...]]) -> dict[str, str]:
    state: dict[str, str] = {}
    for *_, key, value in history:
        if key is not None:
            state.pop(key, None)
            if value:
                state[key] = value
    return state


@given(
    st.lists(st.lists(said, min_size=1, max_size=6), max_size=12),
    st.integers(1, 7),
    st.sampled_from(CODECS),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_what_stays_is_the_last_of_each_key_whatever_may_be_remembered(
    entries: list[list[Said]], keys_max: int, codec: CompressionType.ValueType, keep_keyless: bool
) -> None:
    survivors = Survivors(keys_max, keep_keyless=keep_keyless)
    stored = [batch(each, codec) if len(each) != 1 else single(each[0][0], each[0][1]) for each in entries]
    while not survivors.complete:
        survivors.begin()
        ordinal = 0
        for data in stored:
            contents = read_contents(split_message(data))
            survivors.see(ordinal, contents.messages)
            ordinal += contents.places
        survivors.end()
    flat = [each for entry in entries for each in entry]
    last = {key: number for number, (key, _) in enumerate(flat) if key is not None}
    expected = [
        number
        for number, (key, value) in enumerate(flat)
        if (key is None and keep_keyless) or (key is not None and last[key] == number and value)
    ]
    assert [number for number in range(len(flat)) if survivors.stays(number)] == expected
    assert survivors.kept_messages == len(expected)
    ordinal = 0
    for data, entry in zip(stored, entries, strict=True):
        stays = survivors.these_stay(ordinal, len(entry))
        assert stays == [ordinal + number in expected for number in range(len(entry))]
        if any(stays) and not all(stays):
            left = bytes(cut(split_message(data), stays))
            assert said_in(left) == [
                (number, *entry[number]) for number in range(len(entry)) if stays[number]
            ]
        ordinal += len(entry)


def test_ever_so_many_keys_take_passes_and_not_memory() -> None:
    survivors = Survivors(100)
    most = 0
    while not survivors.complete:
        survivors.begin()
        for ordinal in range(4000):
            survivors.see(ordinal, [(b"key %d" % (ordinal % 2000), False)])
            most = max(most, len(survivors._latest))
        survivors.end()
    assert most <= 101
    assert 20 <= survivors.passes <= 80
    assert [ordinal for ordinal in range(4000) if survivors.stays(ordinal)] == list(range(2000, 4000))


def test_all_chunks_of_the_last_large_message_stay_and_those_of_one_that_is_not_complete() -> None:
    survivors = Survivors(10)
    survivors.begin()
    for ordinal, (message, number) in enumerate(
        [("u1", 0), ("u2", 0), ("u1", 1), ("u2", 1), ("u3", 0), ("u4", 1)]
    ):
        survivors.see_chunk(ordinal, b"k", Chunk(("p", message), number, 2))
    survivors.end()
    assert [ordinal for ordinal in range(6) if survivors.stays(ordinal)] == [1, 3, 4]


def test_chunks_that_were_sent_twice_cost_no_message() -> None:
    """A producer loses its connection before it hears that a chunk is stored, and sends that again."""
    survivors = Survivors(10)
    survivors.begin()
    for ordinal, (message, number) in enumerate(
        [
            ("old", 0),
            ("old", 1),
            ("old", 2),
            ("new", 0),
            ("new", 1),
            ("new", 1),
            ("new", 2),
            ("hole", 0),
            ("hole", 2),
        ]
    ):
        survivors.see_chunk(ordinal, b"k", Chunk(("p", message), number, 3))
    survivors.end()
    assert [ordinal for ordinal in range(9) if survivors.stays(ordinal)] == [3, 4, 6]


@pytest.mark.parametrize("seed", range(12))
async def test_the_compacted_view_is_the_replayed_history(open_topic: Topics, seed: int) -> None:
    dice = random.Random(seed)
    topic = await open_topic(ledger_max_entries=5, compaction_keys_max=dice.choice([2, 3, 1000]))
    history: list[tuple[Position, int, str | None, str]] = []

    async def say() -> None:
        if dice.random() < 0.4:
            key, value = _draw(dice)
            position = await publish(topic, single(key, value))
            history.append((position, -1, key, value))
        else:
            members = [_draw(dice) for _ in range(dice.randint(1, 5))]
            entry = batch(members, dice.choice(CODECS))
            position = await publish(topic, entry, len(members))
            history.extend((position, index, *each) for index, each in enumerate(members))

    for _ in range(dice.randint(10, 25)):
        match dice.randrange(8):
            case 0:
                await _together(topic, [say() for _ in range(dice.randint(0, 5))])
                assert topic.compaction.status == "SUCCESS", topic.compaction.last_error
            case 1:
                await topic.ledger.trim()
            case 2:
                topic = await open_topic.anew(topic)
            case 3:
                await _check(topic, history)
            case 4:
                await _check_across_a_switch(topic, history, dice)
            case _:
                await say()
    await _together(topic, [])
    await _check(topic, history)
    kept = [key for _, _, key, _ in await read_view(topic)]
    assert len(kept) == len(set(kept))


def _draw(dice: random.Random) -> Said:
    key = dice.choice([*KEYS, None])
    return key, dice.choice(["", str(dice.randrange(1000))])


async def _together(topic: PersistentTopic, others: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Compact, while others are at work."""
    topic.compaction.start()
    running = topic.compaction._running
    assert running is not None
    await asyncio.gather(asyncio.wait([running]), *others)


async def _check(topic: PersistentTopic, history: list[tuple[Position, int, str | None, str]]) -> None:
    history.sort(key=lambda each: each[:2])
    view = await read_view(topic)
    assert [each[:2] for each in view] == sorted({each[:2] for each in view})
    assert set(view) <= set(history)
    assert replay(view) == replay(history)
    middle = view[len(view) // 2][0] if view else EARLIEST
    assert await read_view(topic, middle) == [each for each in view if each[0] >= middle]


async def _check_across_a_switch(
    topic: PersistentTopic, history: list[tuple[Position, int, str | None, str]], dice: random.Random
) -> None:
    """Who is in the middle when a run ends goes on in what it has made. Every key that is there has its last value.

    A deletion that is compacted before it is come to is not heard of, as in Pulsar.
    """
    async with topic.temporary_cursor(EARLIEST) as cursor:
        reading = CompactedReading(topic.compaction, topic.ledger, cursor, EARLIEST)
        found: list[tuple[Position, int, str | None, str]] = []
        for _ in range(dice.randrange(4)):
            if reading.has_more():
                for entry in await reading.read(2, 1 << 20):
                    found += [(entry.position, *each) for each in said_in(entry.data)]
        await _together(topic, [])
        await topic.ledger.trim()
        while reading.has_more():
            for entry in await reading.read(2, 1 << 20):
                found += [(entry.position, *each) for each in said_in(entry.data)]
    assert [each[:2] for each in found] == sorted({each[:2] for each in found})
    history.sort(key=lambda each: each[:2])
    state, whole = replay(found), replay(history)
    assert {key: state.get(key) for key in whole} == whole
    deleted = {key for _, _, key, value in history if not value}
    assert set(state) - set(whole) <= deleted
