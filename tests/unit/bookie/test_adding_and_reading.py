"""An add is acknowledged when it is durable, and what was added comes back, wherever it is by then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.protocol.bookie import LAST_ENTRY, AddFlags, BookieStatus, EntryRead
from tests.unit.bookie.disks import FullDisk, GatedDisk, ShortDisk
from tests.unit.bookie.workbench import (
    KEY,
    KIB,
    OTHER_KEY,
    add,
    add_many,
    begin_add,
    entry,
    make_bookie,
    running,
    whole,
)

OK = BookieStatus.OK


@pytest.mark.parametrize("flushed", [False, True])
async def test_what_was_added_comes_back(tmp_path: Path, flushed: bool) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 7, range(5), b"x" * 100)
        if flushed:
            await bookie.checkpoint()
        for entry_id in range(5):
            read = await bookie.read_entry(7, entry_id)
            assert (read.status, read.entry) == (OK, whole(7, entry_id, b"x" * 100))
        assert await bookie.read_entry(7, LAST_ENTRY) == EntryRead(OK, whole(7, 4, b"x" * 100), 3)
        assert (await bookie.read_entry(7, 5)).status is BookieStatus.NO_SUCH_ENTRY
        assert (await bookie.read_entry(8, 0)).status is BookieStatus.NO_SUCH_LEDGER


async def test_an_entry_may_come_in_any_pieces(tmp_path: Path) -> None:
    header, payload = entry(1, 0, b"some payload")
    stored = header + payload
    ways: list[list[bytes | bytearray | memoryview]] = [
        [header, payload],
        [stored],
        [memoryview(stored)],
        [bytearray(stored[:10]), memoryview(stored)[10:]],
        [header, b"some ", b"pay", b"load"],
        [header, *(bytes([byte]) for byte in payload)],
        [header, memoryview(payload)],
    ]
    async with running(tmp_path) as bookie:
        for ledger_id, parts in enumerate(ways, start=1):
            status: asyncio.Future[BookieStatus] = asyncio.get_running_loop().create_future()
            bookie.add_entry(1, 0, parts, AddFlags.NONE, KEY, status.set_result)
            assert await status is OK, ledger_id
            assert (await bookie.read_entry(1, 0)).entry == stored


async def test_an_empty_payload_is_an_entry_too(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        assert await add(bookie, 1, 0, b"") is OK
        await bookie.checkpoint()
        assert (await bookie.read_entry(1, 0)).entry == whole(1, 0, b"")


async def test_nothing_is_acknowledged_before_it_is_synced(tmp_path: Path) -> None:
    disk = GatedDisk("journal")
    async with running(tmp_path, disk=disk) as bookie:
        disk.close_gate()
        status = begin_add(bookie, 1, 0)
        await asyncio.to_thread(disk.waiting.wait, 10)
        later = [begin_add(bookie, 1, entry_id) for entry_id in range(1, 50)]
        groups = bookie._journal.groups
        assert not status.done()
        disk.open_gate()
        async with asyncio.timeout(10):
            assert {await status, *await asyncio.gather(*later)} == {OK}
        assert bookie._journal.groups == groups + 2, "all that queued during a sync goes into the next one"


async def test_done_is_never_called_from_within_the_add(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        for ledger_id, key in ((1, KEY), (1, OTHER_KEY), (-1, KEY)):
            status = begin_add(bookie, ledger_id, 0, key=key, parts=entry(abs(ledger_id), 0))
            assert not status.done()
            await status


async def test_the_same_entry_may_be_added_again(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        assert await add(bookie, 1, 0) is OK
        assert await add(bookie, 1, 0) is OK
        await bookie.checkpoint()
        assert await add(bookie, 1, 0, lac=-1, flags=AddFlags.RECOVERY) is OK
        assert (await bookie.read_entry(1, 0)).entry == whole(1, 0, lac=-1)
        await bookie.checkpoint()
        assert (await bookie.read_entry(1, 0)).entry == whole(1, 0, lac=-1)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "parts"),
    [
        (1, 0, [b"too short"]),
        (1, 1, entry(1, 0)),
        (2, 0, entry(1, 0)),
        (1, 0, [entry(1, 0)[0], b"other payload"]),
        (-1, 0, entry(-1, 0)),
        (1, -5, entry(1, -5)),
        (1, 0, entry(1, 0, bytes(6 << 20))),
    ],
    ids=[
        "short",
        "other entry",
        "other ledger",
        "bad checksum",
        "bad ledger id",
        "bad entry id",
        "too large",
    ],
)
async def test_what_is_no_such_entry_is_refused(
    tmp_path: Path, ledger_id: int, entry_id: int, parts: list[bytes]
) -> None:
    async with running(tmp_path) as bookie:
        assert await add(bookie, ledger_id, entry_id, parts=parts) is BookieStatus.BAD_REQUEST
        assert bookie.ledgers() == set()


async def test_only_the_holder_of_the_key_may_write_or_fence(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        assert await add(bookie, 1, 0, key=b"") is BookieStatus.UNAUTHORIZED
        assert await add(bookie, 1, 0) is OK
        assert await add(bookie, 1, 1, key=OTHER_KEY) is BookieStatus.UNAUTHORIZED
        assert (await bookie.read_lac(1, fence=True)).status is BookieStatus.UNAUTHORIZED
        assert (
            await bookie.read_entry(1, 0, fence=True, master_key=OTHER_KEY)
        ).status is BookieStatus.UNAUTHORIZED
        assert await bookie.write_lac(1, 0, OTHER_KEY) is BookieStatus.UNAUTHORIZED
        assert await add(bookie, 1, 1) is OK, "nobody fenced it"


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_run_ends_before_a_gap_and_within_its_bounds(tmp_path: Path, flushed: bool) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, [*range(10), *range(12, 15)], b"p" * 964)
        if flushed:
            await bookie.checkpoint()
        assert await bookie.read_entries(1, 0, 100, 1 << 20) == (
            OK,
            [whole(1, e, b"p" * 964) for e in range(10)],
        )
        assert len((await bookie.read_entries(1, 0, 4, 1 << 20))[1]) == 4
        assert len((await bookie.read_entries(1, 0, 100, 3500))[1]) == 3
        assert len((await bookie.read_entries(1, 9, 100, 1))[1]) == 1, "at least one"
        assert await bookie.read_entries(1, 10, 5, 1 << 20) == (BookieStatus.NO_SUCH_ENTRY, [])
        assert (await bookie.read_entries(2, 0, 5, 1 << 20))[0] is BookieStatus.NO_SUCH_LEDGER
        assert (await bookie.read_entries(1, 0, 0, 1 << 20))[0] is BookieStatus.BAD_REQUEST


async def test_a_run_goes_on_from_entry_log_to_write_cache(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(5))
        await bookie.checkpoint()
        await add_many(bookie, 1, range(5, 10))
        status, entries = await bookie.read_entries(1, 0, 100, 1 << 20)
        assert (status, entries) == (OK, [whole(1, entry_id) for entry_id in range(10)])


async def test_reading_ahead_saves_reads(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(10), b"x" * 100)
        await bookie.checkpoint()
        for entry_id in range(10):
            assert (await bookie.read_entry(1, entry_id)).status is OK
        assert bookie._read_cache.misses == 1
        assert bookie._read_cache.hits == 9


async def test_the_lac_is_the_greater_of_what_was_written_and_what_entries_carry(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        assert (await bookie.read_lac(1)).status is BookieStatus.NO_SUCH_LEDGER
        await add_many(bookie, 1, range(3))
        read = await bookie.read_lac(1)
        assert (read.status, read.lac, read.last_entry, read.entry) == (OK, 1, 2, whole(1, 2))
        assert await bookie.write_lac(1, 2, KEY) is OK
        assert (await bookie.read_lac(1)).lac == 2
        assert await bookie.write_lac(1, 0, KEY) is OK
        assert (await bookie.read_lac(1)).lac == 2, "a LAC never goes back"
        assert await bookie.write_lac(1, -7, KEY) is BookieStatus.BAD_REQUEST


async def test_adds_wait_at_the_door_while_everything_is_full(tmp_path: Path) -> None:
    disk = GatedDisk("entries")
    async with running(tmp_path, disk=disk, write_cache_bytes=64 * KIB) as bookie:
        disk.close_gate()
        adds = [begin_add(bookie, 1, entry_id, b"x" * KIB) for entry_id in range(100)]
        async with asyncio.timeout(10):
            await asyncio.gather(*adds[:20])
        assert len(bookie._door) > 0
        assert bookie._cache.bytes <= 64 * KIB
        disk.open_gate()
        async with asyncio.timeout(10):
            assert set(await asyncio.gather(*adds)) == {OK}
        for entry_id in range(100):
            assert (await bookie.read_entry(1, entry_id)).status is OK


async def test_adds_are_refused_only_after_their_time(tmp_path: Path) -> None:
    disk = GatedDisk("entries")
    async with running(tmp_path, disk=disk, write_cache_bytes=64 * KIB, add_wait_s=0.2) as bookie:
        disk.close_gate()
        began = asyncio.get_running_loop().time()
        adds = [begin_add(bookie, 1, entry_id, b"x" * KIB) for entry_id in range(100)]
        async with asyncio.timeout(10):
            statuses = await asyncio.gather(*adds)
        waited = asyncio.get_running_loop().time() - began
        taken = statuses.count(OK)
        assert statuses == [OK] * taken + [BookieStatus.TOO_MANY_REQUESTS] * (100 - taken)
        assert 0 < taken < 100
        assert waited >= 0.2
        disk.open_gate()


async def test_what_waits_at_the_door_is_bounded_too(tmp_path: Path) -> None:
    disk = GatedDisk("entries")
    async with running(tmp_path, disk=disk, write_cache_bytes=64 * KIB, waiting_adds_bytes=8 * KIB) as bookie:
        disk.close_gate()
        adds = [begin_add(bookie, 1, entry_id, b"x" * KIB) for entry_id in range(200)]
        async with asyncio.timeout(10):
            assert await adds[-1] is BookieStatus.TOO_MANY_REQUESTS
        disk.open_gate()
        async with asyncio.timeout(10):
            await asyncio.gather(*adds)


async def test_a_waiting_add_meets_a_fence_that_came_meanwhile(tmp_path: Path) -> None:
    disk = GatedDisk("entries")
    async with running(tmp_path, disk=disk, write_cache_bytes=64 * KIB) as bookie:
        disk.close_gate()
        adds = [begin_add(bookie, 1, entry_id, b"x" * KIB) for entry_id in range(100)]
        fenced = await bookie.read_lac(1, fence=True, master_key=KEY)
        disk.open_gate()
        async with asyncio.timeout(10):
            statuses = await asyncio.gather(*adds)
        assert statuses[-1] is BookieStatus.FENCED
        assert statuses.count(OK) == fenced.last_entry + 1, "the fencing read saw all that was ever taken"


async def test_without_space_the_bookie_only_reads(tmp_path: Path) -> None:
    free = 1 << 30
    disk = ShortDisk(lambda: free)
    async with running(tmp_path, disk=disk, free_bytes_min=1 << 20) as bookie:
        changes: list[bool] = []
        writable = asyncio.Event()

        def changed() -> None:
            changes.append(bookie.read_only)
            if not bookie.read_only:
                writable.set()

        bookie.on_mode_change = changed
        assert await add(bookie, 1, 0) is OK
        free = 1000
        await bookie.checkpoint()
        assert await add(bookie, 1, 1) is BookieStatus.READ_ONLY
        assert (await bookie.info()).read_only
        assert await add(bookie, 1, 1, flags=AddFlags.RECOVERY) is OK
        assert (await bookie.read_entry(1, 0)).status is OK
        free = 1 << 30
        bookie._space._ask()
        async with asyncio.timeout(10):
            await writable.wait()
        assert await add(bookie, 1, 2) is OK
        assert changes == [True, False]


async def test_a_flush_that_fails_for_want_of_space_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookie.checkpoint._RETRY_S", 0.02)
    disk = FullDisk("entries")
    async with running(tmp_path, disk=disk) as bookie:
        read_only = asyncio.Event()
        bookie.on_mode_change = read_only.set
        await add_many(bookie, 1, range(10))
        disk.full = True
        flush = asyncio.ensure_future(bookie.checkpoint())
        async with asyncio.timeout(10):
            await read_only.wait()
        assert (await bookie.read_entry(1, 3)).status is OK
        assert not flush.done()
        disk.full = False
        await asyncio.wait_for(flush, 10)
        for entry_id in range(10):
            assert (await bookie.read_entry(1, entry_id)).status is OK


async def test_a_failed_sync_is_the_end(tmp_path: Path) -> None:
    from magnetar.environment.errors import DiskFailed
    from tests.unit.bookie.disks import WrappedDisk

    class Failing(WrappedDisk):
        broken = False

        def before_sync(self, path: Path) -> bool:
            if self.broken:
                raise DiskFailed(path, "input/output error")
            return True

    ended: list[BaseException] = []
    disk = Failing()
    bookie = make_bookie(tmp_path, disk=disk)
    bookie._on_disk_failure = ended.append
    await bookie.start()
    disk.broken = True
    status = begin_add(bookie, 1, 0)
    await asyncio.to_thread(bookie._journal._thread.join, 10)  # type: ignore[union-attr]
    await asyncio.sleep(0)
    assert [type(error) for error in ended] == [DiskFailed]
    assert not status.done(), "nobody is told anything"
    bookie._journal._open_segment.file.close()
    bookie._storage_thread.shutdown()
    bookie._running.storage.close(seal=False)
    bookie._running.lock.release()


async def test_a_bookie_that_does_not_run_says_so(tmp_path: Path) -> None:
    bookie = make_bookie(tmp_path)
    assert await add(bookie, 1, 0) is BookieStatus.UNREACHABLE
    await bookie.start()
    await bookie.stop()
    assert await add(bookie, 1, 0) is BookieStatus.UNREACHABLE
    assert (await bookie.read_entry(1, 0)).status is BookieStatus.UNREACHABLE
    assert (await bookie.read_lac(1)).status is BookieStatus.UNREACHABLE


async def test_metrics_count_what_happened(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(3))
        await bookie.read_entry(1, 0)
        values = {sample.name: sample.value for sample in bookie.metrics()}
        assert values["bookkeeper_server_ADD_ENTRY_count"] == 3
        assert values["bookkeeper_server_READ_ENTRY_count"] == 1
        assert values["bookie_ledgers_count"] == 1


async def test_an_idle_bookie_has_no_timer(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        assert _timers(bookie) == [None, None, None, None]
        await add_many(bookie, 1, range(3))
        await bookie.checkpoint()
        assert _timers(bookie) == [None, None, None, None]


def _timers(bookie: Bookie) -> list[object]:
    checkpointer = bookie._checkpointer
    return [checkpointer._timer, checkpointer._retry, bookie._door._timer, bookie._space._timer]
