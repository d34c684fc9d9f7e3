"""Each byte of a small journal, entry log and index is flipped once: nothing is served that was not written, and nothing
is lost without a word that names the file."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from magnetar.bookie.directory import INDEX, JOURNAL
from magnetar.bookie.entry_log import LogFiles
from magnetar.bookie.errors import DirectoryDamaged, EntryLogCorrupt
from magnetar.bookie.index import EntryIndex, IndexUnusable
from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.ledger_table import LedgerTable
from magnetar.bookie.mark import MarkFile
from magnetar.bookie.segments import Segments
from magnetar.bookie.startup import replay_journal
from magnetar.bookie.storage import Storage
from magnetar.bookie.write_cache import WriteCache
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.protocol.bookie import BookieStatus
from magnetar.simulation.machine import MemoryIndex, StoredIndex
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.workbench import (
    KEY,
    KIB,
    add_many,
    begin_add,
    crash,
    make_bookie,
    running,
    until,
    whole,
)

PAYLOAD = b"what was written " * 20


class Unsynced(WrappedDisk):
    """Nothing here has to survive a power cut."""

    def before_sync(self, path: Path) -> bool:
        return False

    def before_sync_directory(self, path: Path) -> bool:
        return False


def flips(path: Path, look: Callable[[int], None], places: range) -> None:
    """Call `look` once for each byte, flipped."""
    image = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for place in places:
            file.seek(place)
            file.write(bytes([image[place] ^ (1 << place % 8)]))
            look(place)
            file.seek(place)
            file.write(image[place : place + 1])
    assert path.read_bytes() == image


async def test_every_byte_of_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookie.journal._SEAL_S", 0.02)
    bookie = make_bookie(tmp_path, journal_segment_bytes=64 * KIB, journal_first_bytes=16 * KIB)
    await bookie.start()
    statuses = [begin_add(bookie, 1, entry_id, PAYLOAD) for entry_id in range(8)]
    fencing = asyncio.create_task(bookie.read_lac(2, fence=True, master_key=KEY))
    lac = asyncio.create_task(bookie.write_lac(1, 5, KEY))
    assert set(await asyncio.gather(*statuses)) == {BookieStatus.OK}
    await asyncio.gather(fencing, lac)
    await until(lambda: bookie._journal.groups >= 2 and bookie._journal._seal_timer is None)
    await until(lambda: not bookie._journal.pending_bytes)
    end = bookie._journal.durable.offset
    path = bookie._journal._open_segment.path
    await crash(bookie)
    disk = Unsynced()
    mark = MarkFile(disk, tmp_path).read().mark
    reported = 0

    def look(place: int) -> None:
        nonlocal reported
        lost: list[DirectoryDamaged] = []
        segments = Segments(disk, tmp_path / JOURNAL, segment_bytes=1, first_bytes=1, clock=SystemClock())
        table, cache = LedgerTable(), WriteCache(1 << 20)
        replay_journal(JournalReplay(segments, mark, lost.append), table, cache, cast(Any, None))
        for entry_id in range(8):
            found = cache.get(1, entry_id)
            if found is None:
                assert lost, f"entry {entry_id} was lost in silence with byte {place}"
            else:
                assert b"".join(found) == whole(1, entry_id, PAYLOAD), place
        state = table.get(2)
        assert lost or (state is not None and state.fenced), (
            f"the fence was lost in silence with byte {place}"
        )
        known = table.get(1)
        assert lost or (known is not None and known.explicit_lac == 5), place
        assert all(path.name in str(error) for error in lost)
        reported += bool(lost)

    look(0)
    assert not reported, "undamaged, all is there"
    flips(path, look, range(0, 4096, 1))
    flips(path, look, range(4096, end))
    assert reported > 3000


async def stored(directory: Path) -> None:
    async with running(directory) as bookie:
        await add_many(bookie, 1, range(5), PAYLOAD)
        await add_many(bookie, 2, range(4), PAYLOAD)


def opened(directory: Path, disk: Unsynced, index: StoredIndex) -> Storage:
    settings = make_bookie(directory).settings
    storage = Storage(
        disk,
        directory,
        instance="it",
        clock=SystemClock(),
        entry_log_bytes=settings.entry_log_bytes,
        read_ahead_bytes=0,
        cached_bytes=1 << 20,
        read_cached_bytes=1 << 20,
        open_index=lambda path: MemoryIndex(path, index, lambda ledger_id: None),
        remove_index=lambda path: index.clear(),
    )
    segments = Segments(disk, directory / JOURNAL, segment_bytes=1, first_bytes=1, clock=SystemClock())
    storage.open(segments)
    return storage


ENTRIES = [(1, entry_id) for entry_id in range(5)] + [(2, entry_id) for entry_id in range(4)]


async def test_every_byte_of_an_entry_log(tmp_path: Path) -> None:
    await stored(tmp_path)
    disk, index = Unsynced(), StoredIndex(random.Random(1))
    opened(tmp_path, disk, index).close()
    (path,) = (tmp_path / "entries").glob("*.log")
    damaged = 0
    named: set[Path] = set()

    def look(place: int) -> None:
        nonlocal damaged
        storage = opened(tmp_path, disk, index)
        for ledger_id, entry_id in ENTRIES:
            try:
                (found,) = storage.read(ledger_id, entry_id)[:1]
            except EntryLogCorrupt as error:
                named.add(error.path)
                damaged += 1
            else:
                assert found.entry == whole(ledger_id, entry_id, PAYLOAD), place
        storage.close()
        rebuilt = opened(tmp_path, disk, StoredIndex(random.Random(1)))
        missing = 0
        for ledger_id, entry_id in ENTRIES:
            try:
                stored_entries = rebuilt.read(ledger_id, entry_id)
            except EntryLogCorrupt as error:
                named.add(error.path)
                continue
            if not stored_entries:
                missing += 1
                assert rebuilt.doubt is not None, f"entry {entry_id} was lost in silence with byte {place}"
                assert path.name in rebuilt.doubt
            else:
                assert stored_entries[0].entry == whole(ledger_id, entry_id, PAYLOAD), place
        assert missing <= 1, f"byte {place} costs one entry, and not those behind it"
        rebuilt.close()

    look(-1)
    assert not damaged
    flips(path, look, range(0, path.stat().st_size, 1))
    assert named == {path}
    assert damaged >= len(ENTRIES) * (len(PAYLOAD) + 36), "each byte of an entry matters"


async def test_every_byte_behind_the_records_of_an_entry_log(tmp_path: Path) -> None:
    """The map that garbage collection goes by is right, or is made anew, or the log is kept."""
    await stored(tmp_path)
    disk = Unsynced()
    (path,) = (tmp_path / "entries").glob("*.log")
    files = LogFiles(disk, tmp_path / "entries")
    log_id = int(path.stem, 16)
    right = files.read_map(log_id)
    assert right is not None

    def look(place: int) -> None:
        found = files.read_map(log_id)
        assert found is None or found == right, place
        last = list(files.scan(log_id))[-1]
        assert last.location.offset + 8 + last.location.length == right.data_end

    flips(path, look, range(right.data_end, path.stat().st_size))
    files.close()


async def test_bytes_of_an_index(tmp_path: Path) -> None:
    """RocksDB's files, damaged: it notices, and the index is built anew; or no harm was done. Opening it takes long: so
    this takes every 149th byte, and `MAGNETAR_EVERY_BYTE=1` all of them."""
    step = 1 if os.environ.get("MAGNETAR_EVERY_BYTE") else 149
    data = tmp_path / "data"
    await stored(data)
    kept = tmp_path / "kept"
    shutil.copytree(data / INDEX, kept)
    storage = Storage(
        SystemDisk(),
        data,
        instance=_instance(data),
        clock=SystemClock(),
        entry_log_bytes=1 << 20,
        read_ahead_bytes=0,
        cached_bytes=1 << 20,
        read_cached_bytes=1 << 20,
    )
    segments = Segments(SystemDisk(), data / JOURNAL, segment_bytes=1, first_bytes=1, clock=SystemClock())
    files = [path.name for path in sorted(kept.iterdir()) if path.name not in ("LOG", "LOCK", "IDENTITY")]
    looked = 0
    for name in files:
        if name.startswith("LOG"):
            continue
        image = (kept / name).read_bytes()
        for place in range(0, len(image), step):
            shutil.rmtree(data / INDEX)
            shutil.copytree(kept, data / INDEX)
            (data / INDEX / name).write_bytes(image[:place] + bytes([image[place] ^ 16]) + image[place + 1 :])
            table = storage.open(segments)
            for attempt in (1, 2):
                try:
                    for ledger_id, entry_id in ENTRIES:
                        found = storage.read(ledger_id, entry_id)
                        assert found, f"{ledger_id}:{entry_id} denied with byte {place} of {name}"
                        assert found[0].entry == whole(ledger_id, entry_id, PAYLOAD)
                    assert storage.read(1, 5) == []
                    break
                except (IndexUnusable, EntryLogCorrupt):
                    assert attempt == 1, f"byte {place} of {name}"
                    storage.rebuild_index(table)
            assert storage.doubt is None
            storage.close()
            looked += 1
    assert looked > 5


def _instance(data: Path) -> str:
    index = EntryIndex(data / INDEX)
    try:
        assert index.state is not None
        return index.state.instance
    finally:
        index.close()
