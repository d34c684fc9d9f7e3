"""From ledger to ledger by size, age and idleness; and when the metadata store is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.errors import StorageUnavailable
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(
    3,
    3,
    2,
    max_entries_per_ledger=10,
    min_rollover_s=0,
    retention_time_s=UNLIMITED,
    retention_size_bytes=UNLIMITED,
    storage_retry_s=3,
)


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        dice = random.Random(1)
        names = {f"b{number}": MemoryBookie(f"b{number}") for number in range(3)}
        bookies = MemoryBookies(names, dice, BookieFaults(delay_s=0.001))
        self.store = FaultyStore(MemoryEnsemble().connect(self.clock), dice, MetadataFaults())
        self.client = LedgerClient(self.store, bookies, clock=self.clock, random=dice)
        self.factory = ManagedLedgerFactory(self.store, self.client, clock=self.clock, random=dice)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


async def appended(log: ManagedLedger, payload: bytes = b"m") -> Position:
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        if position is None:
            stored.set_exception(error or AssertionError())
        else:
            stored.set_result(position)

    log.append((b"\x0e\x01", payload), 1, done)
    return await stored


def test_without_metadata_a_full_ledger_takes_what_comes_and_all_is_made_up_for_afterwards() -> None:
    house = House()

    async def story() -> None:
        log = await house.factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", initial="earliest")
        first = await appended(log)
        house.store.cut = True
        waited = []
        for _ in range(100):
            began = house.clock.monotonic()
            position = await appended(log)
            waited.append(house.clock.monotonic() - began)
            assert position.ledger_id == first.ledger_id
            await asyncio.sleep(0.5)
        assert sum(each > 0.4 for each in waited) <= 1  # Only at the first attempt, and not for long.
        assert max(waited) < 1
        cursor.acknowledge_cumulative(position)
        log.set_config(replace(CONFIG, retention_time_s=0, retention_size_bytes=0))
        await asyncio.sleep(1)
        assert log.first_position == first  # Nothing is trimmed.
        house.store.cut = False
        await asyncio.sleep(10)
        later = await appended(log)
        await asyncio.sleep(10)
        assert later.ledger_id > first.ledger_id
        assert log.first_position.ledger_id > first.ledger_id
        assert log.number_of_entries == 1
        await cursor.flush()
        stored = set(await house.client.list())
        assert stored == {later.ledger_id, cursor.ledger_id}

    house.run(story())


def test_where_only_the_brokers_store_is_away_a_full_ledger_takes_what_comes() -> None:
    """The next ledger could be made, but not named: the one there is must not be closed for it."""
    house = House()

    async def story() -> None:
        dice = random.Random(1)
        store = FaultyStore(MemoryEnsemble().connect(house.clock), dice, MetadataFaults())
        factory = ManagedLedgerFactory(store, house.client, clock=house.clock, random=dice)
        log = await factory.open(NAME, CONFIG)
        first = await appended(log)
        store.cut = True
        # Something else is to be written, too, and stays in doubt.
        setting = asyncio.create_task(log.set_properties({"a": "1"}))
        for _ in range(100):
            assert (await appended(log)).ledger_id == first.ledger_id
            await asyncio.sleep(0.5)
        assert isinstance((await asyncio.gather(setting, return_exceptions=True))[0], StorageUnavailable)
        store.cut = False
        await asyncio.sleep(10)
        assert (await appended(log)).ledger_id > first.ledger_id
        assert len(set(await house.client.list())) == len(log.ledgers)

    house.run(story())


def test_a_full_ledger_holds_what_it_is_allowed_and_not_more() -> None:
    house = House()

    async def story() -> None:
        log = await house.factory.open(NAME, CONFIG)
        positions = await asyncio.gather(*(appended(log) for _ in range(95)))
        sizes = [span.entries for span in log.ledgers]
        assert sum(sizes) == 95
        assert max(sizes) == 10
        assert positions == sorted(positions)
        assert len(set(await house.client.list())) == len(log.ledgers)

    house.run(story())


def test_a_ledger_nobody_appends_to_is_closed_and_the_next_append_opens_another() -> None:
    house = House()

    async def story() -> None:
        log = await house.factory.open(NAME, replace(CONFIG, inactive_rollover_s=60))
        first = await appended(log)
        await asyncio.sleep(50)
        assert (await appended(log)).ledger_id == first.ledger_id
        await asyncio.sleep(55)
        assert log.writer is not None
        await asyncio.sleep(10)
        assert log.writer is None
        assert (await house.client.metadata_of(first.ledger_id)).closed
        second = await appended(log)
        assert second.ledger_id > first.ledger_id
        assert log.number_of_entries == 3

    house.run(story())


def test_logs_opened_together_do_not_roll_together() -> None:
    house = House()

    async def story() -> None:
        config = replace(CONFIG, max_rollover_s=1000)
        logs = [await house.factory.open(f"{NAME}{number}", config) for number in range(20)]
        for log in logs:
            await appended(log)
        rolled: dict[str, float] = {}
        began = house.clock.monotonic()
        while len(rolled) < len(logs):
            await asyncio.sleep(1)
            for log in logs:
                if len(log.ledgers) > 1:
                    rolled.setdefault(log.name, house.clock.monotonic() - began)
        assert min(rolled.values()) >= 999
        assert max(rolled.values()) <= 1055
        assert len(set(rolled.values())) > 10

    house.run(story())


def test_properties_of_a_cursor_are_put_and_removed_one_by_one() -> None:
    house = House()

    async def story() -> None:
        log = await house.factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", properties={"a": "1"})
        await asyncio.gather(*(cursor.put_cursor_property(key, key) for key in "bcd"))
        await cursor.remove_cursor_property("a")
        await cursor.remove_cursor_property("never there")
        assert cursor.cursor_properties == {"b": "b", "c": "c", "d": "d"}
        await house.factory.close()
        again = ManagedLedgerFactory(house.store, house.client, clock=house.clock)
        log = await again.open(NAME, CONFIG)
        assert log.cursors["c"].cursor_properties == {"b": "b", "c": "c", "d": "d"}

    house.run(story())
