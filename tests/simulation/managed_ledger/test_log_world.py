"""A log that goes from owner to owner in worlds drawn from seeds; and the same worlds with faults planted, which
the invariants must find. One story again: `LogWorld(seed).run()`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger import chapters, cursor_store
from magnetar.managed_ledger.appends import AppendPath
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_state import CursorImage, CursorState
from magnetar.managed_ledger.errors import ManagedLedgerFenced
from magnetar.managed_ledger.owned_record import OwnedRecord
from magnetar.managed_ledger.records import ListedLedger
from magnetar.managed_ledger.retention import droppable
from magnetar.simulation.ledger_world import InvariantBroken
from magnetar.simulation.log_world import LogOutcome, LogWorld

SEEDS = 60
SEEDS_TO_FIND = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """A world full of failures has much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_a_log_keeps_its_promises_from_owner_to_owner() -> None:
    outcomes = [LogWorld(seed).run() for seed in range(SEEDS)]
    # The stories must be worth telling: not all quiet, not all dead.
    assert sum(outcome.stored for outcome in outcomes) > 20 * SEEDS
    assert sum(outcome.failed > 0 for outcome in outcomes) > SEEDS // 20
    assert sum(outcome.deposed for outcome in outcomes) > SEEDS // 10
    assert sum(outcome.owners for outcome in outcomes) > 2 * SEEDS
    assert sum(outcome.acknowledged for outcome in outcomes) > 10 * SEEDS
    assert sum(outcome.trimmed for outcome in outcomes) > SEEDS // 10


@pytest.fixture
def _increments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cursors that are written as if they were large: never to metadata, by increments of many records."""
    monkeypatch.setattr(cursor_store, "_SMALL_WEIGHT", -1)
    monkeypatch.setattr(cursor_store, "RANGES_IN_METADATA", -1)
    monkeypatch.setattr(cursor_store, "RECORD_BYTES_MAX", 50)


@pytest.mark.usefixtures("_increments")
def test_a_log_keeps_its_promises_while_its_cursors_are_large() -> None:
    outcomes = [LogWorld(seed).run() for seed in range(1000, 1000 + SEEDS // 2)]
    assert sum(outcome.acknowledged for outcome in outcomes) > 5 * SEEDS


def test_a_log_keeps_its_promises_while_its_list_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly all ledgers are listed in chapters."""
    monkeypatch.setattr(chapters, "CHAPTER_LEDGERS", 1)
    outcomes = [LogWorld(seed).run() for seed in range(2000, 2000 + SEEDS // 2)]
    assert sum(outcome.ledgers > 3 for outcome in outcomes) > SEEDS // 10
    assert sum(outcome.trimmed for outcome in outcomes) > SEEDS // 20


@pytest.mark.usefixtures("_increments")
def test_an_increment_that_leaves_out_what_came_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = CursorState.whole

    def forgetful(self: CursorState) -> CursorImage:
        image = correct(self)
        return CursorImage(image.mark_delete, {}, {}, image.properties)

    monkeypatch.setattr(CursorState, "whole", forgetful)
    assert "(I25)" in finds_it()


def test_a_seed_tells_the_same_story_twice() -> None:
    def told(seed: int) -> LogOutcome:
        return LogWorld(seed).run()

    assert [told(seed) for seed in range(4)] == [told(seed) for seed in range(4)]


def finds_it() -> str:
    """The first invariant that breaks; as few stories are told as it takes."""
    for seed in range(SEEDS_TO_FIND):
        try:
            LogWorld(seed).run()
        except InvariantBroken as broken:
            return str(broken)
    pytest.fail(f"{SEEDS_TO_FIND} stories did not show the planted fault")


def test_sending_again_without_having_closed_the_failed_ledger_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What failed may be in the old ledger all the same, if its recovery finds it there."""

    async def without_closing(self: AppendPath) -> ListedLedger | None:
        if self.writer is not None:
            while self._in_flight and not self.writer.closed:
                await self._until_quiet()
        return None

    def installed(self: AppendPath, closed: ListedLedger | None, writer: LedgerWriter | None) -> None:
        install(self, None, writer)

    install = AppendPath._install
    monkeypatch.setattr(AppendPath, "_close_writer", without_closing)
    monkeypatch.setattr(AppendPath, "_install", installed)
    assert "(I22)" in finds_it() or "lost" in finds_it()


def test_an_owner_that_takes_over_the_version_it_finds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = OwnedRecord.write

    async def stubborn(self: OwnedRecord, encode: Callable[[str], bytes]) -> None:
        try:
            await correct(self, encode)
        except ManagedLedgerFenced:
            found = await self._store.get(self._path)
            assert found is not None
            self._version = found.version
            await correct(self, encode)

    monkeypatch.setattr(OwnedRecord, "write", stubborn)
    assert finds_it()


def test_trimming_that_forgets_the_cursors_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "magnetar.managed_ledger.managed_ledger.droppable",
        lambda ledgers, slowest, config, now_ms: droppable(ledgers, None, config, now_ms),
    )
    assert "(I26)" in finds_it()


def test_a_flush_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: Cursor) -> None:
        self._write()

    monkeypatch.setattr(Cursor, "flush", hasty)
    assert "(I25)" in finds_it()


def test_indexes_that_go_on_from_what_was_sent_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent to a failed ledger and is sent again must get the same indexes."""
    correct = AppendPath._install

    def careless(self: AppendPath, closed: ListedLedger | None, writer: LedgerWriter | None) -> None:
        reached = self._next_index
        correct(self, closed, writer)
        self._next_index = reached

    monkeypatch.setattr(AppendPath, "_install", careless)
    assert "index" in finds_it()
