"""Space comes back, and only space: what metadata still knows is never touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.garbage import Collected, GarbageCollector
from magnetar.bookie.space import Fullness
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.disks import ShortDisk
from tests.unit.bookie.workbench import KEY, KIB, add, add_many, crash, make_bookie, running, until, whole

OK = BookieStatus.OK
PAYLOAD = b"x" * 4 * KIB


class Catalog:
    """Metadata's list of ledgers, as far as garbage collection asks."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = set(ledgers)
        self.cut_short: set[int] = set()

    async def live(self) -> set[int]:
        return self.ledgers - self.cut_short

    async def exists(self, ledger_id: int) -> bool:
        return ledger_id in self.ledgers


async def fill(bookie: Bookie, ledgers: range, entries: int) -> None:
    """Entries of all ledgers side by side in each entry log."""
    for first in range(0, entries, 3):
        for ledger_id in ledgers:
            await add_many(bookie, ledger_id, range(first, min(first + 3, entries)), PAYLOAD)
        await bookie.checkpoint()


async def expect(bookie: Bookie, ledger_id: int, entries: int) -> None:
    for entry_id in range(entries):
        assert (await bookie.read_entry(ledger_id, entry_id)).entry == whole(ledger_id, entry_id, PAYLOAD)


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "entries").iterdir())


async def test_dead_ledgers_give_their_space_back(tmp_path: Path) -> None:
    catalog = Catalog(1)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 6), 20)
        before = log_bytes(tmp_path)
        collected = await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        assert collected.ledgers == 4
        assert collected.compacted_logs > 1
        assert log_bytes(tmp_path) < before / 2
        assert bookie.ledgers() == {1}
        await expect(bookie, 1, 20)
        assert (await bookie.read_entry(2, 0)).status is BookieStatus.NO_SUCH_LEDGER
    async with running(tmp_path) as bookie:
        assert bookie.storage.doubt is None
        await expect(bookie, 1, 20)


async def test_a_log_whose_ledgers_are_all_gone_is_removed_as_a_file(tmp_path: Path) -> None:
    catalog = Catalog()
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 4), 20)
        logs = len(list((tmp_path / "entries").iterdir()))
        collected = await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        assert collected == Collected(3, collected.removed_logs, 0)
        assert collected.removed_logs >= logs - 1
        again = await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        assert again == Collected(0, 0, 0)


async def test_mostly_live_logs_are_left_alone(tmp_path: Path) -> None:
    catalog = Catalog(1, 2, 3, 4)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 6), 10)
        collected = await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        assert collected == Collected(1, 0, 0)
        for ledger_id in catalog.ledgers:
            await expect(bookie, ledger_id, 10)


async def test_a_listing_cut_short_costs_nobody_anything(tmp_path: Path) -> None:
    catalog = Catalog(1, 2, 3)
    catalog.cut_short = {2, 3}
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 4), 3)
        assert (await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()).ledgers == 0
        listings = [{1}, {1, 2, 3}]

        async def live() -> set[int]:
            return listings.pop(0)

        assert (await GarbageCollector(bookie, live).collect()).ledgers == 0
        assert bookie.ledgers() == {1, 2, 3}


async def test_a_metadata_store_that_fails_stops_the_collection(tmp_path: Path) -> None:
    async def broken() -> set[int]:
        raise ConnectionError("metadata is away")

    async with running(tmp_path) as bookie:
        await add(bookie, 1, 0)
        with pytest.raises(ConnectionError):
            await GarbageCollector(bookie, broken).collect()
        assert bookie.ledgers() == {1}


async def test_a_ledger_created_during_the_listing_is_safe(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add(bookie, 1, 0)

        async def live() -> set[int]:
            await add(bookie, 7, 0)
            return {1}

        assert (await GarbageCollector(bookie, live).collect()).ledgers == 0
        assert bookie.ledgers() == {1, 7}


async def test_a_fence_outlives_its_ledger_for_a_while(tmp_path: Path) -> None:
    """A broker that was stopped while another took its log over and deleted the ledger wakes up, and writes."""
    catalog = Catalog(1, 2)
    async with running(tmp_path) as bookie:
        for ledger_id in (1, 2):
            assert (await bookie.read_lac(ledger_id, fence=True, master_key=KEY)).status is OK
        collector = GarbageCollector(bookie, catalog.live, exists=catalog.exists, grace_s=0.2)
        catalog.ledgers.discard(1)
        assert (await collector.collect()).ledgers == 0
        assert await add(bookie, 1, 0) is BookieStatus.FENCED
        await asyncio.sleep(0.2)
        catalog.ledgers.discard(2)
        assert (await collector.collect()).ledgers == 1
        assert bookie.ledgers() == {2}
        assert await add(bookie, 2, 0) is BookieStatus.FENCED


async def test_one_that_comes_back_into_the_listing_begins_anew(tmp_path: Path) -> None:
    catalog = Catalog()
    async with running(tmp_path) as bookie:
        await add(bookie, 1, 0)
        collector = GarbageCollector(bookie, catalog.live, exists=catalog.exists, grace_s=0.2)
        await collector.collect()
        await asyncio.sleep(0.2)
        catalog.ledgers.add(1)
        await collector.collect()
        catalog.ledgers.discard(1)
        assert (await collector.collect()).ledgers == 0
        assert bookie.ledgers() == {1}


async def test_readers_never_notice_a_compaction(tmp_path: Path) -> None:
    catalog = Catalog(1)
    async with running(tmp_path, read_cache_bytes=0) as bookie:
        await fill(bookie, range(1, 6), 20)
        collecting = asyncio.ensure_future(
            GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        )
        reads = 0
        while not collecting.done():
            await expect(bookie, 1, 20)
            reads += 1
        assert (await collecting).compacted_logs > 0
        assert reads > 0
        await expect(bookie, 1, 20)


async def test_writers_go_on_during_a_compaction(tmp_path: Path) -> None:
    catalog = Catalog(1, 9)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 6), 20)
        collecting = asyncio.ensure_future(
            GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        )
        await add_many(bookie, 9, range(50), PAYLOAD)
        assert (await collecting).compacted_logs > 0
        await bookie.checkpoint()
        await expect(bookie, 1, 20)
        await expect(bookie, 9, 50)


async def test_logs_that_a_crash_left_behind_are_collected_too(tmp_path: Path) -> None:
    catalog = Catalog(1)
    bookie = make_bookie(tmp_path, entry_log_bytes=1 << 30)
    await bookie.start()
    await fill(bookie, range(1, 6), 10)
    await crash(bookie)
    async with running(tmp_path) as again:
        collected = await GarbageCollector(again, catalog.live, exists=catalog.exists).collect()
        assert collected == Collected(4, 0, 1)
        await expect(again, 1, 10)


async def test_a_damaged_log_is_kept(tmp_path: Path) -> None:
    catalog = Catalog(1)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 6), 20)
        first = min((tmp_path / "entries").iterdir())
        data = bytearray(first.read_bytes())
        data[64 + 8 + 36 + 10] ^= 1
        first.write_bytes(data)
        await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
        assert first.exists(), "what can still be read of it is read"
        assert (await bookie.read_entry(1, 0)).status is BookieStatus.IO_ERROR
        assert (await bookie.read_entry(1, 1)).status is OK


async def test_it_runs_by_itself(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def live() -> set[int]:
        asked.set()
        return {1}

    async with running(tmp_path) as bookie:
        await add(bookie, 1, 0)
        collector = GarbageCollector(bookie, live, interval_s=0.01)
        collector.start()
        await asyncio.wait_for(asked.wait(), 10)
        await collector.stop()


async def test_a_disk_that_fills_has_its_garbage_collected_at_once_and_is_writable_again(
    tmp_path: Path,
) -> None:
    """Nobody waits for the interval; logs that are mostly alive are rewritten too, with what is reserved for that."""
    size = 400_000
    disk = ShortDisk(lambda: size - log_bytes(tmp_path))
    catalog = Catalog(1, 2, 3, 4, 5)
    limits = {"free_bytes_min": 100_000, "reserve_bytes": 0, "entry_log_bytes": 32 * KIB}
    async with running(tmp_path, disk=disk, **limits) as bookie:
        collector = GarbageCollector(bookie, catalog.live, exists=catalog.exists, interval_s=3600.0)
        collector.start()
        await fill(bookie, range(1, 6), 10)
        assert bookie.fullness is Fullness.FINE
        catalog.ledgers -= {1, 2}
        assert bookie.ledgers() == {1, 2, 3, 4, 5}
        entry_id = 10
        while not bookie.read_only:
            await add_many(bookie, 3, range(entry_id, entry_id + 3), PAYLOAD)
            await bookie.checkpoint()
            entry_id += 3
        await until(lambda: collector.collections > 0 and bookie.ledgers() == {3, 4, 5})
        while bookie.read_only:
            await bookie.checkpoint()
            await asyncio.sleep(0.01)
        assert await add(bookie, 3, entry_id, PAYLOAD) is OK
        await expect(bookie, 4, 10)
        await collector.stop()


async def test_compaction_that_does_not_fit_waits_and_removal_does_not(tmp_path: Path) -> None:
    free = 1 << 30
    disk = ShortDisk(lambda: free)
    catalog = Catalog(1)
    async with running(tmp_path, disk=disk, entry_log_bytes=32 * KIB) as bookie:
        await fill(bookie, range(1, 6), 20)
        for first in (0, 10, 20):
            await add_many(bookie, 9, range(first, first + 10), PAYLOAD)
            await bookie.checkpoint()
        await add_many(bookie, 1, range(20, 21), PAYLOAD)
        await bookie.checkpoint()
        free = 1000
        collector = GarbageCollector(bookie, catalog.live, exists=catalog.exists)
        collected = await collector.collect()
        assert collected.removed_logs > 0
        assert collected.compacted_logs == 0
        free = 1 << 30
        assert (await collector.collect()).compacted_logs > 1
        await expect(bookie, 1, 21)


class Unnamed:
    """Copies that nobody names; `busy` ones are being repaired."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = set(ledgers)
        self.busy: set[int] = set()
        self.asked: list[int] = []

    async def is_unnamed(self, ledger_id: int) -> bool:
        self.asked.append(ledger_id)
        return ledger_id in self.ledgers

    @asynccontextmanager
    async def kept_unnamed(self, ledger_id: int) -> AsyncIterator[bool]:
        yield ledger_id in self.ledgers and ledger_id not in self.busy


async def test_copies_that_nobody_names_are_forgotten_in_the_end(tmp_path: Path) -> None:
    catalog, surplus = Catalog(1, 2, 3, 4), Unnamed(1, 2, 3)
    surplus.busy.add(2)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 5), 3)
        collector = GarbageCollector(
            bookie, catalog.live, exists=catalog.exists, surplus=surplus, grace_s=0.2
        )
        assert (await collector.collect()).surplus_ledgers == 0
        assert surplus.asked == [1, 2, 3, 4]
        surplus.ledgers.discard(3)  # A worker had copied it here, and names it now.
        await asyncio.sleep(0.2)
        assert (await collector.collect()).surplus_ledgers == 1
        assert bookie.ledgers() == {2, 3, 4}
        assert (await bookie.read_entry(1, 0)).status is BookieStatus.NO_SUCH_LEDGER
        await expect(bookie, 2, 3)
        surplus.asked.clear()
        await collector.collect()
        assert not surplus.asked, "once a day is enough"


async def test_in_limbo_no_copy_is_surplus(tmp_path: Path) -> None:
    surplus = Unnamed(1)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 2), 3)
        await bookie.enter_limbo("for the test")
        collector = GarbageCollector(bookie, Catalog(1).live, surplus=surplus, grace_s=0.0)
        for _ in range(3):
            assert (await collector.collect()).surplus_ledgers == 0
        assert not surplus.asked


class Unanswered(Unnamed):
    async def is_unnamed(self, ledger_id: int) -> bool:
        raise RuntimeError("metadata do not answer")


async def test_space_comes_back_though_surplus_copies_cannot_be_found_out(tmp_path: Path) -> None:
    catalog = Catalog(1)
    async with running(tmp_path) as bookie:
        await fill(bookie, range(1, 4), 60)
        collector = GarbageCollector(
            bookie, catalog.live, exists=catalog.exists, surplus=Unanswered(), grace_s=0.0
        )
        collected = await collector.collect()
        assert (collected.ledgers, collected.surplus_ledgers) == (2, 0)
        assert collected.removed_logs + collected.compacted_logs > 0
        await expect(bookie, 1, 60)
