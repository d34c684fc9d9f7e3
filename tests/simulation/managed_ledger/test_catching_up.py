"""Many readers catch up with a log that does not fit the memory, while others read its tail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.catch_up_cache import KEPT_S, CatchUpCache
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.read_budget import ReadBudget
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(
    1,
    1,
    1,
    max_entries_per_ledger=500,
    min_rollover_s=0,
    retention_time_s=UNLIMITED,
    retention_size_bytes=UNLIMITED,
)
ENTRIES = 2000
READERS = 8
AT_ONCE = 50
CACHE_BYTES = 400_000
"""A quarter of it is for readers that catch up: about a seventh of the log."""


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        dice = random.Random(5)
        bookies = MemoryBookies({"b": MemoryBookie("b")}, dice, BookieFaults(delay_s=0.01))
        store = MemoryEnsemble().connect(self.clock)
        client = LedgerClient(store, bookies, clock=self.clock, random=dice)
        self.factory = ManagedLedgerFactory(
            store, client, clock=self.clock, random=dice, cache=EntryCache(CACHE_BYTES)
        )

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


async def filled(log: ManagedLedger, number: int) -> None:
    left = number
    end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        nonlocal left
        assert position is not None
        left -= 1
        if not left:
            end.set_result(None)

    for _ in range(number):
        log.append((b"\x0e\x01", bytes(150)), 1, done)
    await end


async def catch_up(cursor: Cursor, dice: random.Random) -> int:
    number = 0
    while number < ENTRIES:
        entries = await cursor.read(AT_ONCE, 1 << 20)
        number += len(entries)
        cursor.acknowledge_cumulative(entries[-1].position)
        await asyncio.sleep(0.02 * dice.random())
    return number


@pytest.mark.parametrize(
    ("late_s", "share"), [(0.0, 0.3), (0.05, 0.45)], ids=["together", "one-after-the-other"]
)
def test_readers_that_catch_up_together_cost_little_more_than_one(
    late_s: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = House()
    reads: list[int] = []
    correct = LedgerReader.read

    async def counted(self: LedgerReader, first: int, last: int, **options: Any) -> Any:
        found = await correct(self, first, last, **options)
        reads.append(len(found))
        return found

    async def story() -> None:
        log = await house.factory.open(NAME, CONFIG)
        cursors = [await log.open_cursor(f"c{each}", initial="earliest") for each in range(READERS)]
        tail = await log.open_cursor("tail", initial="earliest")
        await filled(log, ENTRIES)
        tail.acknowledge_cumulative(log.last_confirmed)
        tail.active = True
        log.readers_changed()
        monkeypatch.setattr(LedgerReader, "read", counted)
        dice = random.Random(1)

        async def starting(at: int) -> int:
            await asyncio.sleep(at * late_s)
            return await catch_up(cursors[at], dice)

        catching_up = asyncio.gather(*(starting(each) for each in range(READERS)))
        at_tail = 0
        while not catching_up.done():
            await filled(log, 5)
            before = house.factory.cache.misses
            entries = await tail.read(AT_ONCE, 1 << 20)
            at_tail += len(entries)
            assert house.factory.cache.misses == before  # The tail comes from memory, whatever others do.
            tail.acknowledge_cumulative(entries[-1].position)
            await asyncio.sleep(0.01)
        assert await catching_up == [ENTRIES] * READERS
        assert at_tail > 20
        # What bookies have given, as a share of what was read: an eighth would be perfect.
        assert sum(reads) < share * ENTRIES * READERS
        shared = house.factory.shared_reads
        assert shared.cache.size <= shared.cache.max_bytes
        await house.factory.close()
        assert shared.cache.size == 0
        assert shared.budget.in_flight == 0

    house.run(story())


def entries(first: int, number: int, size: int = 800) -> list[Entry]:
    return [Entry(Position(1, first + each), bytes(size), -1, -1) for each in range(number)]


def test_what_is_kept_is_not_pushed_out_by_what_others_read() -> None:
    cache = CatchUpCache(10_000)
    assert cache.offer("a", entries(0, 10), 1, 0.0)
    assert not cache.offer("b", entries(0, 10), 1, 1.0)
    assert cache.refused == 1
    assert [each.position.entry_id for each in cache.read("a", 4, 6, 1 << 20, 2.0)] == [4, 5, 6]
    assert cache.read("a", 7, 100, 1 << 20, 2.0)
    assert cache.size == 0  # All that were expected have passed.
    assert cache.offer("b", entries(0, 10), 2, 3.0)
    assert not cache.offer("a", entries(0, 10), 1, 3.0)
    assert cache.offer("a", entries(0, 10), 1, 3.0 + KEPT_S)  # Whoever was expected has not come.
    assert not cache.read("b", 0, 9, 1 << 20, 3.0 + KEPT_S)
    assert not cache.offer("c", entries(0, 1), 0, 20.0)


def test_runs_do_not_overlap_and_ledgers_are_forgotten() -> None:
    cache = CatchUpCache(1 << 20)
    assert cache.offer("a", entries(10, 10), 1, 0.0)
    assert cache.offer("a", entries(5, 10), 1, 0.0)
    assert not cache.offer("a", entries(12, 3), 1, 0.0)
    assert len(cache.read("a", 5, 100, 1 << 20, 0.0)) == 5
    assert len(cache.read("a", 10, 100, 900, 0.0)) == 1
    cache.forget("a")
    assert cache.size == 0
    assert not cache.read("a", 10, 11, 1 << 20, 0.0)


def test_what_takes_the_place_of_runs_that_nobody_came_for_is_found_and_hides_no_other() -> None:
    cache = CatchUpCache(35_000)
    assert cache.offer("a", entries(0, 10), 1, 0.0)
    assert cache.offer("a", entries(10, 10), 1, 0.0)
    assert cache.offer("a", entries(30, 10), 1, KEPT_S)
    assert cache.offer("a", entries(20, 10), 1, KEPT_S)
    for first in (30, 20):
        assert len(cache.read("a", first + 5, first + 9, 1 << 20, KEPT_S)) == 5


def test_reads_in_flight_keep_within_their_budget_in_the_order_they_came() -> None:
    loop = VirtualLoop()
    budget = ReadBudget(100)
    served: list[int] = []

    async def read(number: int, size: int) -> None:
        async with budget.room_for(size):
            assert budget.in_flight <= 100
            served.append(number)
            await asyncio.sleep(1)

    async def story() -> None:
        sizes = (60, 60, 10, 1000, 40)
        tasks = [asyncio.ensure_future(read(number, size)) for number, size in enumerate(sizes)]
        await asyncio.sleep(0.5)
        assert served == [0]
        tasks[1].cancel()
        await asyncio.wait(tasks)
        assert served == [0, 2, 3, 4]
        assert budget.in_flight == 0

    loop.run(story())
