"""A ledger that is lost for good is told by name, and gone without when somebody says so, never before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.errors import (
    CursorClosed,
    EntryUnreadable,
    ManagedLedgerError,
    NoSuchLedgerInLog,
    StorageUnavailable,
)
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(
    3,
    3,
    2,
    min_rollover_s=0,
    retention_time_s=UNLIMITED,
    retention_size_bytes=UNLIMITED,
    storage_retry_s=1,
    max_entries_per_cursor_ledger=4,
)
MB = 1 << 20


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(3)}
        self.metadata = MemoryEnsemble()
        self.owners = 0

    def factory(self) -> tuple[ManagedLedgerFactory, LedgerClient]:
        self.owners += 1
        dice = random.Random(self.owners)
        store = self.metadata.connect(self.clock)
        bookies = MemoryBookies(self.bookies, dice, BookieFaults(delay_s=0.001))
        client = LedgerClient(store, bookies, clock=self.clock, random=dice)
        return ManagedLedgerFactory(store, client, clock=self.clock, random=dice), client

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


async def appended(log: ManagedLedger, *payloads: bytes) -> list[Position]:
    positions: list[Position] = []
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        assert position is not None, error
        positions.append(position)
        if len(positions) == len(payloads):
            stored.set_result(None)

    for payload in payloads:
        log.append((b"\x0e\x01", payload), 1, done)
    await stored
    return positions


async def read_all(cursor: Cursor) -> list[bytes]:
    found: list[bytes] = []
    while cursor.has_more():
        found += [entry.data[2:] for entry in await cursor.read(10, MB)]
    return found


async def three_ledgers(log: ManagedLedger) -> list[Position]:
    positions = []
    for number in range(3):
        positions += await appended(log, b"%d a" % number, b"%d b" % number)
        if number < 2:
            await log.roll()
    return positions


def test_where_the_settings_say_so_readers_pass_over_a_ledger_that_is_lost() -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, replace(CONFIG, auto_skip_lost=True))
        cursors = [await log.open_cursor(f"c{number}", initial="earliest") for number in range(3)]
        positions = await three_ledgers(log)
        await client.delete(positions[2].ledger_id)
        found = await asyncio.gather(*map(read_all, cursors))
        assert found == [[b"0 a", b"0 b", b"2 a", b"2 b"]] * 3
        assert log.entries_given_up == 2
        assert [each.ledger_id for each in log.keeper.record.lost] == [positions[2].ledger_id]
        await factory.close()

    house.run(story())


@pytest.mark.parametrize("allowed", [True, False])
def test_entries_that_all_bookies_deny_are_passed_over_one_by_one_where_the_settings_say_so(
    allowed: bool,
) -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, replace(CONFIG, auto_skip_lost=allowed))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        for bookie in house.bookies.values():
            del bookie.ledgers[positions[2].ledger_id].entries[0]
        if allowed:
            assert await read_all(cursor) == [b"0 a", b"0 b", b"1 b", b"2 a", b"2 b"]
            assert cursor.is_acknowledged(positions[2])
            assert not cursor.is_acknowledged(positions[3])
            assert cursor.backlog == 5
        else:
            with pytest.raises(EntryUnreadable):
                await read_all(cursor)
        await factory.close()

    house.run(story())


def test_a_cursor_that_is_closed_while_it_passes_over_a_lost_entry_ends() -> None:
    """It cannot acknowledge the entry any more: it must not read it again and again."""
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, replace(CONFIG, auto_skip_lost=True))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        for bookie in house.bookies.values():
            del bookie.ledgers[positions[0].ledger_id].entries[0]
        log.cache.clear()
        reading = asyncio.create_task(cursor.read(10, MB))
        await asyncio.sleep(0)
        await cursor.close()
        async with asyncio.timeout(60):
            with pytest.raises(CursorClosed):
                await reading
        await factory.close()

    house.run(story())


def test_what_merely_cannot_be_read_now_is_not_passed_over() -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, replace(CONFIG, auto_skip_lost=True))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        for name in ("b0", "b1"):
            del house.bookies[name].ledgers[positions[0].ledger_id].entries[0]
        house.bookies["b2"].crash()
        with pytest.raises(EntryUnreadable):
            await cursor.read(10, MB)
        assert cursor.backlog == 6
        assert log.entries_given_up == 0
        await factory.close()

    house.run(story())


def test_reads_and_cursors_jump_over_a_ledger_that_was_given_up() -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", initial="earliest")
        inside = await log.open_cursor("inside", initial="earliest")
        positions = await three_ledgers(log)
        lost = positions[2].ledger_id
        inside.acknowledge_cumulative(positions[2])
        await client.delete(lost)  # All of its bookies burned down.
        assert [entry.data[2:] for entry in await cursor.read(2, MB)] == [b"0 a", b"0 b"]
        for _ in range(2):
            with pytest.raises(EntryUnreadable):
                await cursor.read(10, MB)
        assert [each.ledger_id for each in log.unreadable_ledgers.values()] == [lost]
        stats = await log.internal_stats_in_full()
        assert "no ledger" in str(stats["unreadableLedgers"])
        assert cursor.backlog == 6
        given_up = await log.skip_lost_ledger(lost)
        assert (given_up.ledger_id, given_up.entries) == (lost, 2)
        assert cursor.backlog == 4
        assert await read_all(cursor) == [b"2 a", b"2 b"]
        assert inside.backlog == 2
        assert await read_all(inside) == [b"2 a", b"2 b"]
        assert not log.unreadable_ledgers
        assert log.internal_stats()["lostLedgers"]
        await inside.flush()
        await factory.close()
        again, _ = house.factory()
        log = await again.open(NAME, CONFIG)
        assert log.cursors["inside"].backlog == 2
        assert await read_all(log.cursors["c"]) == [b"0 a", b"0 b", b"2 a", b"2 b"]
        assert [each.ledger_id for each in log.keeper.record.lost] == [lost]

    house.run(story())


def test_holes_in_a_ledger_that_was_given_up_are_forgotten() -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        cursor.acknowledge([(positions[3], None), (positions[5], None), (positions[1], None)])
        cursor.acknowledge([(positions[2], [1])])
        await cursor.flush()
        await client.delete(positions[2].ledger_id)
        await log.skip_lost_ledger(positions[2].ledger_id)
        assert cursor.backlog == 2
        cursor.acknowledge([(positions[0], None)])
        assert cursor.mark_delete == positions[1]
        cursor.acknowledge([(positions[4], None)])
        assert (cursor.mark_delete, cursor.backlog) == (positions[5], 0)

    house.run(story())


def test_a_log_whose_last_ledger_is_lost_opens_once_it_is_given_up_and_no_index_is_given_twice() -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, CONFIG)
        positions = await three_ledgers(log)
        for bookie in list(house.bookies.values())[:2]:
            bookie.crash()  # For ever: two of three, and the last ledger is open.
        second, _ = house.factory()
        with pytest.raises(StorageUnavailable):
            await second.open(NAME, CONFIG)
        told = await second.skip_lost_ledger(NAME, positions[-1].ledger_id)
        assert "nobody knows how many" in told
        for bookie in house.bookies.values():
            bookie.restart()  # New ones, in time.
        log = await second.open(NAME, CONFIG)
        assert log.number_of_entries == 4
        assert log.next_index > 6
        (position,) = await appended(log, b"new")
        assert position.ledger_id > positions[-1].ledger_id
        reader = await log.open_cursor("r", initial="earliest", durable=False)
        assert await read_all(reader) == [b"0 a", b"0 b", b"1 a", b"1 b", b"new"]

    house.run(story())


def test_the_ledger_of_a_cursor_is_told_when_it_is_lost_and_can_be_given_up() -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        cursor.acknowledge_cumulative(positions[0])
        await cursor.flush()
        cursor.acknowledge_cumulative(positions[2])
        await cursor.flush()
        cursor_ledger = cursor.ledger_id
        assert cursor_ledger >= 0
        second, _ = house.factory()
        told = await second.skip_lost_ledger(NAME, cursor_ledger)
        assert "cursor 'c'" in told
        assert str(positions[0]) in told
        log = await second.open(NAME, CONFIG)
        assert log.cursors["c"].mark_delete == positions[0]

    house.run(story())


def test_a_cursor_whose_ledger_is_gone_goes_on_from_its_record_and_says_so() -> None:
    house = House()

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, CONFIG)
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        for position in positions[:3]:
            cursor.acknowledge_cumulative(position)
            await cursor.flush()
        await client.delete(cursor.ledger_id)
        second, _ = house.factory()
        cursor = (await second.open(NAME, CONFIG)).cursors["c"]
        assert cursor.mark_delete == positions[0]
        assert "no ledger" in str(cursor.stats()["stateLost"])

    house.run(story())


def test_what_is_no_closed_ledger_of_the_log_is_not_given_up() -> None:
    house = House()

    async def story() -> None:
        factory, _ = house.factory()
        log = await factory.open(NAME, CONFIG)
        positions = await three_ledgers(log)
        for ledger_id in (positions[-1].ledger_id, 12345):
            with pytest.raises(NoSuchLedgerInLog):
                await log.skip_lost_ledger(ledger_id)
        with pytest.raises(ManagedLedgerError):
            await factory.skip_lost_ledger(NAME, 12345)
        assert log.number_of_entries == 6

    house.run(story())


def test_a_lost_ledger_goes_when_those_before_it_are_trimmed() -> None:
    house = House()
    trimmed = ManagedLedgerConfig(3, 3, 2, min_rollover_s=0)

    async def story() -> None:
        factory, client = house.factory()
        log = await factory.open(NAME, trimmed)
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await three_ledgers(log)
        await log.skip_lost_ledger(positions[2].ledger_id)
        assert positions[2].ledger_id in await client.list()
        cursor.acknowledge_cumulative(positions[4])
        await log.trim()
        await asyncio.sleep(1)
        assert not log.keeper.record.lost
        left = set(await client.list())
        assert positions[0].ledger_id not in left
        assert positions[2].ledger_id not in left

    house.run(story())
