"""Cursors with more holes than metadata take: nothing of them is ever left out."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from magnetar.environment import crash
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger import cursor_store
from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_state import CursorSnapshot
from magnetar.managed_ledger.errors import StorageUnavailable
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.records import CursorRecord, cursor_path, encode_cursor, encode_snapshot
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(
    3,
    3,
    2,
    min_rollover_s=0,
    retention_time_s=UNLIMITED,
    retention_size_bytes=UNLIMITED,
    storage_retry_s=1,
    max_entries_per_cursor_ledger=40,
)
ENTRIES = 2200


class Owner:
    def __init__(self, house: House) -> None:
        dice = random.Random(house.owners)
        self.bookies = MemoryBookies(house.bookies, dice, BookieFaults(delay_s=0.001))
        self.store = FaultyStore(house.metadata.connect(house.clock), dice, MetadataFaults())
        self.client = LedgerClient(self.store, self.bookies, clock=house.clock, random=dice)
        self.factory = ManagedLedgerFactory(self.store, self.client, clock=house.clock, random=dice)

    async def open(self) -> ManagedLedger:
        return await self.factory.open(NAME, CONFIG)

    def kill(self, house: House) -> None:
        self.store.cut = True
        for bookie in house.bookies:
            self.bookies.connection(bookie).cut = True


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(3)}
        self.metadata = MemoryEnsemble()
        self.owners = 0

    def owner(self) -> Owner:
        self.owners += 1
        return Owner(self)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


async def filled(log: ManagedLedger, number: int) -> list[Position]:
    positions: list[Position] = []
    all_stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(position: Position | None, index: int, error: Exception | None) -> None:
        assert position is not None
        positions.append(position)
        if len(positions) == number:
            all_stored.set_result(None)

    for _ in range(number):
        log.append((b"\x0e\x01", b"m"), 1, done)
    await all_stored
    return positions


def acknowledged(cursor: Cursor, positions: list[Position]) -> set[Position]:
    return {position for position in positions if cursor.is_acknowledged(position)}


def test_holes_beyond_all_limits_come_back_after_a_death_and_after_a_close() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, ENTRIES)
        cursor.acknowledge([(position, None) for position in positions[1::2]])
        await cursor.flush()
        for position in positions[100:160:2]:
            cursor.acknowledge([(position, None)])
            await cursor.flush()
        expected = acknowledged(cursor, positions)
        assert len(expected) == ENTRIES // 2 + 30
        owner.kill(house)
        second = house.owner()
        again = (await second.open()).cursors["c"]
        assert acknowledged(again, positions) == expected
        assert again.backlog == ENTRIES - len(expected)
        again.acknowledge([(positions[4], None)])
        await second.factory.close()
        third = (await house.owner().open()).cursors["c"]
        assert acknowledged(third, positions) == expected | {positions[4]}

    house.run(story())


def test_a_hole_is_written_once_and_not_with_every_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House()
    sizes: list[int] = []
    correct = LedgerWriter.append

    def measured(self: LedgerWriter, parts: Any, done: Any) -> None:
        sizes.append(sum(map(len, parts)))
        correct(self, parts, done)

    async def story() -> None:
        monkeypatch.setattr(cursor_store, "_SMALL_WEIGHT", 0)
        log = await house.owner().open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 8000)
        dice = random.Random(1)
        cursor.acknowledge([(each, None) for each in dice.sample(positions[1:], 4000)])
        monkeypatch.setattr(LedgerWriter, "append", measured)
        await cursor.flush()
        assert 1000 < sum(sizes) < 1200  # A bitmap.
        sizes.clear()
        for position in dice.sample(positions[1:], 30):
            cursor.acknowledge([(position, None)])
            await cursor.flush()
        assert sum(sizes) < 30 * 150

    house.run(story())


def test_what_metadata_do_not_take_waits_for_bookies_and_nothing_is_left_out() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, ENTRIES)
        cursor.acknowledge([(position, None) for position in positions[1::2]])
        await cursor.flush()
        expected = acknowledged(cursor, positions)
        for bookie in house.bookies.values():
            bookie.crash()
        cursor.acknowledge([(positions[2], None)])
        with pytest.raises(StorageUnavailable):
            await cursor.flush()
        assert cursor.dirty
        for bookie in house.bookies.values():
            bookie.restart()
        stranger = house.owner()
        again = (await stranger.open()).cursors["c"]
        assert acknowledged(again, positions) >= expected

    house.run(story())


@pytest.mark.parametrize("many", [False, True], ids=["small", "large"])
def test_a_cursor_ledger_of_whole_states_as_it_was_before_is_read(*, many: bool) -> None:
    """Format 1: each entry is a whole state, and the last one holds."""
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        positions = await filled(log, ENTRIES)
        await owner.factory.close()
        ledger = await owner.client.create(3, 3, 2)
        ledger_id, number = positions[0].ledger_id, 1050 if many else 3
        for count in (1, number):
            state = CursorSnapshot(
                positions[0],
                tuple((ledger_id, 2 * each, 2 * each) for each in range(1, count + 1)),
                ((positions[1], (5,)),),
                {"producer": 9},
            )
            stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def done(entry_id: int, error: LedgerError | None, stored: asyncio.Future[None] = stored) -> None:
                stored.set_result(None)

            ledger.append((encode_snapshot(state),), done)
            await stored
        record = CursorRecord(CursorSnapshot(positions[0]), ledger.ledger_id)
        await owner.store.put(cursor_path(NAME, "old"), encode_cursor(record, "r"))
        for _ in range(2):  # As it was written, and as we write it.
            second = house.owner()
            cursor = (await second.open()).cursors["old"]
            assert cursor.backlog == ENTRIES - 1 - number
            assert cursor.is_acknowledged(positions[2 * number])
            assert cursor.ack_set(positions[1]) == [5]
            assert cursor.properties == {"producer": 9}
            await second.factory.close()

    house.run(story())


class Died(BaseException):
    pass


def test_a_death_at_any_write_of_a_large_cursor_loses_nothing_that_was_flushed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each record, each ledger, each compare-and-set is a last one, once."""
    monkeypatch.setattr(cursor_store, "RECORD_BYTES_MAX", 50)
    monkeypatch.setattr(cursor_store, "_SMALL_WEIGHT", -1)
    monkeypatch.setattr(cursor_store, "RANGES_IN_METADATA", 3)
    logging.disable(logging.CRITICAL)
    correct = LedgerWriter.append
    try:
        for fatal in range(1, 200):
            monkeypatch.setattr(LedgerWriter, "append", correct)
            if not _dies_at(fatal, monkeypatch):
                assert fatal > 15
                return
        raise AssertionError("it never came to an end")
    finally:
        crash.observe(None)
        logging.disable(logging.NOTSET)


def _dies_at(fatal: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    house, step = House(), 0
    correct = LedgerWriter.append

    async def story() -> bool:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 300)
        flushed: set[Position] = set()
        dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def pass_by(*_: object) -> None:
            nonlocal step
            step += 1
            if step >= fatal:
                owner.kill(house)
                if not dead.done():
                    dead.set_result(None)
                raise Died

        def dying(self: LedgerWriter, parts: Any, done: Any) -> None:
            pass_by()
            correct(self, parts, done)

        async def work() -> None:
            nonlocal flushed
            dice = random.Random(fatal)
            for number in range(12):
                cursor.acknowledge([(each, None) for each in dice.sample(positions[1:], 12)])
                if number == 8:
                    flushed = set()  # It may be moved from now on.
                    await cursor.reset(positions[20])
                await cursor.flush()
                flushed = acknowledged(cursor, positions)

        monkeypatch.setattr(LedgerWriter, "append", dying)
        crash.observe(pass_by)
        working = asyncio.ensure_future(work())
        await asyncio.wait([working, dead], return_when=asyncio.FIRST_COMPLETED)
        crash.observe(None)
        monkeypatch.setattr(LedgerWriter, "append", correct)
        asked = {position for position in positions if cursor.is_acknowledged(position)}
        again = (await house.owner().open()).cursors["c"]
        found = acknowledged(again, positions)
        if step >= fatal:
            assert flushed <= found, f"died at {fatal}: {len(flushed - found)} lost"
        else:
            assert found == asked
        return step >= fatal

    return house.loop.run(story())
