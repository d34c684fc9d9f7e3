"""Seeded worlds: a log is terminated while it is appended to, or deleted while it is read; bookies and metadata fail.

What must hold: each append is answered once. Nothing is acknowledged behind the end that `terminate` told, whoever asks is
told the same one, and the next owner finds it. Whoever reads a log that is being deleted gets its entries or an error, and
soon; what is deleted leaves nothing behind, and a log made in its place is empty.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.managed_ledger.appends import AppendPath
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.deletion import LogRemover
from magnetar.managed_ledger.errors import (
    ManagedLedgerError,
    ManagedLedgerTerminated,
)
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.sweeper import SweepSettings
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "tenant/namespace/persistent/topic"
SEEDS = 80
SEEDS_TO_FIND = 300
PATIENCE_S = 300.0
SWEEPS = SweepSettings(orphan_age_s=10.0)
T = TypeVar("T")


class World:
    """One log, one owner at a time, and four bookies of which at most one is down."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.metadata = MemoryEnsemble()
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(4)}
        chaos = dice.random() if dice.random() < 0.7 else 0.0
        self.faults = BookieFaults(drop=0.02 * chaos, fail=0.05 * chaos, delay_s=0.02, timeout_s=0.5)
        self.metadata_faults = MetadataFaults(
            lost_request=0.1 * chaos, lost_answer=0.1 * chaos, late=0.05 * chaos, delay_s=0.02
        )
        self.config = ManagedLedgerConfig(
            3,
            3,
            2,
            max_entries_per_ledger=dice.choice((3, 8, 1000)),
            min_rollover_s=0,
            retention_time_s=UNLIMITED,
            retention_size_bytes=UNLIMITED,
            storage_retry_s=5.0,
        )
        self.answers: Counter[bytes] = Counter()
        self.stored: dict[bytes, Position] = {}
        self.refused: set[bytes] = set()
        """Because the log was terminated by then."""
        self.sent = 0
        self.read = 0

    def owner(self) -> ManagedLedgerFactory:
        dice = random.Random(self.dice.getrandbits(64))
        store = FaultyStore(self.metadata.connect(self.clock), dice, self.metadata_faults)
        settings = LedgerClientSettings(ensemble_retry_s=0.3, quarantine_s=0.5, metadata_retry_s=20.0)
        bookies = MemoryBookies(self.bookies, dice, self.faults)
        client = LedgerClient(store, bookies, clock=self.clock, random=dice, settings=settings)
        return ManagedLedgerFactory(store, client, clock=self.clock, random=dice, sweeps=SWEEPS)

    async def open(self, factory: ManagedLedgerFactory) -> ManagedLedger:
        while True:
            try:
                return await factory.open(NAME, self.config)
            except ManagedLedgerError:
                await asyncio.sleep(0.5)

    def append(self, log: ManagedLedger) -> None:
        payload = b"message %d" % self.sent
        self.sent += 1

        def done(position: Position | None, index: int, error: Exception | None) -> None:
            self.answers[payload] += 1
            if position is not None:
                self.stored[payload] = position
            elif isinstance(error, ManagedLedgerTerminated):
                self.refused.add(payload)

        log.append((b"\x0e\x01", payload), 1, done)

    async def appending(self, log: ManagedLedger, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            for _ in range(self.dice.randint(1, 4)):
                self.append(log)
            await asyncio.sleep(self.dice.random() * 0.05)

    async def disturbing(self, log: ManagedLedger, seconds: float) -> None:
        """Ledgers are rolled, and bookies go and come back."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            await asyncio.sleep(self.dice.random() * 0.4)
            if self.dice.random() < 0.5:
                bookie = self.bookies[self.dice.choice(sorted(self.bookies))]
                bookie.crash()
                await asyncio.sleep(self.dice.random())
                bookie.restart()
            elif log.state == "open":
                log._appends._switch()


Story = Callable[[World], Coroutine[Any, Any, None]]


async def persistent(work: Callable[[], Awaitable[T]]) -> T:
    """Tried again for as long as the storage cannot be reached."""
    while True:
        try:
            return await work()
        except ManagedLedgerError:
            await asyncio.sleep(0.3)


async def all_answered(world: World) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(world.answers) < world.sent:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def terminated(world: World) -> None:
    factory = world.owner()
    log = await world.open(factory)
    load = asyncio.ensure_future(world.appending(log, 2.0))
    trouble = asyncio.ensure_future(world.disturbing(log, 2.0))
    await asyncio.sleep(world.dice.random() * 1.5)
    known = dict(world.stored)
    ends = await asyncio.wait_for(
        asyncio.gather(persistent(log.terminate), persistent(log.terminate)), PATIENCE_S
    )
    after = world.sent
    await asyncio.gather(load, trouble)
    await all_answered(world)
    last = ends[0]
    assert ends[1] == last
    assert set(world.answers.values()) == {1}, "each append is answered once"
    assert all(position <= last for position in world.stored.values()), "nothing is stored behind the end"
    assert known.items() <= world.stored.items()
    assert {b"message %d" % number for number in range(after, world.sent)} <= world.refused
    await factory.close()
    heir = world.owner()
    again = await world.open(heir)
    assert again.terminated
    assert again.last_confirmed == last
    cursor = await persistent(partial(again.open_cursor, "reader", initial="earliest"))
    found: dict[bytes, Position] = {}
    while cursor.has_more():
        for entry in await persistent(partial(cursor.read, 10, 1 << 20)):
            assert entry.data[2:] not in found
            found[entry.data[2:]] = entry.position
    assert world.stored.items() <= found.items()
    assert not world.refused & found.keys()
    assert list(found.values()) == sorted(found.values())
    await heir.close()


async def deleted(world: World) -> None:
    factory = world.owner()
    log = await world.open(factory)
    await world.appending(log, 1.0)
    trouble = asyncio.ensure_future(world.disturbing(log, 1.5))
    entries_read = 0

    async def read(number: int) -> None:
        """Over and over, until told that there is nothing to read any more."""
        nonlocal entries_read
        while log.state == "open":
            try:
                cursor = await log.open_cursor(f"c{number}", initial="earliest", durable=number % 2 == 0)
                await cursor.reset(log.first_position)
                while cursor.has_more():
                    for entry in await cursor.read(5, 1 << 20):
                        assert world.stored.get(entry.data[2:], entry.position) == entry.position
                        cursor.acknowledge([(entry.position, None)])
                        entries_read += 1
                    await asyncio.sleep(world.dice.random() * 0.02)
            except ManagedLedgerError:
                await asyncio.sleep(0.05)

    readers = [asyncio.ensure_future(read(number)) for number in range(4)]
    await asyncio.sleep(world.dice.random())
    await asyncio.wait_for(persistent(partial(_delete, factory)), PATIENCE_S)
    await asyncio.wait_for(asyncio.gather(*readers), PATIENCE_S)
    await trouble
    world.read = entries_read
    for _ in range(3):
        world.append(log)
    await all_answered(world)
    assert not {b"message %d" % number for number in range(world.sent - 3, world.sent)} & world.stored.keys()
    assert not await persistent(partial(factory.exists, NAME))
    await factory.close()
    world.metadata_faults = MetadataFaults()
    world.faults = replace(world.faults, drop=0.0, fail=0.0)
    heir = world.owner()
    again = await heir.open(NAME, world.config)
    assert again.number_of_entries == 0
    assert not again.cursors
    await heir.delete(NAME)
    # What was made and never named is for the sweeper, who trusts two looks and old age.
    for _ in range(2):
        await asyncio.sleep(2 * SWEEPS.orphan_age_s)
        await heir.sweep()
    assert await heir.ledger_client.list() == []
    await heir.close()


async def _delete(factory: ManagedLedgerFactory) -> None:
    if await factory.exists(NAME):
        await factory.delete(NAME)
    else:
        await factory.finish_deletion(NAME)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def told(story: Story, seed: int) -> World:
    world = World(seed)
    world.loop.run(story(world))
    return world


def test_nothing_is_stored_behind_the_end_of_a_terminated_log() -> None:
    stored = refused = 0
    for seed in range(SEEDS):
        world = told(terminated, seed)
        stored += len(world.stored)
        refused += len(world.refused)
    assert stored > 10 * SEEDS
    assert refused > 10 * SEEDS


def test_whoever_reads_a_log_that_is_deleted_is_told_and_nothing_is_left() -> None:
    read = 0
    for seed in range(SEEDS // 3):
        read += told(deleted, seed).read
    assert read > 10 * SEEDS


def finds(story: Story) -> bool:
    for seed in range(SEEDS_TO_FIND):
        try:
            told(story, seed)
        except (AssertionError, TimeoutError):
            return True
    return False


def test_an_end_told_before_what_is_on_its_way_is_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: AppendPath, refusal: ManagedLedgerError) -> None:
        self._refusal = refusal

    monkeypatch.setattr(AppendPath, "finish", hasty)
    assert finds(terminated)


def test_a_deletion_that_forgets_cursors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogRemover, "children", _none)
    assert finds(deleted)


async def _none(self: LogRemover, name: str, path: str) -> list[str]:
    return []
