"""What the sweeper deletes, and above all what it does not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from magnetar.environment import crash
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.deletion import LogRemover
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.sweeper import SweepSettings
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(
    3, 3, 2, min_rollover_s=0, retention_time_s=UNLIMITED, retention_size_bytes=UNLIMITED
)
CUSTOM = {"component": b"managed-ledger", "managed-ledger": NAME.encode()}


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.metadata = MemoryEnsemble()
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(3)}

    def factory(self, *, interval_s: float = 0) -> tuple[ManagedLedgerFactory, LedgerClient]:
        dice = random.Random(7)
        bookies = MemoryBookies(self.bookies, dice, BookieFaults(delay_s=0.001))
        store = self.metadata.connect(self.clock)
        client = LedgerClient(store, bookies, clock=self.clock, random=dice)
        sweeps = SweepSettings(interval_s=interval_s, orphan_age_s=600)
        return (
            ManagedLedgerFactory(store, client, clock=self.clock, random=dice, sweeps=sweeps),
            client,
        )

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


async def appended(log: ManagedLedger, payload: bytes) -> Position:
    stored: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        if position is None:
            stored.set_exception(error or AssertionError())
        else:
            stored.set_result(position)

    log.append((b"\x0e\x01", payload), 1, done)
    return await stored


def test_an_orphan_is_told_at_once_and_deleted_when_it_is_old_and_found_twice() -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        await factory.open(NAME, CONFIG)
        orphan = (await client.create(3, 3, 2, custom_metadata=CUSTOM)).ledger_id
        foreign = (await client.create(3, 3, 2, custom_metadata={"component": b"schema"})).ledger_id
        assert not (await factory.sweep()).orphans
        await asyncio.sleep(601)
        assert [each.ledger_id for each in (await factory.leftovers()).orphans] == [orphan]
        assert (await factory.sweep()).ledgers_deleted == 0
        assert orphan in await client.list()
        assert (await factory.sweep()).ledgers_deleted == 1
        assert orphan not in await client.list()
        assert foreign in await client.list()
        await factory.close()

    house.run(story())


def test_when_most_ledgers_are_unnamed_it_is_the_records_that_were_lost() -> None:
    """As after a wipe of the brokers' store, while the bookies' stays."""
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        await factory.open(NAME, CONFIG)
        orphans = {(await client.create(3, 3, 2, custom_metadata=CUSTOM)).ledger_id for _ in range(11)}
        await asyncio.sleep(601)
        for _ in range(3):
            report = await factory.sweep()
            assert {each.ledger_id for each in report.orphans} == orphans
        assert orphans <= set(await client.list())
        await client.delete(orphans.pop())
        await factory.sweep()
        assert (await factory.sweep()).ledgers_deleted == 10
        await factory.close()

    house.run(story())


def test_while_a_record_cannot_be_read_no_orphan_is_deleted() -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, CONFIG)
        await log.open_cursor("cursor")
        orphan = (await client.create(3, 3, 2, custom_metadata=CUSTOM)).ledger_id
        store = house.metadata.connect(house.clock)
        await store.put(f"/managed-ledgers/{NAME}2", b"not json")
        await asyncio.sleep(601)
        for _ in range(3):
            report = await factory.sweep()
            assert report.unreadable
            assert [each.ledger_id for each in report.orphans] == [orphan]
        assert orphan in await client.list()

    house.run(story())


def test_one_who_slept_between_making_a_ledger_and_naming_it_takes_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sweeper has taken it for an orphan meanwhile: what is written to it would be written to nothing."""
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        sweeping, _ = house.factory()
        log = await factory.open(NAME, CONFIG)
        await appended(log, b"1")
        change = log.change_record
        made: list[int] = []

        async def asleep(*args: Any) -> None:
            """Once: the ledger is made, and its maker sleeps until it is deleted."""
            monkeypatch.undo()
            made.append(log.highest_ledger_id)
            await asyncio.sleep(601)
            await sweeping.sweep()
            await sweeping.sweep()
            assert log.highest_ledger_id not in await client.list()
            await change(*args)

        monkeypatch.setattr(log, "change_record", asleep)
        await log.roll()
        assert made
        position = await appended(log, b"2")
        assert position.ledger_id in await client.list()
        assert made[0] not in [span.ledger_id for span in log.ledgers]
        await factory.close()
        again, _ = house.factory()
        opened = await again.open(NAME, CONFIG)
        assert opened.number_of_entries == 2

    house.run(story())


def test_one_process_sweeps_and_when_it_ends_another_does() -> None:
    house = House()

    async def story() -> None:
        first, client = house.factory(interval_s=100)
        second, _ = house.factory(interval_s=100)
        await first.open(NAME, CONFIG)
        await second.open(NAME + "2", CONFIG)
        orphan = (await client.create(3, 3, 2, custom_metadata=CUSTOM)).ledger_id
        await asyncio.sleep(50)
        assert orphan in await client.list()
        await asyncio.sleep(900)
        assert orphan not in await client.list()

    house.run(story())


def test_who_finishes_an_old_deletion_late_does_not_touch_the_log_made_since() -> None:
    house = House()

    async def story() -> None:
        first, client = house.factory()
        log = await first.open(NAME, CONFIG)
        await log.open_cursor("cursor")
        await first.close()
        second, _ = house.factory()
        deleting: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        class Late(LogRemover):
            """It has listed the cursors, and sleeps until the log has been made anew."""

            async def children(self, name: str, path: str) -> list[str]:
                found = await self.metadata.children(path)
                await second.delete(NAME)
                made = await second.open(NAME, CONFIG)
                await made.open_cursor("cursor")
                deleting.set_result(None)
                return found

        store = house.metadata.connect(house.clock)
        with pytest.raises(ManagedLedgerFenced, match="made anew"):
            await Late(store, client, house.clock, random.Random(1)).delete(NAME)
        assert deleting.done()
        again, _ = house.factory()
        opened = await again.open(NAME, CONFIG)
        assert list(opened.cursors) == ["cursor"]

    house.run(story())


def test_crash_points_are_observed() -> None:
    """The stories of deaths rest on it."""
    seen: list[str] = []
    crash.observe(seen.append)
    try:
        house = House()

        async def story() -> None:
            factory, _ = house.factory()
            await factory.open(NAME, CONFIG)

        house.run(story())
    finally:
        crash.observe(None)
    assert seen == ["managed_ledger.before_list_update", "managed_ledger.after_list_update"]
