"""One bad file costs what is bad in it: it is found, told, mended from peers, and everything else goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.integrity import Integrity
from magnetar.bookie.scrub import Scrubber
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.test_garbage import PAYLOAD, Catalog, expect, fill
from tests.unit.bookie.test_limbo import KnownPeers
from tests.unit.bookie.workbench import add_many, running, whole

OK = BookieStatus.OK
RECORD = 8 + 36 + len(PAYLOAD)


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def peers_with_all(ledgers: range, entries: int) -> KnownPeers:
    return KnownPeers(
        {ledger: [(0, entries - 1)] for ledger in ledgers},
        {(ledger, e): whole(ledger, e, PAYLOAD) for ledger in ledgers for e in range(entries)},
    )


async def sealed_logs(bookie: Bookie, ledgers: range, entries: int) -> list[Path]:
    await fill(bookie, ledgers, entries)
    storage = bookie.storage
    return [storage.logs.path(log_id) for log_id in storage.complete_logs(storage.log_boundary())]


async def test_a_whole_bookie_has_nothing_to_tell(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        logs = await sealed_logs(bookie, range(1, 4), 20)
        scrubber = Scrubber(bookie, Integrity(bookie, peers_with_all(range(1, 4), 20)), bytes_per_s=0)
        report = await scrubber.scrub()
        assert report.logs == len(logs)
        assert report.bytes > 20 * RECORD
        assert (report.damaged, report.missing, report.restored) == (0, 0, 0)


@pytest.mark.parametrize("where", ["payload", "head", "whole file"])
async def test_damage_is_found_and_mended_before_anybody_asks(tmp_path: Path, where: str) -> None:
    async with running(tmp_path) as bookie:
        logs = await sealed_logs(bookie, range(1, 4), 20)
        if where == "whole file":
            logs[0].unlink()
            bookie.storage.logs.forget(int(logs[0].stem, 16))
        else:
            flip(logs[0], 64 + 2 * RECORD + (100 if where == "payload" else 3))
        alone = Scrubber(bookie, bytes_per_s=0)
        report = await alone.scrub()
        assert report.damaged == len(alone.damaged) > 0
        assert {each.file for each in alone.damaged.values()} == {logs[0]}
        damaged = set(alone.damaged)
        if where != "whole file":
            assert damaged == {(1, 2)}
        for ledger_id, entry_id in damaged:
            assert entry_id not in await bookie.list_entries(ledger_id)
            assert (await bookie.read_entry(ledger_id, entry_id)).status is BookieStatus.IO_ERROR
        scrubber = Scrubber(bookie, Integrity(bookie, peers_with_all(range(1, 4), 20)), bytes_per_s=0)
        report = await scrubber.scrub()
        assert report.restored == report.damaged == len(damaged)
        assert not scrubber.damaged
        await bookie.checkpoint()
        for ledger_id in range(1, 4):
            await expect(bookie, ledger_id, 20)
            assert (await bookie.list_entries(ledger_id)).ranges == ((0, 19),)
        assert not bookie.damaged
        assert (await scrubber.scrub()).damaged == 0
        samples = {sample.name: sample.value for sample in scrubber.metrics()}
        assert samples["bookie_scrub_restored_entries_count"] == len(damaged)
        assert samples["bookie_damaged_entries"] == 0


async def test_what_a_reader_found_damaged_is_not_counted_as_held(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        logs = await sealed_logs(bookie, range(1, 4), 20)
        flip(logs[0], 64 + 2 * RECORD + 100)
        assert (await bookie.list_entries(1)).ranges == ((0, 19),)
        assert (await bookie.read_entry(1, 2)).status is BookieStatus.IO_ERROR
        assert (await bookie.list_entries(1)).ranges == ((0, 1), (3, 19))
        checked = await Integrity(bookie, peers_with_all(range(1, 2), 20)).check()
        assert checked.fetched == 1
        assert (await bookie.list_entries(1)).ranges == ((0, 19),)
        await expect(bookie, 1, 20)


async def test_what_a_stripe_lacks_is_fetched(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, [0, 1, 4, 5], PAYLOAD)
        scrubber = Scrubber(bookie, Integrity(bookie, peers_with_all(range(1, 3), 6)), bytes_per_s=0)
        report = await scrubber.scrub()
        assert report.missing == report.restored == 2 + 6
        for ledger_id in (1, 2):
            await expect(bookie, ledger_id, 6)
        await add_many(bookie, 2, [6], PAYLOAD)  # It is not fenced: its writer may come back to this bookie.


async def test_garbage_is_collected_around_a_damaged_log_and_at_last_in_it(tmp_path: Path) -> None:
    catalog = Catalog(1)
    async with running(tmp_path) as bookie:
        logs = await sealed_logs(bookie, range(1, 6), 20)
        for place in (
            64 + 3,
            64 + RECORD + 500,
        ):  # The head of entry 0 and the payload of entry 1, both of ledger 1.
            flip(logs[0], place)
        collector = GarbageCollector(bookie, catalog.live, exists=catalog.exists)
        collected = await collector.collect()
        assert collected.compacted_logs >= len(logs) - 1
        assert [path for path in logs if path.exists()] == [logs[0]]
        assert list(collector.troubled_logs) == [logs[0]]
        for entry_id in range(20):
            read = await bookie.read_entry(1, entry_id)
            assert read.status is (BookieStatus.IO_ERROR if entry_id < 2 else OK), entry_id
        scrubber = Scrubber(bookie, Integrity(bookie, peers_with_all(range(1, 2), 20)), bytes_per_s=0)
        assert (await scrubber.scrub()).restored == 2
        await bookie.checkpoint()
        await collector.collect()
        assert not logs[0].exists()
        assert not collector.troubled_logs
        await expect(bookie, 1, 20)
    async with running(tmp_path) as bookie:
        assert bookie.storage.doubt is None
        await expect(bookie, 1, 20)


async def test_a_damaged_log_stays_while_something_is_missed_that_may_be_in_it(tmp_path: Path) -> None:
    catalog = Catalog(1)
    async with running(tmp_path) as bookie:
        logs = await sealed_logs(bookie, range(1, 6), 20)
        flip(logs[0], 64 + 3)  # An index built anew would know nothing behind this.
        await bookie.in_storage_thread(bookie.storage.rebuild_index, bookie._table)
        assert bookie.storage.doubt is not None
        await bookie.leave_limbo([1])
        collector = GarbageCollector(bookie, catalog.live, exists=catalog.exists)
        await collector.collect()
        assert logs[0].exists()
        await bookie.leave_limbo([])
        await collector.collect()
        assert not logs[0].exists()


@pytest.mark.parametrize("cached", [False, True])
async def test_what_lies_before_damage_is_read_in_runs_all_the_same(tmp_path: Path, cached: bool) -> None:
    """Two copies damaged in different places still are one whole: neither is to refuse what it has."""
    async with running(tmp_path) as bookie:
        logs = await sealed_logs(bookie, range(1, 4), 20)
        flip(logs[0], 64 + 11 * RECORD + 100)  # Entry 5 of ledger 1.
        if cached:
            await add_many(bookie, 1, range(5), PAYLOAD)
        first, rest = (
            await bookie.read_entries(1, 0, 20, 1 << 20),
            await bookie.read_entries(1, 6, 20, 1 << 20),
        )
        assert first == (OK, [whole(1, entry_id, PAYLOAD) for entry_id in range(5)])
        assert rest == (OK, [whole(1, entry_id, PAYLOAD) for entry_id in range(6, 20)])
        assert await bookie.read_entries(1, 5, 20, 1 << 20) == (BookieStatus.IO_ERROR, [])


class BadSector(WrappedDisk):
    """One place of the entry logs cannot be read."""

    place = -1

    def before_read(self, path: Path, offset: int, size: int) -> None:
        if path.suffix == ".log" and offset <= self.place < offset + size:
            raise OSError(errno.EIO, "bad sector")


async def test_a_bad_sector_costs_only_the_entry_that_it_is_in(tmp_path: Path) -> None:
    """Not those before it, with which it would have been read ahead."""
    disk = BadSector()
    async with running(tmp_path, disk=disk) as bookie:
        logs = await sealed_logs(bookie, range(1, 4), 20)
        assert logs[0].suffix == ".log"
        disk.place = 64 + 11 * RECORD + 100  # Entry 5 of ledger 1.
        for entry_id in range(9):
            read = await bookie.read_entry(1, entry_id)
            assert read.status is (BookieStatus.IO_ERROR if entry_id == 5 else OK), entry_id
        status, entries = await bookie.read_entries(1, 0, 20, 1 << 20)
        assert (status, len(entries)) == (OK, 5)
