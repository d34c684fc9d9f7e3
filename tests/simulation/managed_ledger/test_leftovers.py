"""A process that dies at any of its crash points leaves nothing for ever, and loses nothing (I1, I25, I27).

One life of a log goes through all that it knows: ledgers, cursors, trimming, deletion. It is told once for each
passage of a crash point, and dies there. What is left is judged after the next owner has come, or after two
sweeps where nobody asks for the log again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from magnetar.environment import crash
from magnetar.ledger.client import LedgerClient
from magnetar.managed_ledger import chapters
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.managed_ledger import ManagedLedger
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.records import cursor_path, decode_cursor
from magnetar.managed_ledger.sweeper import SweepSettings
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop
from magnetar.simulation.metadata import FaultyStore, MetadataFaults

NAME = "tenant/namespace/persistent/topic"
CONFIG = ManagedLedgerConfig(
    3, 3, 2, min_rollover_s=0, max_entries_per_cursor_ledger=3, mark_delete_rate_per_s=1000, storage_retry_s=2
)
SWEEPS = SweepSettings(interval_s=0, orphan_age_s=600, records_per_s=1e6)
MB = 1 << 20


class Died(BaseException):
    """The process is gone. Nobody may catch this."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    crash.observe(None)
    logging.disable(logging.NOTSET)


@dataclass
class Owner:
    bookies: MemoryBookies
    store: FaultyStore
    factory: ManagedLedgerFactory

    def kill(self, world: World) -> None:
        self.store.cut = True
        for name in world.bookies:
            self.bookies.connection(name).cut = True


@dataclass
class Kept:
    """What the world was promised."""

    stored: dict[bytes, Position] = field(default_factory=dict)
    acknowledged: set[bytes] = field(default_factory=set)
    durable: set[bytes] = field(default_factory=set)
    deleted: bool = False


class World:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.metadata = MemoryEnsemble()
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(3)}
        self.lives = 0

    def owner(self) -> Owner:
        self.lives += 1
        dice = random.Random(self.lives)
        bookies = MemoryBookies(self.bookies, dice, BookieFaults(delay_s=0.001))
        store = FaultyStore(self.metadata.connect(self.clock), dice, MetadataFaults(delay_s=0.001))
        client = LedgerClient(store, bookies, clock=self.clock, random=dice)
        factory = ManagedLedgerFactory(store, client, clock=self.clock, random=dice, sweeps=SWEEPS)
        return Owner(bookies, store, factory)


async def append(log: ManagedLedger, kept: Kept, *payloads: bytes) -> None:
    answers = []
    for payload in payloads:
        answer: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        answers.append(answer)

        def done(
            position: Position | None,
            index: int,
            error: Exception | None,
            answer: asyncio.Future[Position] = answer,
            payload: bytes = payload,
        ) -> None:
            if position is None:
                answer.set_exception(error or AssertionError())
            else:
                kept.stored[payload] = position
                answer.set_result(position)

        log.append((b"\x0e\x01", payload), 1, done)
    await asyncio.gather(*answers)


async def acknowledge(cursor: Cursor, kept: Kept, number: int) -> None:
    entries = await cursor.read(number, MB)
    kept.acknowledged |= {entry.data[2:] for entry in entries}
    cursor.acknowledge([(entry.position, None) for entry in entries])
    acknowledged = set(kept.acknowledged)
    await cursor.flush()
    kept.durable |= acknowledged


async def life(owner: Owner, kept: Kept, *, delete: bool) -> None:
    """All that a log knows."""
    log = await owner.factory.open(NAME, CONFIG)
    cursor = await log.open_cursor("slow")
    other = await log.open_cursor("other")
    await append(log, kept, b"0", b"1", b"2")
    await acknowledge(cursor, kept, 1)
    await log.roll()
    await append(log, kept, b"3", b"4")
    for _ in range(5):
        await acknowledge(
            cursor, kept, 1
        )  # The cursor's ledger rolls; then it has passed a ledger, which goes.
    await acknowledge(other, Kept(), 5)
    await log.roll()
    await append(log, kept, b"5")
    await log.roll()
    await log.delete_cursor("other")
    await append(log, kept, b"6")
    await asyncio.sleep(1)
    await log.terminate()
    if delete:
        kept.deleted = True
        await owner.factory.delete(NAME)
    else:
        await owner.factory.close()


def dying_at(passage: int, world: World, kept: Kept, *, delete: bool) -> str | None:
    """Live until the `passage`th crash point, and die there. Its name; None if there are not so many."""
    owner = world.owner()
    passed: list[str] = []
    died: str | None = None

    async def story() -> None:
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def watch(name: str) -> None:
            nonlocal died
            passed.append(name)
            if len(passed) >= passage:
                died = died or name
                owner.kill(world)
                if not end.done():
                    end.set_result(None)
                raise Died

        crash.observe(watch)
        living = asyncio.ensure_future(life(owner, kept, delete=delete))
        await asyncio.wait([living, end], return_when=asyncio.FIRST_COMPLETED)
        crash.observe(None)
        if died is None:
            living.result()
        else:
            living.cancel()
            await asyncio.wait([living])

    world.loop.run_until_complete(story())
    return died


async def ledgers_there(owner: Owner) -> set[int]:
    return set(await owner.factory._remover.client.list())


async def judge(world: World, kept: Kept, *, reopen: bool) -> None:
    owner = world.owner()
    if reopen and not kept.deleted:
        log = await owner.factory.open(NAME, CONFIG)
        reader = await log.open_cursor("judge", durable=False, start=Position(-1, -1))
        found = []
        while reader.has_more():
            found += [entry.data[2:] for entry in await reader.read(100, MB)]
        assert found == sorted(set(found))
        assert set(kept.stored) - kept.acknowledged <= set(found)
        cursor = log.cursors.get("slow")
        if cursor is not None:
            for payload in kept.durable:
                assert cursor.is_acknowledged(kept.stored[payload])
            for payload in set(kept.stored) - kept.acknowledged:
                assert not cursor.is_acknowledged(kept.stored[payload])
        await owner.factory.close()
        owner = world.owner()
    await owner.factory.sweep()
    await asyncio.sleep(SWEEPS.orphan_age_s + 1)
    await owner.factory.sweep()  # Orphans are old now, and seen for the first time.
    await owner.factory.sweep()
    report = await owner.factory.leftovers()
    assert not report.orphans
    assert not report.pending
    named: set[int] = set()
    record = None
    if await owner.factory.exists(NAME):
        assert not kept.deleted or not reopen
        record, _ = await owner.factory._remover.read_record(NAME)
        assert record is not None
        named |= {each.ledger_id for each in record.ledgers}
        for part in await owner.store.children(f"/managed-ledgers/{NAME}"):
            stored = await owner.store.get(cursor_path(NAME, part))
            assert stored is not None
            named |= set(decode_cursor(part, stored.value).ledger_ids)
            named -= set(decode_cursor(part, stored.value).doomed)
    assert await ledgers_there(owner) == named
    listed = {chapter.name for chapter in record.chapters} if record is not None else set()
    assert set(await owner.store.children(f"/managed-ledger-lists/{NAME}")) == listed
    await owner.factory.close()


def deaths(*, delete: bool, reopen: bool) -> set[str]:
    """One death at each passage of a crash point. Returns the names of all."""
    died_at: set[str] = set()
    for passage in range(1, 500):
        world, kept = World(), Kept()
        name = dying_at(passage, world, kept, delete=delete)
        if name is not None:
            died_at.add(name)
        try:
            world.loop.run(judge(world, kept, reopen=reopen))
        except (AssertionError, ManagedLedgerError) as error:
            raise AssertionError(f"died at passage {passage}, {name}: {error}") from error
        if name is None:
            break
    return died_at


def test_a_death_at_any_point_of_a_long_list_leaves_nothing_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chapters, "CHAPTER_LEDGERS", 1)
    monkeypatch.setitem(globals(), "life", long_life)
    assert {
        "managed_ledger.before_chapter",
        "managed_ledger.after_chapter",
        "managed_ledger.before_chapter_delete",
        "managed_ledger.before_doomed_delete",
    } <= deaths(delete=False, reopen=True)


async def long_life(owner: Owner, kept: Kept, *, delete: bool) -> None:
    """Of a log with many ledgers, of which some go."""
    log = await owner.factory.open(NAME, CONFIG)
    cursor = await log.open_cursor("slow")
    for number in range(5):
        await append(log, kept, b"%d" % number)
        await log.roll()
    await acknowledge(cursor, kept, 1)
    await acknowledge(cursor, kept, 1)
    await acknowledge(cursor, kept, 1)
    await asyncio.sleep(1)
    await owner.factory.close()


@pytest.mark.parametrize("reopen", [True, False], ids=["opened-again", "left-alone"])
@pytest.mark.parametrize("delete", [True, False], ids=["deleted", "kept"])
def test_a_death_at_any_point_leaves_nothing_for_ever(*, reopen: bool, delete: bool) -> None:
    died_at = deaths(delete=delete, reopen=reopen)
    assert {
        "managed_ledger.before_list_update",
        "managed_ledger.after_list_update",
        "managed_ledger.before_trim",
        "managed_ledger.after_trim",
        "cursor.before_record",
        "cursor.marked_deleted",
        "cursor.before_ledger_delete",
    } <= died_at
    if delete:
        assert {
            "managed_ledger.marked_deleted",
            "managed_ledger.before_ledger_delete",
            "managed_ledger.before_record_delete",
        } <= died_at
