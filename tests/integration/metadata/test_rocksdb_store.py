"""RocksDB as a metadata store: one process at a time, one sync for many, and nothing said before it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from magnetar.environment.disk import EXIT_DISK_FAILED
from magnetar.metadata.errors import StoreRefused
from magnetar.metadata.rocksdb import RocksDBStore


class SlowSync:
    """Stands before the database and holds every sync back until the test lets it go."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.syncs = 0
        self.began = threading.Event()
        self.go = threading.Event()

    @classmethod
    def before(cls, store: Any) -> SlowSync:
        store._database = cls(store._database)
        return store._database  # type: ignore[no-any-return]

    def flush_wal(self, sync: bool) -> None:
        assert sync
        self.syncs += 1
        self.began.set()
        assert self.go.wait(20)
        self._database.flush_wal(True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.fixture
async def store(tmp_path: Path) -> Any:
    store = await RocksDBStore.open(tmp_path / "metadata")
    yield store
    await store.close()


async def test_many_writes_share_a_sync(store: RocksDBStore) -> None:
    slow = SlowSync.before(store)
    first = asyncio.create_task(store.put("/0", b""))
    await asyncio.to_thread(slow.began.wait)
    others = [asyncio.create_task(store.put(f"/{n}", b"")) for n in range(1, 100)]
    await asyncio.sleep(0)
    slow.go.set()
    await asyncio.gather(first, *others)
    assert slow.syncs == 2


async def test_nothing_is_answered_shown_or_told_before_its_sync(store: RocksDBStore) -> None:
    await store.put("/a", b"old")
    told: list[object] = []
    store.watch("/a", told.append)
    slow = SlowSync.before(store)
    writing = asyncio.create_task(store.put("/a", b"new"))
    await asyncio.to_thread(slow.began.wait)
    reading = asyncio.create_task(store.get("/a"))
    refused = asyncio.create_task(store.put("/a", b"", expected_version=-1))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not writing.done()
    assert not reading.done()
    assert not refused.done()
    assert told == []
    slow.go.set()
    assert await writing == 1
    record = await reading
    assert record is not None
    assert record.value == b"new"
    with pytest.raises(Exception, match="exists already"):
        await refused
    await asyncio.sleep(0)
    assert len(told) == 1


async def test_a_caller_that_gives_up_does_not_undo_its_write(store: RocksDBStore) -> None:
    slow = SlowSync.before(store)
    writing = asyncio.create_task(store.put("/a", b"kept"))
    await asyncio.to_thread(slow.began.wait)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    slow.go.set()
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"kept"


async def test_a_directory_in_use_is_refused(store: RocksDBStore, tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match=r"in use by process \d+"):
        await RocksDBStore.open(tmp_path / "metadata")


async def test_a_newer_format_is_refused_by_name(store: RocksDBStore, tmp_path: Path) -> None:
    await store.close()
    (tmp_path / "metadata" / "FORMAT").write_text("2\n")
    with pytest.raises(StoreRefused, match="has format '2'"):
        await RocksDBStore.open(tmp_path / "metadata")
    (tmp_path / "metadata" / "FORMAT").write_text("1\n")
    await (await RocksDBStore.open(tmp_path / "metadata")).close()


async def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreRefused, match="cannot be used"):
        await RocksDBStore.open(tmp_path / "file")


KILLED_AFTER_WRITING = """
import asyncio, os, signal, sys
from pathlib import Path
from magnetar.metadata.rocksdb import RocksDBStore

async def main():
    store = await RocksDBStore.open(Path(sys.argv[1]))
    await store.put("/members/me", b"", ephemeral=True)
    await asyncio.gather(*(store.put(f"/kept/{n:03}", b"x" * 100) for n in range(200)))
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_after_sigkill_what_was_answered_is_there_and_ephemerals_are_not(tmp_path: Path) -> None:
    directory = tmp_path / "metadata"
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", KILLED_AFTER_WRITING, str(directory)], timeout=60
    )
    assert killed.returncode == -9
    store = await RocksDBStore.open(directory)
    assert len(await store.children("/kept")) == 200
    assert await store.children("/members") == []
    await store.close()


FAILING_SYNC = """
import asyncio, sys
from pathlib import Path
from magnetar.metadata.rocksdb import RocksDBStore

class Failing:
    def __init__(self, database):
        self.database = database
    def flush_wal(self, sync):
        raise OSError(5, "Input/output error")
    def __getattr__(self, name):
        return getattr(self.database, name)

async def main():
    store = await RocksDBStore.open(Path(sys.argv[1]))
    store._database = Failing(store._database)
    await store.put("/a", b"")
    print("acknowledged", flush=True)

asyncio.run(main())
"""


async def test_a_failed_sync_ends_the_process_without_an_answer(tmp_path: Path) -> None:
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FAILING_SYNC, str(tmp_path / "metadata")],
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == EXIT_DISK_FAILED
    assert "acknowledged" not in ended.stdout
    assert "Input/output error" in ended.stderr
