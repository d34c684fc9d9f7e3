"""What nobody waits for takes its turn behind those who wait."""

from __future__ import annotations

import asyncio
from pathlib import Path

from magnetar.protocol.bookie import AddFlags, BookieStatus
from tests.unit.bookie.disks import GatedDisk
from tests.unit.bookie.workbench import KIB, add, add_many, begin_add, running, until

OK = BookieStatus.OK
COPIED = AddFlags.RECOVERY | AddFlags.BACKGROUND
PAYLOAD = b"x" * 4 * KIB


async def test_copies_leave_the_journal_to_those_who_wait(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with running(tmp_path, disk=disk, journal_pending_bytes=64 * KIB) as bookie:
        disk.close_gate()
        copies = [begin_add(bookie, 1, entry_id, PAYLOAD, flags=COPIED) for entry_id in range(10)]
        await asyncio.to_thread(disk.waiting.wait, 10)
        assert len(bookie._back_door) == 8, "an eighth of the journal's room is theirs, and not more"
        adds = [begin_add(bookie, 2, entry_id, PAYLOAD) for entry_id in range(10)]
        assert not bookie._door
        assert bookie._journal.pending_bytes > 12 * 4 * KIB, "who waits goes first"
        disk.open_gate()
        async with asyncio.timeout(10):
            assert set(await asyncio.gather(*adds, *copies)) == {OK}


async def test_copies_do_not_fill_the_cache_while_it_is_flushed(tmp_path: Path) -> None:
    disk = GatedDisk("entries")
    async with running(tmp_path, disk=disk, write_cache_bytes=128 * KIB) as bookie:
        await add_many(bookie, 1, range(15), PAYLOAD)
        disk.close_gate()
        copies = [begin_add(bookie, 2, entry_id, PAYLOAD, flags=COPIED) for entry_id in range(30)]
        await asyncio.to_thread(disk.waiting.wait, 10)
        await until(lambda: bookie._journal.pending_bytes == 0)
        assert len(bookie._back_door) > 5
        assert await add(bookie, 1, 15, PAYLOAD) is OK
        disk.open_gate()
        async with asyncio.timeout(10):
            assert set(await asyncio.gather(*copies)) == {OK}


async def test_one_reader_in_the_background_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path, read_threads=2) as bookie:
        await add_many(bookie, 1, range(20), PAYLOAD)
        await bookie.checkpoint()
        at_once = most = 0
        inner = bookie._answers.run

        async def counted(
            ledger_id: int, first: int, count: int, max_bytes: int
        ) -> tuple[BookieStatus, list[bytes]]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            try:
                return await inner(ledger_id, first, count, max_bytes)
            finally:
                at_once -= 1

        bookie._answers.run = counted  # type: ignore[method-assign]
        reads = [bookie.read_entries(1, entry_id, 2, 10 * KIB, background=True) for entry_id in range(10)]
        assert {status for status, _ in await asyncio.gather(*reads)} == {OK}
        assert most == 1
