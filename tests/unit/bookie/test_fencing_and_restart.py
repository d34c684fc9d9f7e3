"""A fence holds from the step it is asked for, and outlives every restart; so does all that was acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.protocol.bookie import LAST_ENTRY, AddFlags, BookieStatus
from tests.unit.bookie.disks import GatedDisk
from tests.unit.bookie.workbench import (
    KEY,
    KIB,
    OTHER_KEY,
    add,
    add_many,
    begin_add,
    crash,
    make_bookie,
    running,
    whole,
)

OK = BookieStatus.OK
FENCED = BookieStatus.FENCED


async def restart(bookie: Bookie, directory: Path, *, kind: str) -> Bookie:
    """A new bookie on the same directory, after a clean stop or something like a kill."""
    if kind == "stopped":
        await bookie.stop()
    elif kind == "flushed":
        await bookie.checkpoint()
        await crash(bookie)
    else:
        await crash(bookie)
    again = make_bookie(directory)
    await again.start()
    return again


async def test_a_fenced_ledger_takes_only_recovery_adds(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(3))
        read = await bookie.read_lac(1, fence=True, master_key=KEY)
        assert (read.status, read.lac, read.last_entry) == (OK, 1, 2)
        assert await add(bookie, 1, 3) is FENCED
        assert await add(bookie, 1, 3, flags=AddFlags.HIGH_PRIORITY) is FENCED
        assert await add(bookie, 1, 3, flags=AddFlags.RECOVERY) is OK
        assert (await bookie.read_entry(1, LAST_ENTRY)).entry == whole(1, 3)


async def test_an_add_before_the_fence_is_seen_by_the_fencing_read(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add(bookie, 1, 0)
        before = begin_add(bookie, 1, 1)
        reading = asyncio.ensure_future(bookie.read_entry(1, 1, fence=True, master_key=KEY))
        await asyncio.sleep(0)
        after = begin_add(bookie, 1, 2)
        assert await after is FENCED
        assert (await reading).entry == whole(1, 1)
        assert await before is OK


@pytest.mark.parametrize(
    "question", ["lac", "entry", "absent entry", "unknown ledger", "lac of unknown ledger"]
)
async def test_every_answer_to_a_fence_waits_until_it_is_durable(tmp_path: Path, question: str) -> None:
    disk = GatedDisk("journal")
    async with running(tmp_path, disk=disk) as bookie:
        await add(bookie, 1, 0)
        disk.close_gate()
        ledger_id = 2 if "unknown" in question else 1
        answer: asyncio.Future[object] = asyncio.ensure_future(
            bookie.read_lac(ledger_id, fence=True, master_key=KEY)
            if "lac" in question
            else bookie.read_entry(ledger_id, 5 if "absent" in question else 0, fence=True, master_key=KEY)
        )
        together = asyncio.ensure_future(bookie.read_lac(ledger_id, fence=True, master_key=KEY))
        await asyncio.to_thread(disk.waiting.wait, 10)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not answer.done()
        assert not together.done()
        assert await add(bookie, ledger_id, 1) is FENCED, "yet it holds already"
        groups = bookie._journal.groups
        disk.open_gate()
        await asyncio.wait_for(asyncio.gather(answer, together), 10)
        assert bookie._journal.groups == groups + 1, "both waited for one record"


async def test_an_answer_does_not_wait_for_ever(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with running(tmp_path, disk=disk, fence_wait_s=0.05) as bookie:
        disk.close_gate()
        assert (await bookie.read_lac(1, fence=True, master_key=KEY)).status is BookieStatus.TIMEOUT
        disk.open_gate()


async def test_a_reader_that_gives_up_does_not_undo_the_fence(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with running(tmp_path, disk=disk) as bookie:
        disk.close_gate()
        reading = asyncio.ensure_future(bookie.read_lac(1, fence=True, master_key=KEY))
        await asyncio.to_thread(disk.waiting.wait, 10)
        reading.cancel()
        disk.open_gate()
        assert (await bookie.read_lac(1, fence=True, master_key=KEY)).status is OK
        assert await add(bookie, 1, 0) is FENCED


async def test_fencing_an_unknown_ledger_creates_it(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        read = await bookie.read_lac(1, fence=True, master_key=KEY)
        assert (read.status, read.lac, read.last_entry, read.entry) == (OK, -1, -1, b"")
        assert (
            await bookie.read_entry(2, 0, fence=True, master_key=KEY)
        ).status is BookieStatus.NO_SUCH_ENTRY
        for ledger_id in (1, 2):
            assert await add(bookie, ledger_id, 0) is FENCED


@pytest.mark.parametrize("kind", ["stopped", "killed", "flushed"])
async def test_a_restart_brings_everything_back(tmp_path: Path, kind: str) -> None:
    bookie = make_bookie(tmp_path)
    await bookie.start()
    await add_many(bookie, 1, range(50), b"x" * 500)
    await add_many(bookie, 2, range(3))
    await bookie.read_lac(2, fence=True, master_key=KEY)
    await bookie.read_lac(3, fence=True, master_key=KEY)
    await bookie.write_lac(1, 49, KEY)
    await bookie.write_lac(4, 7, OTHER_KEY)
    for _ in range(3):
        bookie = await restart(bookie, tmp_path, kind=kind)
        assert bookie.ledgers() == {1, 2, 3, 4}
        for entry_id in range(50):
            assert (await bookie.read_entry(1, entry_id)).entry == whole(1, entry_id, b"x" * 500)
        read = await bookie.read_lac(1)
        assert (read.lac, read.last_entry) == (49, 49)
        assert (await bookie.read_lac(2)).lac == 1
        assert (await bookie.read_lac(4)).lac == 7
        assert await add(bookie, 2, 3) is FENCED
        assert await add(bookie, 3, 0) is FENCED
        assert await add(bookie, 4, 0) is BookieStatus.UNAUTHORIZED
        assert await add(bookie, 1, 50, b"x" * 500, key=OTHER_KEY) is BookieStatus.UNAUTHORIZED
        assert (await bookie.read_entry(1, 50)).status is BookieStatus.NO_SUCH_ENTRY
    await bookie.stop()


async def test_a_fence_alone_moves_with_the_mark(tmp_path: Path) -> None:
    """A checkpoint with an empty write cache must still keep fences and LACs (BookKeeper #4843)."""
    bookie = make_bookie(tmp_path)
    await bookie.start()
    await add(bookie, 1, 0)
    await bookie.checkpoint()
    await bookie.read_lac(1, fence=True, master_key=KEY)
    await bookie.write_lac(1, 0, KEY)
    await bookie.checkpoint()
    await bookie.checkpoint()
    await crash(bookie)
    async with running(tmp_path) as again:
        assert await add(again, 1, 1) is FENCED
        assert (await again.read_lac(1)).lac == 0


async def test_more_than_the_cache_holds_is_replayed(tmp_path: Path) -> None:
    disk = GatedDisk("entries")
    bookie = make_bookie(tmp_path, disk=disk, write_cache_bytes=512 * KIB)
    await bookie.start()
    await add_many(bookie, 1, range(200), b"x" * KIB)
    await crash(bookie)
    async with running(tmp_path, write_cache_bytes=32 * KIB) as again:
        for entry_id in range(200):
            assert (await again.read_entry(1, entry_id)).status is OK
    async with running(tmp_path) as again:
        for entry_id in range(200):
            assert (await again.read_entry(1, entry_id)).status is OK


async def test_starting_again_and_again_leaves_no_heap_of_segments(tmp_path: Path) -> None:
    for round_number in range(5):
        async with running(tmp_path) as bookie:
            await add(bookie, 1, round_number)
    assert len(list((tmp_path / "journal").iterdir())) <= 2


async def test_segments_behind_the_mark_go_or_are_used_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        for burst in range(40):
            await add_many(bookie, 1, range(burst * 20, burst * 20 + 20), b"x" * 2 * KIB)
        await bookie.checkpoint()
        assert len(list((tmp_path / "journal").iterdir())) <= 5
        first = bookie._running.segments.ids()[0]
        assert first == bookie.storage.checkpoint_state.mark.segment > 3
        for entry_id in range(800):
            assert (await bookie.read_entry(1, entry_id)).status is OK


async def test_the_mark_never_moves_back(tmp_path: Path) -> None:
    from dataclasses import replace

    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(10))
        await bookie.checkpoint()
        storage = bookie.storage
        state = storage.checkpoint_state
        older = replace(state, mark=replace(state.mark, sequence=1, segment=1))
        await bookie.in_storage_thread(storage._marks.write, older)
        assert storage._marks.read().mark == state.mark


async def test_a_checkpoint_that_is_waited_for_comes_under_any_load(tmp_path: Path) -> None:
    async with running(tmp_path, write_cache_bytes=32 * KIB) as bookie:
        await add_many(bookie, 1, range(5))
        busy = True

        def add_another(entry_id: int) -> None:
            if busy:
                status = begin_add(bookie, 2, entry_id, b"x" * 2 * KIB)
                status.add_done_callback(lambda _: add_another(entry_id + 64))

        for entry_id in range(64):
            add_another(entry_id)
        for _ in range(5):
            before = bookie._checkpointer.completed
            await asyncio.wait_for(bookie.checkpoint(), 10)
            assert bookie._checkpointer.completed <= before + 3
        busy = False
