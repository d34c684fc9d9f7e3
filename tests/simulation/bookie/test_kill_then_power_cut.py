"""A kill leaves bytes that only the page cache holds; a start reads them as if they were on the disk. Whatever the
bookie then promises must survive a power cut all the same.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import Disk
from magnetar.environment.recording import RecordingDisk
from magnetar.protocol.bookie import AddFlags, BookieStatus
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.workbench import (
    KEY,
    add,
    add_many,
    begin_add,
    crash,
    make_bookie,
    small_settings,
    until,
)


class Killed(Exception):
    """The process is gone."""


class DiesAtSync(WrappedDisk):
    """Once armed, the next sync in the folder is where the process is killed: the bytes are written."""

    def __init__(self, inner: Disk, folder: str) -> None:
        super().__init__(inner)
        self._folder = folder
        self.armed = False

    def before_sync(self, path: Path) -> bool:
        if self.armed and path.parent.name == self._folder:
            raise Killed
        return True

    def before_sync_directory(self, path: Path) -> bool:
        if self.armed and path.name == self._folder:
            raise Killed
        return True


async def killed_between_write_and_sync(
    directory: Path, recorder: RecordingDisk, do: Callable[[Bookie], object]
) -> None:
    """A first life: ten entries that are acknowledged, then `do`, whose journal group is written and never synced."""
    disk = DiesAtSync(recorder, "journal")
    died: list[BaseException] = []
    bookie = Bookie(
        small_settings(directory),
        disk=disk,
        clock=SystemClock(),
        bookie_id="b1",
        on_disk_failure=died.append,
    )
    await bookie.start()
    await add_many(bookie, 1, range(10))
    disk.armed = True
    do(bookie)
    await until(lambda: bool(died))
    assert isinstance(died[0], Killed)
    await crash(bookie)


async def test_a_group_that_was_never_synced_does_not_bar_the_way_after_a_power_cut(tmp_path: Path) -> None:
    """It was replayed, and what was acknowledged later lies in a segment that says it goes on behind it."""
    directory, image = tmp_path / "bookie", tmp_path / "image"
    directory.mkdir()
    recorder = RecordingDisk(directory)
    await killed_between_write_and_sync(directory, recorder, lambda bookie: begin_add(bookie, 1, 10))
    second = make_bookie(directory, disk=recorder)
    await second.start()
    assert await add(second, 1, 11) is BookieStatus.OK
    at = recorder.mark()
    await crash(second)
    recorder.worst_image(at, image)
    third = make_bookie(image)
    await third.start()
    for entry_id in (*range(10), 11):
        assert (await third.read_entry(1, entry_id)).status is BookieStatus.OK, entry_id
    await crash(third)


async def test_a_fence_that_was_never_synced_is_not_confirmed_before_it_is(tmp_path: Path) -> None:
    directory, image = tmp_path / "bookie", tmp_path / "image"
    directory.mkdir()
    recorder = RecordingDisk(directory)

    def fence(bookie: Bookie) -> None:
        fencing.append(asyncio.ensure_future(bookie.read_lac(1, fence=True, master_key=KEY)))

    fencing: list[asyncio.Future[object]] = []
    await killed_between_write_and_sync(directory, recorder, fence)
    fencing[0].cancel()
    second = make_bookie(directory, disk=recorder)
    await second.start()
    assert (await second.read_lac(1, fence=True, master_key=KEY)).status is BookieStatus.OK
    at = recorder.mark()
    await crash(second)
    recorder.worst_image(at, image)
    third = make_bookie(image)
    await third.start()
    assert await begin_add(third, 1, 10) is BookieStatus.FENCED
    assert await begin_add(third, 1, 10, flags=AddFlags.RECOVERY) is BookieStatus.OK
    await crash(third)


@pytest.mark.parametrize("folder", ["ledgers", "entries", "bookie"])
async def test_a_checkpoint_that_is_killed_before_a_sync_takes_nothing_with_it(
    tmp_path: Path, folder: str
) -> None:
    """Neither the table's new records, nor the entry log's, nor the mark's new name is durable when it ends."""
    directory, image = tmp_path / "bookie", tmp_path / "image"
    directory.mkdir()
    recorder = RecordingDisk(directory)
    disk = DiesAtSync(recorder, folder)
    first = make_bookie(directory, disk=disk)
    await first.start()
    await add_many(first, 1, range(10))
    assert (await first.read_lac(1, fence=True, master_key=KEY)).status is BookieStatus.OK
    disk.armed = True
    checkpoint = asyncio.ensure_future(first.checkpoint())
    await until(lambda: first._checkpointer.failing is not None)
    checkpoint.cancel()
    await crash(first)
    second = make_bookie(directory, disk=recorder)
    await second.start()
    started = recorder.mark()
    await second.checkpoint()
    flushed = recorder.mark()
    await crash(second)
    for at in range(started, flushed + 1):
        recorder.worst_image(at, image)
        third = make_bookie(image)
        await third.start()
        for entry_id in range(10):
            assert (await third.read_entry(1, entry_id)).status is BookieStatus.OK, (at, entry_id)
        assert await begin_add(third, 1, 10) is BookieStatus.FENCED
        await crash(third)
        shutil.rmtree(image)


@pytest.mark.parametrize("second_lac", [4, 5])
async def test_an_explicit_lac_is_not_confirmed_while_one_as_high_waits_for_its_sync(
    tmp_path: Path, second_lac: int
) -> None:
    directory = tmp_path / "bookie"
    directory.mkdir()
    recorder = RecordingDisk(directory)
    asked: list[asyncio.Future[BookieStatus]] = []

    def write_both(bookie: Bookie) -> None:
        asked.append(asyncio.ensure_future(bookie.write_lac(1, 5, KEY)))
        asked.append(asyncio.ensure_future(bookie.write_lac(1, second_lac, KEY)))

    await killed_between_write_and_sync(directory, recorder, write_both)
    assert not any(answer.done() for answer in asked)
    for answer in asked:
        answer.cancel()
