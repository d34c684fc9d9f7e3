"""A topic's log over bookies in memory, in virtual time: told as stories."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger import EARLIEST, LATEST, ManagedLedger, ManagedLedgerConfig, Position
from magnetar.managed_ledger.config import UNLIMITED
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import (
    AppendFailed,
    CursorClosed,
    EntryTooLarge,
    EntryUnreadable,
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    NoSuchCursor,
    NoSuchManagedLedger,
    StorageUnavailable,
)
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.records import decode_log, log_path
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.metadata.store import Versioned
from magnetar.protocol.entry import split_entry
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "public/default/persistent/topic"
CONFIG = ManagedLedgerConfig(
    3, 3, 2, min_rollover_s=0, retention_time_s=UNLIMITED, retention_size_bytes=UNLIMITED
)
TRIMMED = replace(CONFIG, retention_time_s=0, retention_size_bytes=0)
MB = 1 << 20


class Owner:
    """One broker's share of the storage: a factory and the clients below it."""

    def __init__(self, house: House, faults: MetadataFaults, cache_bytes: int) -> None:
        dice = random.Random(len(house.owners))
        self.bookies = MemoryBookies(house.bookies, dice, BookieFaults(delay_s=0.001))
        self.store = FaultyStore(house.metadata.connect(house.clock), dice, faults)
        self.client = LedgerClient(self.store, self.bookies, clock=house.clock, random=dice)
        self.cache = EntryCache(cache_bytes)
        self.factory = ManagedLedgerFactory(
            self.store, self.client, clock=house.clock, cache=self.cache, random=dice
        )

    async def open(self, config: ManagedLedgerConfig = CONFIG, **options: Any) -> ManagedLedger:
        return await self.factory.open(NAME, config, **options)

    def cut_off(self, house: House) -> None:
        """No bookie hears or answers this owner any more."""
        for bookie in house.bookies:
            self.bookies.connection(bookie).cut = True


class House:
    def __init__(self, bookies: int = 3) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(bookies)}
        self.metadata = MemoryEnsemble()
        self.owners: list[Owner] = []

    def owner(self, faults: MetadataFaults | None = None, *, cache_bytes: int = MB) -> Owner:
        owner = Owner(self, faults or MetadataFaults(), cache_bytes)
        self.owners.append(owner)
        return owner

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


class Appends:
    """Appends messages and keeps what was told about each, in the order in which it was told."""

    def __init__(self, log: ManagedLedger) -> None:
        self.log = log
        self.stored: list[tuple[Position, int, bytes]] = []
        self.failed: list[tuple[bytes, Exception]] = []

    def append(self, *payloads: bytes, messages: int = 1) -> None:
        for payload in payloads:

            def done(
                position: Position | None, index: int, error: Exception | None, payload: bytes = payload
            ) -> None:
                if position is not None:
                    assert error is None
                    self.stored.append((position, index, payload))
                else:
                    assert error is not None
                    self.failed.append((payload, error))

            self.log.append((b"\x0e\x01", payload), messages, done)

    async def all_answered(self, number: int) -> None:
        await until(lambda: len(self.stored) + len(self.failed) >= number)

    @property
    def positions(self) -> list[Position]:
        return [position for position, _, _ in self.stored]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def payloads(number: int, start: int = 0) -> list[bytes]:
    return [b"message %d" % each for each in range(start, start + number)]


async def filled(log: ManagedLedger, number: int, start: int = 0) -> list[Position]:
    appends = Appends(log)
    appends.append(*payloads(number, start))
    await appends.all_answered(number)
    assert not appends.failed
    return appends.positions


async def read_all(cursor: Cursor, at_once: int = 7) -> list[bytes]:
    found: list[bytes] = []
    while cursor.has_more():
        found += [entry.data[2:] for entry in await cursor.read(at_once, MB)]
    return found


# Appending.


def test_positions_rise_indexes_are_dense_and_entries_come_back_as_given() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entries_per_ledger=4))
        appends = Appends(log)
        appends.append(b"one")
        appends.append(b"a batch of three", messages=3)
        appends.append(*payloads(10))
        await appends.all_answered(12)
        assert appends.positions == sorted(set(appends.positions))
        assert [index for _, index, _ in appends.stored] == [0, 3, *range(4, 14)]
        assert log.next_index == 14
        assert len({position.ledger_id for position in appends.positions}) == 3
        assert log.last_confirmed == appends.positions[-1]
        assert log.first_position == appends.positions[0]
        assert log.number_of_entries == 12
        entry = await log.read_entry(appends.positions[1])
        assert (entry.data, entry.index) == (b"\x0e\x01a batch of three", 3)
        assert split_entry(entry.raw).index == 3
        assert split_entry(entry.raw).broker_timestamp == entry.broker_timestamp
        with pytest.raises(EntryUnreadable):
            await log.read_entry(Position(appends.positions[0].ledger_id, 99))

    house.run(story())


def test_listeners_are_called_once_for_what_completes_together(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(1)

    async def story() -> None:
        log = await house.owner().open(ManagedLedgerConfig())
        calls: list[int] = []
        appends = Appends(log)
        log.on_append(lambda: calls.append(len(appends.stored)))
        bookie = house.bookies["b0"]
        answers: list[Callable[[], None]] = []
        connection = house.owners[0].bookies.connection("b0")
        add_entry: Callable[..., None] = connection.add_entry

        def hold(*arguments: Any) -> None:
            add_entry(*arguments[:-1], lambda status: answers.append(partial(arguments[-1], status)))

        monkeypatch.setattr(connection, "add_entry", hold)
        appends.append(*payloads(50))
        await until(lambda: len(answers) == 50)
        for answer in answers:
            answer()
        await until(lambda: bool(calls))
        assert calls == [50]
        assert bookie.holds(appends.positions[0].ledger_id, 49)

    house.run(story())


def test_entries_rejected_for_their_size_leave_no_gap() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entry_bytes=100))
        appends = Appends(log)
        appends.append(b"x")
        appends.append(b"x" * 200)
        appends.append(b"y")
        await appends.all_answered(3)
        assert [index for _, index, _ in appends.stored] == [0, 1]
        assert isinstance(appends.failed[0][1], EntryTooLarge)

    house.run(story())


def test_a_ledger_is_left_when_it_is_full_or_old() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_size_bytes=60, min_rollover_s=5))
        await filled(log, 10)
        assert len(log.ledgers) == 1, "too young to be left, however full"
        await asyncio.sleep(6)
        assert len(log.ledgers) == 2
        log.set_config(replace(CONFIG, max_rollover_s=20))
        await asyncio.sleep(30)
        assert len(log.ledgers) == 2, "an empty ledger is never too old"
        await filled(log, 1)
        await asyncio.sleep(30)
        assert len(log.ledgers) == 3
        await log.roll()
        assert len(log.ledgers) == 3, "it holds nothing"
        await filled(log, 1)
        await log.roll()
        assert len(log.ledgers) == 4

    house.run(story())


def test_when_a_ledger_fails_what_waits_goes_on_in_the_next_once_each_and_in_order() -> None:
    house = House(6)

    async def story() -> None:
        log = await house.owner().open(ManagedLedgerConfig(3, 3, 3, min_rollover_s=0))
        appends = Appends(log)
        for number in range(100):
            appends.append(b"message %d" % number)
            if number == 50:
                assert log.writer is not None
                for bookie in log.writer.metadata.segments[-1].ensemble:
                    house.bookies[bookie].crash()
            if number % 10 == 0:
                await asyncio.sleep(0.002)
        await asyncio.sleep(3)
        for bookie_ in house.bookies.values():
            bookie_.restart()
        await appends.all_answered(100)
        stored = [payload for _, _, payload in appends.stored]
        assert not appends.failed
        assert stored == payloads(100)
        cursor = await log.open_cursor("all", durable=False, start=EARLIEST)
        assert await read_all(cursor) == stored
        assert [index for _, index, _ in appends.stored] == list(range(100))

    house.run(story())


def test_when_no_ledger_can_be_had_appends_fail_and_later_ones_succeed() -> None:
    house = House(3)

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, storage_retry_s=2))
        await filled(log, 3)
        house.bookies["b0"].crash()
        house.bookies["b1"].crash()
        appends = Appends(log)
        appends.append(*payloads(5))
        await appends.all_answered(5)
        assert [payload for payload, _ in appends.failed] == payloads(5)
        assert all(isinstance(error, AppendFailed) for _, error in appends.failed)
        house.bookies["b0"].restart()
        house.bookies["b1"].restart()
        appends = Appends(log)
        appends.append(b"again")
        await appends.all_answered(1)
        assert appends.stored[0][1] == 3, "what failed has taken no index"
        cursor = await log.open_cursor("all", durable=False, start=EARLIEST)
        assert await read_all(cursor) == [*payloads(3), b"again"]

    house.run(story())


# Ownership.


def test_a_second_owner_deposes_the_first_and_nothing_acknowledged_is_lost() -> None:
    house = House()

    async def story() -> None:
        first = await house.owner().open()
        appends = Appends(first)
        appends.append(*payloads(20))
        await until(lambda: len(appends.stored) > 5)
        deposed: list[bool] = []
        first.on_fenced(lambda: deposed.append(True))
        second = await house.owner().open()
        known = len(appends.stored)
        appends.append(b"too late")
        await appends.all_answered(21)
        assert isinstance(appends.failed[-1][1], ManagedLedgerFenced)
        await until(lambda: bool(deposed))
        assert first.state == "fenced"
        cursor = await second.open_cursor("all", durable=False, start=EARLIEST)
        found = await read_all(cursor)
        assert found[:known] == payloads(20)[:known]
        assert found == payloads(20)[: len(found)]
        assert second.next_index == len(found)
        with pytest.raises(ManagedLedgerFenced):
            await first.open_cursor("c")
        await first.close()

    house.run(story())


def test_an_owner_who_rolls_to_a_new_ledger_just_then_is_deposed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next owner has read the record, and then it changes: he reads it again and recovers the new ledger."""
    house = House()

    async def story() -> None:
        first = await house.owner().open()
        await filled(first, 5)
        second_owner = house.owner()
        read = second_owner.store.get
        rolls = iter(range(2))

        async def read_and_be_outrun(path: str) -> Versioned | None:
            found = await read(path)
            if path == log_path(NAME) and next(rolls, None) is not None:
                await first.roll()
                await filled(first, 5, len(first.ledgers) * 5)
            return found

        monkeypatch.setattr(second_owner.store, "get", read_and_be_outrun)
        second = await second_owner.open()
        appends = Appends(first)
        appends.append(b"too late")
        await appends.all_answered(1)
        assert isinstance(appends.failed[0][1], ManagedLedgerFenced)
        cursor = await second.open_cursor("all", durable=False, start=EARLIEST)
        assert len(await read_all(cursor)) == second.next_index == 15

    house.run(story())


def test_a_deposed_owner_cannot_move_a_cursor_not_even_through_the_metadata() -> None:
    """Its cursor ledger is fenced; it must not fall back on the record, where it would undo the new owner's."""
    house = House()

    async def story() -> None:
        first_owner = house.owner()
        first = await first_owner.open()
        cursor = await first.open_cursor("c", initial="earliest")
        positions = await filled(first, 10)
        cursor.acknowledge_cumulative(positions[1])
        await cursor.flush()  # From now on it has a ledger.
        second = await house.owner().open()
        taken = second.cursors["c"]
        taken.acknowledge_cumulative(positions[7])
        await taken.flush()
        cursor.acknowledge_cumulative(positions[3])
        ledgers = await first_owner.client.list()
        with pytest.raises(ManagedLedgerFenced):
            await cursor.flush()
        assert first.state == "fenced"
        assert await first_owner.client.list() == ledgers, "it has not even tried elsewhere"
        await second.close()
        third = await house.owner().open()
        assert third.cursors["c"].mark_delete == positions[7]

    house.run(story())


def test_an_owner_that_lost_only_the_metadata_finds_out_at_its_next_ledger() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_ledger=5))
        await filled(log, 3)
        record = await owner.store.get(log_path(NAME))
        assert record is not None
        await house.metadata.connect().put(log_path(NAME), record.value)  # Somebody has written: anything.
        appends = Appends(log)
        appends.append(*payloads(10))
        await appends.all_answered(10)
        assert len(appends.stored) == 2
        assert all(isinstance(error, ManagedLedgerFenced) for _, error in appends.failed)

    house.run(story())


def test_lost_answers_of_the_metadata_store_depose_nobody() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner(MetadataFaults(lost_answer=0.2, lost_request=0.1, late=0.05, delay_s=0.01))
        log = None
        while log is None:
            try:
                log = await owner.open(replace(CONFIG, max_entries_per_ledger=5))
            except (StorageUnavailable, ManagedLedgerFenced):
                continue
        appends = Appends(log)
        appends.append(*payloads(60))
        await appends.all_answered(60)
        assert not appends.failed, appends.failed[0]
        cursor = await log.open_cursor("all", durable=False, start=EARLIEST)
        assert await read_all(cursor) == payloads(60)

    house.run(story())


# Opening again.


def test_a_log_goes_on_where_it_was_left_closed_or_killed() -> None:
    house = House()

    async def story() -> None:
        before: list[bytes] = []
        for life in range(4):
            owner = house.owner()
            log = await owner.open(properties={"made": "first"})
            assert log.next_index == len(before)
            assert log.properties == {"made": "first"}
            cursor = await log.open_cursor(f"reader {life}", durable=False, start=EARLIEST)
            assert await read_all(cursor) == before
            await filled(log, 7, len(before))
            before += payloads(7, len(before))
            if life % 2:
                await owner.factory.close()
            else:
                owner.cut_off(house)
        assert len(log.ledgers) <= 5

    house.run(story())


def test_opening_and_closing_leaves_no_ledger_behind() -> None:
    house = House()

    async def story() -> None:
        for _ in range(5):
            owner = house.owner()
            log = await owner.open()
            await owner.factory.close()
            assert log.state == "closed"
        assert await house.owner().client.list() == []

    house.run(story())


def test_opening_twice_gives_the_same_log_and_closing_a_new_one() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        one, two = await asyncio.gather(owner.open(), owner.open())
        assert one is two
        await one.close()
        appends = Appends(one)
        appends.append(b"x")
        await appends.all_answered(1)
        assert isinstance(appends.failed[0][1], ManagedLedgerClosed)
        with pytest.raises(ManagedLedgerClosed):
            await one.open_cursor("c")
        three = await owner.open()
        assert three is not one
        with pytest.raises(NoSuchManagedLedger):
            await owner.factory.open("public/default/persistent/other", CONFIG, create=False)
        assert await owner.factory.list("public/default/persistent") == ["public/default/persistent/topic"]
        assert await owner.factory.exists(NAME)

    house.run(story())


def test_a_deleted_log_leaves_nothing_behind_and_can_be_made_anew() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_ledger=3))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 10)
        cursor.acknowledge([(positions[5], None)])
        await cursor.flush()
        await owner.factory.delete(NAME)
        assert await owner.client.list() == []
        assert not await owner.factory.exists(NAME)
        assert await owner.factory.list("public/default/persistent") == []
        with pytest.raises(NoSuchManagedLedger):
            await owner.factory.delete(NAME)
        again = await owner.open()
        assert (again.next_index, list(again.cursors)) == (0, [])

    house.run(story())


def test_a_deletion_cut_short_is_finished_by_whoever_comes_next() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_ledger=3))
        await log.open_cursor("c")
        await filled(log, 10)
        await log.close()
        deleting = asyncio.ensure_future(owner.factory.delete(NAME))
        store = owner.store
        put = store.put

        async def put_then_die(*arguments: Any, **options: Any) -> int:
            await put(*arguments, **options)
            raise asyncio.CancelledError

        store.put = put_then_die  # type: ignore[method-assign]
        await asyncio.wait([deleting])
        other = house.owner()
        assert not await other.factory.exists(NAME)
        again = await other.open()
        assert again.number_of_entries == 0
        assert again.next_index == 0

    house.run(story())


# Terminating.


def test_a_terminated_log_takes_no_more_and_says_where_it_ends() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        appends = Appends(log)
        appends.append(*payloads(10))
        last = await log.terminate()
        assert len(appends.stored) == 10, "what was on its way is stored first"
        assert last == appends.positions[-1] == await log.terminate()
        appends.append(b"more")
        await appends.all_answered(11)
        assert isinstance(appends.failed[0][1], ManagedLedgerTerminated)
        assert await read_all(cursor) == payloads(10)
        cursor.acknowledge_cumulative(last)
        await owner.factory.close()
        again = await house.owner().open()
        assert again.terminated
        assert again.state == "terminated"
        assert again.last_confirmed == last
        assert again.cursors["c"].backlog == 0
        appends = Appends(again)
        appends.append(b"more")
        await appends.all_answered(1)
        assert isinstance(appends.failed[0][1], ManagedLedgerTerminated)

    house.run(story())


# Cursors.


def test_a_cursor_skips_what_is_acknowledged_and_remembers_it_over_a_death() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_ledger=4))
        cursor = await log.open_cursor("c", initial="earliest", properties={"k": "v"})
        positions = await filled(log, 12)
        assert await read_all(cursor) == payloads(12)
        finished = cursor.acknowledge(
            [(positions[0], None), (positions[5], None), (positions[5], None), (positions[7], [0b10])]
        )
        assert finished == [positions[0], positions[5]]
        assert cursor.acknowledge([(positions[7], [0b01])]) == [positions[7]]
        cursor.acknowledge([(positions[9], [0b110])])
        assert cursor.mark_delete == positions[0]
        assert cursor.backlog == 9
        assert cursor.ack_set(positions[9]) == [0b110]
        await cursor.flush()
        cursor.acknowledge([(positions[11], None)])  # Not flushed: may be delivered again.
        owner.cut_off(house)
        again = (await house.owner().open()).cursors["c"]
        assert again.mark_delete == positions[0]
        assert again.backlog == 9
        assert again.ack_set(positions[9]) == [0b110]
        assert again.cursor_properties == {"k": "v"}
        assert again.is_acknowledged(positions[5])
        left = [number for number in range(12) if number not in (0, 5, 7)]
        assert await read_all(again) == [b"message %d" % number for number in left]
        assert await again.read(10, MB) == []
        again.rewind()
        assert len(await read_all(again)) == 9

    house.run(story())


def test_a_cursor_is_written_now_and_then_by_itself_and_at_a_close() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 6)
        cursor.acknowledge_cumulative(positions[2])
        await until(lambda: not cursor.dirty)
        owner.cut_off(house)
        other = house.owner()
        again = (await other.open()).cursors["c"]
        assert again.mark_delete == positions[2]
        again.acknowledge_cumulative(positions[4], properties={"producer": 17})
        await other.factory.close()
        last = (await house.owner().open()).cursors["c"]
        assert (last.mark_delete, last.properties) == (positions[4], {"producer": 17})

    house.run(story())


def test_latest_and_earliest_and_a_start() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entries_per_ledger=3))
        positions = await filled(log, 7)
        latest = await log.open_cursor("latest")
        earliest = await log.open_cursor("earliest", initial="earliest")
        middle = await log.open_cursor("middle", start=positions[3], durable=False)
        assert (latest.backlog, earliest.backlog, middle.backlog) == (0, 7, 4)
        await filled(log, 1, 7)
        assert await read_all(latest) == payloads(1, 7)
        assert await read_all(earliest) == payloads(8)
        assert await read_all(middle) == payloads(5, 3)
        assert await log.open_cursor("latest") is latest
        assert set(log.cursors) == {"latest", "earliest", "middle"}
        assert not middle.durable

    house.run(story())


def test_seeking_goes_back_and_forth_and_is_durable() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_ledger=3))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 9)
        cursor.acknowledge_cumulative(LATEST)
        assert cursor.backlog == 0
        await cursor.reset(positions[3], [0b100])
        assert cursor.backlog == 6
        assert cursor.ack_set(positions[3]) == [0b100]
        owner.cut_off(house)
        again = (await house.owner().open(CONFIG)).cursors["c"]
        assert await read_all(again) == payloads(6, 3)
        assert again.ack_set(positions[3]) == [0b100]
        await again.reset(EARLIEST)
        assert again.backlog == 9
        await again.reset(LATEST)
        assert again.backlog == 0
        assert not again.has_more()

    house.run(story())


def test_a_read_in_flight_does_not_move_a_cursor_that_was_moved_meanwhile() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 10)
        reading = asyncio.ensure_future(cursor.read(5, MB))
        await asyncio.sleep(0)
        await cursor.reset(positions[8])
        assert await reading == []
        assert await read_all(cursor) == payloads(2, 8)

    house.run(story())


def test_entries_are_read_again_where_they_lie() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entries_per_ledger=4))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 12)
        await read_all(cursor)
        wanted = [
            positions[9],
            positions[2],
            positions[3],
            positions[4],
            Position(99, 0),
            positions[2].following,
        ]
        found = await cursor.read_entries_at(wanted)
        assert [entry.data[2:] for entry in found] == [b"message %d" % each for each in (2, 3, 4, 9)]
        assert cursor.read_position > positions[11]

    house.run(story())


def test_a_deleted_cursor_is_gone_and_its_ledger_too() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("a/b c", initial="earliest")
        positions = await filled(log, 3)
        cursor.acknowledge([(positions[1], None)])
        await cursor.flush()
        assert len(await owner.client.list()) == 2
        await log.delete_cursor("a/b c")
        assert await owner.client.list() == [positions[0].ledger_id]
        with pytest.raises(NoSuchCursor):
            await log.delete_cursor("a/b c")
        with pytest.raises(CursorClosed):
            cursor.acknowledge([(positions[0], None)])
        fresh = await log.open_cursor("a/b c")
        assert fresh.backlog == 0
        await owner.factory.close()
        assert list((await house.owner().open()).cursors) == ["a/b c"]

    house.run(story())


def test_whoever_opens_a_cursor_that_is_being_made_closed_or_deleted_waits_for_that() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner(MetadataFaults(delay_s=0.05)).open()
        positions = await filled(log, 5)
        one, two = await asyncio.gather(
            log.open_cursor("c", initial="earliest"), log.open_cursor("c", initial="earliest")
        )
        assert one is two
        one.acknowledge_cumulative(positions[2])
        _, again = await asyncio.gather(one.close(), log.open_cursor("c"))
        assert again is not one
        assert again.mark_delete == positions[2]
        _, fresh = await asyncio.gather(log.delete_cursor("c"), log.open_cursor("c", initial="earliest"))
        assert fresh.backlog == 5
        with pytest.raises(NoSuchCursor):
            await asyncio.gather(log.delete_cursor("c"), log.delete_cursor("c"))
        assert log.state == "open"

    house.run(story())


def test_a_deposed_owner_makes_no_cursor() -> None:
    house = House()

    async def story() -> None:
        first = await house.owner().open()
        second = await house.owner().open()
        with pytest.raises(ManagedLedgerFenced):
            await first.open_cursor("c")
        assert first.state == "fenced"
        assert not first.cursors
        assert not second.cursors

    house.run(story())


def test_cursor_ledgers_roll_and_old_ones_go() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_cursor_ledger=5))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 30)
        for position in positions[:20]:
            cursor.acknowledge([(position, None)])
            await cursor.flush()
        await until(lambda: True)
        assert len(await owner.client.list()) == 2
        owner.cut_off(house)
        assert (await house.owner().open()).cursors["c"].mark_delete == positions[19]

    house.run(story())


def test_without_bookies_a_cursor_is_kept_in_the_metadata() -> None:
    house = House(3)

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 6)
        cursor.acknowledge_cumulative(positions[0])
        await cursor.flush()
        for bookie in house.bookies.values():
            bookie.crash()
        cursor.acknowledge([(positions[3], None)])
        await cursor.flush()
        for bookie in house.bookies.values():
            bookie.restart()
        owner.cut_off(house)
        again = (await house.owner().open()).cursors["c"]
        assert again.mark_delete == positions[0]
        assert again.is_acknowledged(positions[3])

    house.run(story())


# Trimming.


def test_ledgers_that_all_cursors_have_passed_go() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(TRIMMED, max_entries_per_ledger=3))
        slow = await log.open_cursor("slow", initial="earliest")
        quick = await log.open_cursor("quick", initial="earliest")
        idle = await log.open_cursor("idle reader", durable=False, start=EARLIEST)
        positions = await filled(log, 11)
        quick.acknowledge_cumulative(LATEST)
        await asyncio.sleep(1)
        assert len(log.ledgers) == 4
        slow.acknowledge_cumulative(positions[6])
        await until(lambda: len(log.ledgers) == 2)
        assert log.first_position == positions[6]._replace(entry_id=0)
        assert idle.backlog == 5, "a reader does not hold back, and goes on at the first entry there is"
        assert await read_all(idle) == payloads(5, 6)
        await until(lambda: not log.keeper.record.doomed or len(log.keeper._gone) == 2)
        assert positions[0].ledger_id not in await owner.client.list()
        assert slow.backlog == 4
        await slow.flush()
        owner.cut_off(house)
        again = await house.owner().open(TRIMMED)
        assert again.cursors["slow"].backlog == 4
        assert again.number_of_entries == 5

    house.run(story())


def test_nothing_is_trimmed_before_every_cursor_is_back() -> None:
    """A new owner knows its ledgers before its cursors: what one of them still needs looks free until then."""
    house = House()
    config = replace(CONFIG, max_entries_per_ledger=3)

    async def story() -> None:
        first = house.owner()
        log = await first.open(config)
        quick, slow = await log.open_cursor("quick"), await log.open_cursor("slow")
        await filled(log, 10)
        quick.acknowledge_cumulative(log.last_confirmed)
        slow.acknowledge_cumulative(Position(log.first_position.ledger_id, 0))
        await first.factory.close()
        second = house.owner()
        get, held = second.store.get, asyncio.Event()

        async def get_slowly(path: str) -> Versioned | None:
            if path.endswith("/slow"):
                await held.wait()
            return await get(path)

        second.store.get = get_slowly  # type: ignore[method-assign]
        opening = asyncio.ensure_future(second.open(replace(config, retention_time_s=0)))
        await asyncio.sleep(5)
        assert not opening.done()
        held.set()
        log = await opening
        await asyncio.sleep(5)
        assert log.cursors["slow"].backlog == 9
        assert len(await read_all(log.cursors["slow"])) == 9
        assert log.number_of_entries == 10
        log.cursors["slow"].acknowledge_cumulative(log.last_confirmed)
        await until(lambda: log.number_of_entries < 10)

    house.run(story())


def test_parts_of_many_large_batches_outgrow_the_metadata_and_survive() -> None:
    """They are kept in the cursor's ledger, over a close and over a crash; the log opens whatever they come to."""
    house = House()
    left = [1] * 100

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 1500)
        cursor.acknowledge([(position, left) for position in positions])
        await cursor.flush()
        owner.cut_off(house)
        second = house.owner()
        log = await second.open()
        assert log.cursors["c"].ack_set(positions[-1]) == left
        log.cursors["c"].acknowledge([(positions[0], None)])
        await second.factory.close()
        again = (await house.owner().open()).cursors["c"]
        assert again.mark_delete == positions[0]
        assert all(again.ack_set(position) == left for position in positions[1:])

    house.run(story())


def test_what_metadata_refuse_is_told_as_what_it_is() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open()
        with pytest.raises(StorageUnavailable, match="1000000"):
            await log.set_properties({"large": "x" * 1_000_000})
        await log.set_properties({"small": "x"})
        assert log.properties == {"small": "x"}

    house.run(story())


def test_ledgers_that_take_nothing_are_not_made_one_after_the_other() -> None:
    """Bookies that are found writable and are not: appends fail in bounded time, after a bounded number of ledgers."""
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, storage_retry_s=10.0))
        await filled(log, 3)
        everyone = await owner.bookies.writable()

        async def writable() -> Any:
            return everyone

        owner.bookies.writable = writable  # type: ignore[method-assign]
        for bookie in house.bookies.values():
            bookie.read_only = True
        before, began = log.highest_ledger_id, house.loop.time()
        appends = Appends(log)
        appends.append(*payloads(5, 3))
        await appends.all_answered(5)
        assert {type(error) for _, error in appends.failed} == {AppendFailed}
        assert 5 < house.loop.time() - began < 20
        assert log.highest_ledger_id - before < 30
        for bookie in house.bookies.values():
            bookie.read_only = False
        await filled(log, 5, 3)
        reader = await log.open_cursor("r", durable=False, start=EARLIEST)
        assert await read_all(reader) == payloads(8)

    house.run(story())


def test_a_deletion_that_was_cut_short_is_no_log_and_can_be_finished() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        await filled(await owner.open(), 3)

        async def never(ledger_id: int) -> None:
            await asyncio.get_running_loop().create_future()

        owner.client.delete = never  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(owner.factory.delete(NAME))
        await asyncio.sleep(1)
        assert not deleting.done()
        deleting.cancel()
        owner.cut_off(house)
        other = house.owner()
        folder = NAME.rpartition("/")[0]
        assert await other.client.list()
        assert not await other.factory.exists(NAME)
        assert await other.factory.list(folder) == []
        await other.factory.finish_deletion(NAME)
        assert await other.client.list() == []
        assert not await other.store.exists(log_path(NAME))
        await filled(await other.open(), 1)
        await other.factory.finish_deletion(NAME)
        assert await other.factory.list(folder) == [NAME]

    house.run(story())


def test_retention_keeps_what_nobody_needs() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entries_per_ledger=3, retention_time_s=100))
        await filled(log, 10)
        await asyncio.sleep(50)
        assert log.number_of_entries == 10
        await asyncio.sleep(60)
        assert log.number_of_entries == 1
        await log.trim()

    house.run(story())


def test_a_crash_between_list_and_deletion_leaves_no_orphan() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open(replace(CONFIG, max_entries_per_ledger=3))
        await filled(log, 10)

        async def never(ledger_id: int) -> None:
            await asyncio.get_running_loop().create_future()

        owner.client.delete = never  # type: ignore[method-assign]
        log.set_config(replace(TRIMMED, max_entries_per_ledger=3))
        await until(lambda: len(log.ledgers) == 1)
        record = await owner.store.get(log_path(NAME))
        assert record is not None
        assert len(decode_log(NAME, record.value).doomed) == 3
        owner.cut_off(house)
        other = house.owner()
        again = await other.open()
        await until(lambda: len(again.keeper._gone) >= 3)
        assert len(await other.client.list()) == 2

    house.run(story())


# Reading.


def test_the_tail_is_read_from_memory_and_memory_is_bounded() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner(cache_bytes=20_000)
        log = await owner.open()
        cursor = await log.open_cursor("c")
        idle = Appends(log)
        idle.append(*[b"x" * 100] * 10)
        await idle.all_answered(10)
        assert owner.cache.size == 0, "nobody reads along"
        assert len(await cursor.read(100, MB)) == 10
        for start in range(0, 100, 10):
            appends = Appends(log)
            appends.append(*[b"y" * 100] * 10)
            await appends.all_answered(10)
            misses = owner.cache.misses
            assert len(await cursor.read(100, MB)) == 10, start
            assert owner.cache.misses == misses
        await asyncio.sleep(1)
        assert owner.cache.size == 0, "everybody has passed it"
        appends = Appends(log)
        appends.append(*[b"z" * 1000] * 100)
        await appends.all_answered(100)
        assert 0 < owner.cache.size <= 20_000
        assert owner.cache.evicted > 70
        found = 0
        while cursor.has_more():
            found += len(await cursor.read(100, MB))
        assert found == 100
        cursor.deactivate()
        assert owner.cache.size == 0

    house.run(story())


def test_entries_are_found_by_time() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entries_per_ledger=3))
        times: list[int] = []
        positions: list[Position] = []
        for number in range(10):
            await asyncio.sleep(1)
            times.append(house.clock.time_ms())
            positions += await filled(log, 1, number)
        assert await log.position_at_time(0) == positions[0]
        for number, time_ms in enumerate(times):
            assert await log.position_at_time(time_ms) == positions[number]
            assert await log.position_at_time(time_ms - 500) == positions[number]
        assert await log.position_at_time(times[-1] + 10_000) is None

    house.run(story())


def test_timestamps_never_fall_whatever_the_clock_does() -> None:
    house = House()

    async def story() -> None:
        owner = house.owner()
        log = await owner.open()
        (first,) = await filled(log, 1)
        house.clock.set_back(60_000)
        (second,) = await filled(log, 1)
        earlier, later = await log.read_entry(first), await log.read_entry(second)
        assert earlier.broker_timestamp == later.broker_timestamp
        owner.cut_off(house)
        again = await house.owner().open()
        (third,) = await filled(again, 1)
        assert (await again.read_entry(third)).broker_timestamp == earlier.broker_timestamp
        assert await again.position_at_time(earlier.broker_timestamp) == first

    house.run(story())


def test_its_statistics_have_pulsars_shape() -> None:
    house = House()

    async def story() -> None:
        log = await house.owner().open(replace(CONFIG, max_entries_per_ledger=3))
        cursor = await log.open_cursor("c", initial="earliest")
        positions = await filled(log, 5)
        cursor.acknowledge([(positions[1], None)])
        stats = log.internal_stats()
        assert stats["numberOfEntries"] == 5
        assert stats["state"] == "LedgerOpened"
        assert stats["lastConfirmedEntry"] == str(positions[-1])
        cursors = stats["cursors"]
        assert isinstance(cursors, dict)
        ledger_id = positions[0].ledger_id
        assert cursors["c"]["markDeletePosition"] == f"{ledger_id}:-1"
        assert cursors["c"]["individuallyDeletedMessages"] == f"[({ledger_id}:0..{ledger_id}:1]]"
        assert 0 < cursor.backlog_bytes < log.total_size

    house.run(story())
