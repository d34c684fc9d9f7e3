"""What tests of the bookie have at hand: entries, a small bookie, and adds that can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import Disk, SystemDisk
from magnetar.protocol.bookie import AddFlags, BookieConnection, BookieStatus, master_key
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.ledger_entry import encode_entry_header

KEY = master_key()
OTHER_KEY = master_key(b"another")
KIB = 1024


def entry(
    ledger_id: int, entry_id: int, payload: bytes = b"payload", *, lac: int | None = None
) -> list[bytes]:
    """A stored entry as parts; its LAC is the entry before it unless told otherwise."""
    confirmed = entry_id - 1 if lac is None else lac
    return [encode_entry_header(ledger_id, entry_id, confirmed, len(payload), [payload]), payload]


def whole(ledger_id: int, entry_id: int, payload: bytes = b"payload", *, lac: int | None = None) -> bytes:
    return b"".join(entry(ledger_id, entry_id, payload, lac=lac))


def small_settings(directory: Path, **changes: Any) -> BookieSettings:
    """Everything small, so that tests reach the interesting places; no flush by time."""
    settings = BookieSettings(
        directory,
        journal_segment_bytes=256 * KIB,
        journal_first_bytes=32 * KIB,
        write_cache_bytes=256 * KIB,
        entry_log_bytes=128 * KIB,
        read_cache_bytes=64 * KIB,
        read_ahead_bytes=16 * KIB,
        flush_interval_s=3600.0,
        free_bytes_min=0,
        reserve_bytes=0,
        disk_warn_usage=1.0,
        disk_full_usage=1.0,
        disk_low_usage=1.0,
        gc_grace_s=0.0,
    )
    return replace(settings, **changes)


def failed(error: BaseException) -> None:
    """In place of ending the process."""
    raise AssertionError(f"the disk failed: {error}")


def make_bookie(
    directory: Path, *, disk: Disk | None = None, bookie_id: str = "b1", **changes: Any
) -> Bookie:
    return Bookie(
        small_settings(directory, **changes),
        disk=disk if disk is not None else SystemDisk(),
        clock=SystemClock(),
        bookie_id=bookie_id,
        on_disk_failure=failed,
    )


@asynccontextmanager
async def running(directory: Path, *, disk: Disk | None = None, **changes: Any) -> AsyncIterator[Bookie]:
    """A bookie on `directory`, stopped in the end."""
    bookie = make_bookie(directory, disk=disk, **changes)
    await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.stop()


def begin_add(
    bookie: BookieConnection,
    ledger_id: int,
    entry_id: int,
    payload: bytes = b"payload",
    *,
    lac: int | None = None,
    flags: AddFlags = AddFlags.NONE,
    key: bytes = KEY,
    parts: Sequence[Buffer] | None = None,
) -> asyncio.Future[BookieStatus]:
    """An add under way: the future is its status."""
    status: asyncio.Future[BookieStatus] = asyncio.get_running_loop().create_future()
    stored = entry(ledger_id, entry_id, payload, lac=lac) if parts is None else parts
    bookie.add_entry(ledger_id, entry_id, stored, flags, key, status.set_result)
    return status


async def add(
    bookie: BookieConnection, ledger_id: int, entry_id: int, payload: bytes = b"payload", **how: Any
) -> BookieStatus:
    """An add and its status, which is expected within a few seconds."""
    async with asyncio.timeout(10):
        return await begin_add(bookie, ledger_id, entry_id, payload, **how)


async def add_many(
    bookie: Bookie, ledger_id: int, entry_ids: Sequence[int], payload: bytes = b"payload"
) -> None:
    """Adds that all must succeed."""
    async with asyncio.timeout(30):
        statuses = await asyncio.gather(*(begin_add(bookie, ledger_id, e, payload) for e in entry_ids))
    assert set(statuses) == {BookieStatus.OK}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is bound to happen soon."""
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def crash(bookie: Bookie) -> None:
    """End a bookie as a kill would, as far as its directory is concerned: nothing is flushed on the way out."""
    bookie._serving = False
    bookie._checkpointer.stop()
    await bookie._journal.stop()
    bookie._read_threads.shutdown()
    bookie._storage_thread.shutdown()
    bookie._running.storage.close(seal=False)
    bookie._running.lock.release()
