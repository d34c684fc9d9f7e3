"""In the worlds of `LedgerWorld`: a copy that metadata promise and nobody made is marked for autorecovery."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.replica_marks import ReplicaMarks
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.ledger.writer import LedgerWriter
from magnetar.simulation.bookies import BookieFaults
from magnetar.simulation.ledger_world import InvariantBroken, LedgerWorld
from magnetar.simulation.metadata import MetadataFaults

SEEDS = 150
SEEDS_TO_FIND = 300


class MarkedWorld(LedgerWorld):
    """Judges besides whether what lacks copies is marked. `missing` counts the copies that were not there."""

    def __init__(self, seed: int) -> None:
        self.clients: list[LedgerClient] = []
        self.missing = 0
        super().__init__(seed)

    def _client(self, faults: BookieFaults, metadata_faults: MetadataFaults) -> LedgerClient:
        self.clients.append(super()._client(faults, metadata_faults))
        return self.clients[-1]

    async def _heal_and_judge(self) -> None:
        await super()._heal_and_judge()
        await asyncio.sleep(10)  # Everything that was asked is answered by now.
        for client in self.clients:
            while client.surroundings.marks.waiting:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        metadata = await self.clients[-1].metadata_of(self._ledger_id)
        mark = await UnderreplicatedLedgers(self._ensemble.connect(self._clock)).get(self._ledger_id)
        marked = set() if mark is None else set(mark.missing)
        for acked in self.acked:
            for bookie in metadata.fragment_of(acked.entry_id).write_set(acked.entry_id):
                if not self.bookies[bookie].holds(self._ledger_id, acked.entry_id):
                    self.missing += 1
                    self._check(
                        bookie in marked,
                        f"{bookie} has no copy of entry {acked.entry_id}, and nobody is told (P23)",
                    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_every_missing_copy_is_marked() -> None:
    missing = 0
    for seed in range(SEEDS):
        world = MarkedWorld(seed)
        world.run()
        missing += world.missing
    assert missing > SEEDS, "the worlds must lose copies to tell anything"


def finds_it() -> bool:
    for seed in range(SEEDS_TO_FIND):
        try:
            MarkedWorld(seed).run()
        except InvariantBroken as broken:
            return "(P23)" in str(broken)
    return False


def test_forgetting_copies_that_fail_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: LedgerWriter, add: object, member: object, status: object) -> None:
        """As if an entry were done with once it is confirmed."""

    async def silent(self: LedgerWriter) -> None:
        """And a ledger once it is closed."""

    monkeypatch.setattr(LedgerWriter, "_answered_late", forgetful)
    monkeypatch.setattr(LedgerWriter, "_say_what_is_short", silent)
    assert finds_it()


def test_a_mark_that_is_tried_only_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    correct = ReplicaMarks._mark_all

    async def once(self: ReplicaMarks) -> None:
        try:
            await correct(self)
        except Exception:
            self._queue.clear()

    async def nothing(self: ReplicaMarks, ledger_id: int, bookies: object) -> None:
        """As if nothing were said before a ledger is closed: it hides what else is forgotten."""

    monkeypatch.setattr(ReplicaMarks, "_mark_all", once)
    monkeypatch.setattr(ReplicaMarks, "store", nothing)
    assert finds_it()
