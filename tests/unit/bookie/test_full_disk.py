"""A full disk stops nothing for good: what cannot be written waits, nothing is acknowledged meanwhile, and all goes on."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.disks import FullDisk, WrappedDisk
from tests.unit.bookie.workbench import KEY, KIB, add, add_many, begin_add, crash, make_bookie, running, until

OK = BookieStatus.OK
PAYLOAD = b"x" * 4 * KIB


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookie.journal._NO_ROOM_PAUSE_S", 0.01)
    monkeypatch.setattr("magnetar.bookie.checkpoint._RETRY_S", 0.02)


class Counted(FullDisk):
    """Counts what was refused."""

    refused = 0

    def before_write(self, path: Path) -> None:
        try:
            super().before_write(path)
        except OSError:
            self.refused += 1
            raise


async def expect(bookie: Bookie, entries: range) -> None:
    for entry_id in entries:
        assert (await bookie.read_entry(1, entry_id)).status is OK, entry_id


@pytest.mark.parametrize("before", [3, 40], ids=["within a segment", "over a roll"])
async def test_a_journal_without_room_acknowledges_nothing_and_goes_on_when_there_is_some(
    tmp_path: Path, before: int
) -> None:
    disk = Counted("journal")
    bookie = make_bookie(tmp_path, disk=disk, journal_segment_bytes=64 * KIB, journal_first_bytes=8 * KIB)
    await bookie.start()
    await add_many(bookie, 1, range(before), PAYLOAD)
    disk.full = True
    statuses = [begin_add(bookie, 1, entry_id, PAYLOAD) for entry_id in range(before, before + 20)]
    fence = asyncio.ensure_future(bookie.read_lac(2, fence=True, master_key=KEY))
    await until(lambda: disk.refused > 5)
    assert not any(status.done() for status in statuses)
    assert not fence.done()
    disk.full = False
    async with asyncio.timeout(10):
        assert set(await asyncio.gather(*statuses)) == {OK}
        assert (await fence).status is OK
    assert len(list((tmp_path / "journal").glob("*.spare"))) <= 1, "nothing is left of attempts"
    await crash(bookie)
    async with running(tmp_path) as again:
        await expect(again, range(before + 20))
        assert await add(again, 2, 0) is BookieStatus.FENCED


async def test_a_bookie_whose_journal_has_no_room_can_be_stopped_and_is_whole(tmp_path: Path) -> None:
    disk = Counted("journal")
    bookie = make_bookie(tmp_path, disk=disk)
    await bookie.start()
    await add_many(bookie, 1, range(3))
    disk.full = True
    status = begin_add(bookie, 1, 3)
    await until(lambda: disk.refused > 0)
    async with asyncio.timeout(10):
        await bookie.stop()
    assert not status.done()
    async with running(tmp_path) as again:
        await expect(again, range(3))
        await add_many(again, 1, range(4, 6))


class NoRoomForSpares(WrappedDisk):
    """There is room for what is needed, and none for a whole segment of zeros ahead of its time."""

    refused = 0

    def before_allocate(self, path: Path) -> None:
        if threading.current_thread().name == "bookie-journal-spare":
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


async def test_a_journal_does_without_a_spare(tmp_path: Path) -> None:
    disk = NoRoomForSpares()
    async with running(
        tmp_path, disk=disk, journal_segment_bytes=64 * KIB, journal_first_bytes=8 * KIB
    ) as bookie:
        for entry_id in range(50):
            assert await add(bookie, 1, entry_id, PAYLOAD) is OK
        assert disk.refused > 1
        assert not list((tmp_path / "journal").glob("*.spare"))
    async with running(tmp_path) as again:
        await expect(again, range(50))


class NoRoomForEntries(WrappedDisk):
    """A log can be begun, and its entries have no room."""

    full = False
    refused = 0

    def before_write(self, path: Path) -> None:
        if self.full and path.parent.name == "entries" and path.stat().st_size:
            self.refused += 1
            raise OSError(errno.ENOSPC, "No space left on device", str(path))


async def test_flushes_that_fail_do_not_fill_the_disk_further(tmp_path: Path) -> None:
    disk = NoRoomForEntries()
    async with running(tmp_path, disk=disk) as bookie:
        await add_many(bookie, 1, range(5), PAYLOAD)
        await bookie.checkpoint()
        (log,) = (tmp_path / "entries").iterdir()
        size = log.stat().st_size
        await add_many(bookie, 1, range(5, 10), PAYLOAD)
        disk.full = True
        flush = asyncio.ensure_future(bookie.checkpoint())
        await until(lambda: disk.refused > 5)
        assert log.stat().st_size == size
        assert len(list((tmp_path / "entries").iterdir())) <= 2, "the one that is being tried"
        disk.full = False
        await asyncio.wait_for(flush, 10)
        await expect(bookie, range(10))
    async with running(tmp_path) as again:
        await expect(again, range(10))
        assert again.storage.doubt is None
