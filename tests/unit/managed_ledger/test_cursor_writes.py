"""What is written of one cursor at the same time, and what is asked of it again after it has failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.errors import RecordUnreadable
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.records import cursor_path
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(3, 3, 2, retention_time_s=UNLIMITED, retention_size_bytes=UNLIMITED)


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.metadata = MemoryEnsemble()
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(3)}

    def owner(self) -> tuple[ManagedLedgerFactory, FaultyStore]:
        dice = random.Random(1)
        bookies = MemoryBookies(self.bookies, dice, BookieFaults(delay_s=0.001))
        store = FaultyStore(self.metadata.connect(self.clock), dice, MetadataFaults())
        client = LedgerClient(store, bookies, clock=self.clock, random=dice)
        return ManagedLedgerFactory(store, client, clock=self.clock, random=dice), store

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


async def appended(log: ManagedLedger) -> Position:
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        assert position is not None, error
        stored.set_result(position)

    log.append((b"\x0e\x01", b"m"), 1, done)
    return await stored


def test_properties_and_the_state_written_at_the_same_time_both_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()

    async def story() -> None:
        factory, store = house.owner()
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", initial="earliest")
        position = await appended(log)
        put = store.put

        async def slow(*args: Any, **options: Any) -> int:
            await asyncio.sleep(0.2)
            return await put(*args, **options)

        monkeypatch.setattr(store, "put", slow)
        cursor.acknowledge_cumulative(position)
        setting = asyncio.create_task(cursor.set_cursor_properties({"a": "1"}))
        await asyncio.sleep(0.01)
        await asyncio.gather(setting, cursor.flush())
        again, _ = house.owner()
        reopened = await again.open(NAME, CONFIG)
        assert reopened.cursors["c"].cursor_properties == {"a": "1"}
        assert reopened.cursors["c"].mark_delete == position
        assert not reopened.cursors["c"].stats()["stateLost"]

    house.run(story())


def test_a_log_terminated_in_the_moment_it_is_closed_keeps_what_nobody_has_acknowledged() -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.owner()
        log = await factory.open(NAME, replace(CONFIG, retention_time_s=0, retention_size_bytes=0))
        await log.open_cursor("c", initial="earliest")
        first = await appended(log)
        await log.roll()
        await appended(log)
        await asyncio.gather(log.terminate(), log.close(), return_exceptions=True)
        await asyncio.sleep(5)
        again, _ = house.owner()
        reopened = await again.open(NAME, CONFIG)
        assert reopened.first_position == first
        assert reopened.cursors["c"].backlog == 2

    house.run(story())


def test_an_open_that_fails_for_one_cursor_leaves_nothing_at_work_on_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would write their records behind the back of whoever opens the log next."""
    house = House()

    async def story() -> None:
        factory, _ = house.owner()
        log = await factory.open(NAME, CONFIG)
        for name in "abc":
            await log.open_cursor(name)
        await factory.close()
        other = house.metadata.connect(house.clock)
        kept = await other.get(cursor_path(NAME, "a"))
        assert kept is not None
        await other.put(cursor_path(NAME, "a"), b"no record")
        again, store = house.owner()
        put = store.put

        async def slow(path: str, *args: Any, **options: Any) -> int:
            await asyncio.sleep(1)
            return await put(path, *args, **options)

        monkeypatch.setattr(store, "put", slow)
        with pytest.raises(RecordUnreadable):
            await again.open(NAME, CONFIG)
        versions = [await other.get(cursor_path(NAME, name)) for name in "bc"]
        await asyncio.sleep(10)
        assert [await other.get(cursor_path(NAME, name)) for name in "bc"] == versions

    house.run(story())
