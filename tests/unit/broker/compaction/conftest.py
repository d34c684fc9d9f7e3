"""A broker whose topics are kept in real managed ledgers, of bookies in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.environment.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger import EARLIEST, Position
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.opening import open_store
from magnetar.naming import TopicName
from magnetar.protocol.batch import BatchBuilder, iterate_batch
from magnetar.protocol.compression import compress
from magnetar.protocol.message import build_message, split_message
from magnetar.protocol.pulsar_pb2 import CompressionType, MessageMetadata
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies

NAME = "persistent://public/default/compacted"
Said = tuple[str | None, str]
"""A key, and a value; an empty one deletes the key."""


class RealLogs(ManagedLedgerFactory):
    """What the broker is given in place of a log in memory."""

    def __init__(self, store: Any) -> None:
        self.bookies = {"b0": MemoryBookie("b0")}
        dice = random.Random(1)
        self.client = LedgerClient(
            store, MemoryBookies(self.bookies, dice, BookieFaults()), clock=SystemClock(), random=dice
        )
        super().__init__(store, self.client, clock=SystemClock(), random=dice)


@pytest.fixture
async def logs() -> AsyncIterator[RealLogs]:
    store = await open_store("memory:")
    logs = RealLogs(store)
    yield logs
    await logs.close()
    await store.close()


class Topics:
    """Opens one topic, in a broker started with the settings first asked for."""

    def __init__(self, start_broker: Callable[..., Awaitable[Broker]]) -> None:
        self._start_broker = start_broker
        self.broker: Broker | None = None

    async def __call__(self, **settings: Any) -> PersistentTopic:
        if self.broker is None:
            small = {"ledger_min_age_s": 0.0, "ledger_max_entries": 7}
            self.broker = await self._start_broker(**{**small, **settings})
        topic = await self.broker.topics.get(TopicName.parse(NAME), create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.compaction.keep()
        return topic

    async def anew(self, topic: PersistentTopic) -> PersistentTopic:
        """The topic, unloaded and loaded again."""
        assert self.broker is not None
        await topic.context.tasks.drain()
        await self.broker.topics.unload(topic.name)
        topic = await self()
        await topic.context.tasks.drain()
        return topic


@pytest.fixture
def open_topic(start_broker: Callable[..., Awaitable[Broker]]) -> Topics:
    return Topics(start_broker)


def single(key: str | None, value: str, **fields: Any) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)
    if key is not None:
        metadata.partition_key = key
    return build_message(metadata, value.encode())


def batch(
    said: Sequence[Said], compression: CompressionType.ValueType = CompressionType.NONE, **fields: Any
) -> bytes:
    builder = BatchBuilder()
    for number, (key, value) in enumerate(said):
        builder.add_full(value.encode() or None, number, key=key)
    payload = builder.payload()
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        num_messages_in_batch=len(said),
        compression=compression,
        uncompressed_size=len(payload),
        **fields,
    )
    return build_message(metadata, compress(compression, payload))


async def publish(topic: PersistentTopic, entry: bytes, messages: int = 1) -> Position:
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        if position is None:
            stored.set_exception(error or AssertionError())
        else:
            stored.set_result(position)

    topic.ledger.append((entry,), messages, done)
    return await stored


async def compact(topic: PersistentTopic) -> None:
    """Compact now, and wait until it is done."""
    topic.compaction.start()
    await compacted(topic)
    assert topic.compaction.status == "SUCCESS", topic.compaction.last_error


async def compacted(topic: PersistentTopic) -> None:
    """Wait until the run under way is done."""
    running = topic.compaction._running
    if running is not None:
        await asyncio.wait([running])


def said_in(data: bytes) -> list[tuple[int, str | None, str]]:
    """The messages of an entry that are there: batch index, key, value."""
    split = split_message(data)
    if not split.metadata.HasField("num_messages_in_batch"):
        key = split.metadata.partition_key if split.metadata.HasField("partition_key") else None
        return [(-1, key, bytes(split.payload).decode())]
    return [
        (index, member.partition_key if member.HasField("partition_key") else None, bytes(payload).decode())
        for index, (member, payload) in enumerate(iterate_batch(split.metadata, split.payload))
        if not member.compacted_out
    ]


async def read_view(
    topic: PersistentTopic, start: Position = EARLIEST
) -> list[tuple[Position, int, str | None, str]]:
    """What a reader that reads compacted is given, from `start` on."""
    from magnetar.broker.compaction.reading import CompactedReading

    async with topic.temporary_cursor(start) as cursor:
        begins = start if start < topic.ledger.first_position else None
        reading = CompactedReading(topic.compaction, topic.ledger, cursor, begins)
        found = []
        while reading.has_more():
            for entry in await reading.read(3, 1024 * 1024):
                found += [(entry.position, *each) for each in said_in(entry.data)]
        return found
