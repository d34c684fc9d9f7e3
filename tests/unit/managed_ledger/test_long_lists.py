"""A log of more ledgers than one record of the metadata store could name."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.managed_ledger.chapters import chapter_path
from magnetar.managed_ledger.deletion import LogRemover
from magnetar.managed_ledger.errors import RecordUnreadable
from magnetar.managed_ledger.record_keeper import RecordKeeper
from magnetar.managed_ledger.records import ListedLedger, LogRecord, log_path
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.metadata.store import MUST_NOT_EXIST, VALUE_BYTES_MAX, MetadataStore
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

NAME = "public/default/persistent/topic"
SIZE = 2048 * 1024 * 1024


class House:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.store: MetadataStore = MemoryEnsemble().connect(self.clock)
        dice = random.Random(3)
        bookies = MemoryBookies({"b": MemoryBookie("b")}, dice, BookieFaults())
        self.client = LedgerClient(self.store, bookies, clock=self.clock, random=dice)
        self.remover = LogRemover(self.store, self.client, self.clock, dice)
        self.tasks = OwnedTasks(get_logger("test"))

    def keeper(self, record: LogRecord, version: int) -> RecordKeeper:
        return RecordKeeper(
            NAME,
            record,
            self.remover.owned(log_path(NAME), version),
            client=self.client,
            chapters=self.remover.chapters,
            clock=self.clock,
            tasks=self.tasks,
        )

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


def closed(ledger_id: int) -> ListedLedger:
    return ListedLedger(ledger_id, 50_000, SIZE, 1_700_000_000_000 + ledger_id)


async def value_size(house: House) -> int:
    found = await house.store.get(log_path(NAME))
    assert found is not None
    return len(found.value)


def test_thirty_thousand_ledgers_are_named_by_small_records() -> None:
    house = House()
    everything = tuple(closed(10**7 + each) for each in range(30_000))

    async def story() -> None:
        keeper = house.keeper(LogRecord(), MUST_NOT_EXIST)
        await keeper.change(lambda record: replace(record, ledgers=everything))
        assert await value_size(house) < VALUE_BYTES_MAX // 4
        found, version = await house.remover.read_record(NAME)
        assert found is not None
        assert found.ledgers == everything
        # The next owner goes on: one more, then the older half is dropped, then all.
        keeper = house.keeper(found, version)
        await keeper.change(lambda record: replace(record, ledgers=(*record.ledgers, closed(2 * 10**7))))
        await keeper.change(lambda record: replace(record, ledgers=record.ledgers[15_500:]))
        await house.tasks.drain()
        found, version = await house.remover.read_record(NAME)
        assert found is not None
        assert found.ledgers == (*everything[15_500:], closed(2 * 10**7))
        assert len(found.chapters) == len(await house.store.children(f"/managed-ledger-lists/{NAME}"))
        keeper = house.keeper(found, version)
        await keeper.change(lambda record: replace(record, ledgers=record.ledgers[-1:]))
        await house.tasks.drain()
        assert not await house.store.children(f"/managed-ledger-lists/{NAME}")
        assert await value_size(house) < 1000

    house.run(story())


def test_a_short_list_is_written_as_it_always_was() -> None:
    """So that the version before this can still open it."""
    house = House()

    async def story() -> None:
        keeper = house.keeper(LogRecord(), MUST_NOT_EXIST)
        await keeper.change(lambda record: replace(record, ledgers=tuple(map(closed, range(1500)))))
        found = await house.store.get(log_path(NAME))
        assert found is not None
        assert found.value.startswith(b'{"version":1,')

    house.run(story())


def test_a_chapter_that_is_lost_is_told_and_not_taken_for_an_empty_one() -> None:
    house = House()

    async def story() -> None:
        keeper = house.keeper(LogRecord(), MUST_NOT_EXIST)
        await keeper.change(lambda record: replace(record, ledgers=tuple(map(closed, range(3000)))))
        await house.store.delete(chapter_path(NAME, keeper.record.chapters[0]))
        with pytest.raises(RecordUnreadable, match="is missing"):
            await house.remover.read_record(NAME)

    house.run(story())


def test_deleting_the_log_deletes_its_chapters() -> None:
    house = House()

    async def story() -> None:
        keeper = house.keeper(LogRecord(), MUST_NOT_EXIST)
        await keeper.change(lambda record: replace(record, ledgers=tuple(map(closed, range(3000)))))
        assert await house.store.children(f"/managed-ledger-lists/{NAME}")
        await house.remover.delete(NAME)
        assert not await house.store.exists(f"/managed-ledger-lists/{NAME}")
        assert await house.remover.read_record(NAME) == (None, MUST_NOT_EXIST)

    house.run(story())


def test_a_deletion_that_was_cut_short_among_the_chapters_is_finished() -> None:
    """Chapters go one by one, before the record: what names them must not be taken for a damaged list."""
    house = House()

    async def story() -> None:
        keeper = house.keeper(LogRecord(), MUST_NOT_EXIST)
        await keeper.change(lambda record: replace(record, ledgers=tuple(map(closed, range(4000)))))
        first, *others = keeper.record.chapters
        assert others
        await keeper.change(lambda record: replace(record, deleted=True))
        await house.store.delete(chapter_path(NAME, first))
        await house.remover.delete(NAME)
        assert not await house.store.exists(f"/managed-ledger-lists/{NAME}")
        assert await house.remover.read_record(NAME) == (None, MUST_NOT_EXIST)

    house.run(story())
