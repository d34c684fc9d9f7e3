"""Entry logs and the index that follows from them: rebuilt when lost, and never a confident no while in doubt."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from magnetar.bookie import entry_log
from magnetar.bookie.entry_log import LogFiles, LogWriter, log_path
from magnetar.bookie.errors import EntryLogCorrupt, NewerFormat
from magnetar.bookie.index import EntryIndex, IndexState, IndexUnusable
from magnetar.bookie.ledger_table import HEADER_BYTES, LedgerTable, LedgerTableFile
from magnetar.bookie.write_cache import WriteCache
from magnetar.environment.disk import SystemDisk
from magnetar.protocol.bookie import BookieStatus
from tests.unit.bookie.workbench import KEY, KIB, add_many, entry, running, whole

OK = BookieStatus.OK


async def filled(directory: Path) -> None:
    """Two ledgers in several entry logs, all flushed."""
    async with running(directory) as bookie:
        for burst in range(4):
            for ledger_id in (1, 2):
                await add_many(bookie, ledger_id, range(burst * 10, burst * 10 + 10), b"x" * 4 * KIB)
            await bookie.checkpoint()
        assert len(list((directory / "entries").iterdir())) >= 2


async def expect_all(directory: Path) -> None:
    async with running(directory) as bookie:
        assert bookie.storage.doubt is None
        for ledger_id in (1, 2):
            for entry_id in range(40):
                assert (await bookie.read_entry(ledger_id, entry_id)).entry == whole(
                    ledger_id, entry_id, b"x" * 4 * KIB
                )
            assert (await bookie.read_entry(ledger_id, 40)).status is BookieStatus.NO_SUCH_ENTRY
            assert (await bookie.read_lac(ledger_id)).last_entry == 39


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


async def test_a_missing_index_is_rebuilt(tmp_path: Path) -> None:
    await filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    await expect_all(tmp_path)


async def test_an_index_that_cannot_be_opened_is_rebuilt(tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / "index" / "CURRENT").write_text("rubbish\n")
    await expect_all(tmp_path)


async def test_an_index_of_another_directory_is_rebuilt(tmp_path: Path) -> None:
    await filled(tmp_path / "a")
    async with running(tmp_path / "b"):
        pass
    shutil.rmtree(tmp_path / "a" / "index")
    shutil.copytree(tmp_path / "b" / "index", tmp_path / "a" / "index")
    await expect_all(tmp_path / "a")


async def test_an_index_that_lags_catches_up(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(10), b"x" * 4 * KIB)
        await add_many(bookie, 2, range(10), b"x" * 4 * KIB)
        await bookie.checkpoint()
    shutil.copytree(tmp_path / "index", tmp_path.parent / "old-index")
    async with running(tmp_path) as bookie:
        for ledger_id in (1, 2):
            await add_many(bookie, ledger_id, range(10, 40), b"x" * 4 * KIB)
    shutil.rmtree(tmp_path / "index")
    shutil.copytree(tmp_path.parent / "old-index", tmp_path / "index")
    await expect_all(tmp_path)


async def test_a_rebuilt_index_leaves_deleted_ledgers_out(tmp_path: Path) -> None:
    await filled(tmp_path)
    async with running(tmp_path) as bookie:
        await bookie.delete_ledger(2)
    shutil.rmtree(tmp_path / "index")
    async with running(tmp_path) as bookie:
        assert bookie.ledgers() == {1}
        assert bookie.storage.read(2, 0) == []
        assert (await bookie.read_entry(2, 0)).status is BookieStatus.NO_SUCH_LEDGER


@pytest.mark.parametrize("damage", ["missing log", "damaged record head", "damaged log header", "cut log"])
async def test_what_is_lost_is_unknown_not_absent(tmp_path: Path, damage: str) -> None:
    """Index and part of the logs are gone. The bookie no longer knows what it does not have."""
    await filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    first = min((tmp_path / "entries").iterdir())
    if damage == "missing log":
        first.unlink()
    elif damage == "damaged record head":
        flip(first, 64)
    elif damage == "damaged log header":
        flip(first, 9)
    else:
        first.write_bytes(first.read_bytes()[: 20 * KIB])
    for _ in range(2):  # The doubt outlives restarts.
        async with running(tmp_path) as bookie:
            assert bookie.storage.doubt is not None
            assert (await bookie.read_entry(1, 0)).status is not BookieStatus.NO_SUCH_ENTRY
            assert (await bookie.read_entry(1, 99)).status is BookieStatus.UNKNOWN
            assert (await bookie.read_entries(1, 99, 5, 1000))[0] is BookieStatus.UNKNOWN
            assert (await bookie.read_lac(1)).status is BookieStatus.UNKNOWN
            assert (await bookie.read_entry(1, 39)).status is OK, "what it has it gives"


async def test_an_index_is_rebuilt_from_what_lies_behind_damage(tmp_path: Path) -> None:
    """A length that is wrong leads nowhere; the next whole entry is looked for."""
    await filled(tmp_path)
    shutil.rmtree(tmp_path / "index")
    first = min((tmp_path / "entries").iterdir())
    data = bytearray(first.read_bytes())
    for place in (64, 64 + 3 * (8 + 36 + 4 * KIB)):
        data[place + 4 : place + 8] = (77_777).to_bytes(4, "big")
    data[30 * KIB : 33 * KIB] = b"\0" * 3 * KIB
    first.write_bytes(data)
    async with running(tmp_path) as bookie:
        assert bookie.storage.doubt is not None
        assert "from offset 64 to" in bookie.storage.doubt
        statuses = [(await bookie.read_entry(1, entry_id)).status for entry_id in range(40)]
        assert statuses[0] is statuses[3] is BookieStatus.UNKNOWN
        assert BookieStatus.IO_ERROR in statuses, "one whose head is whole, and not its payload"
        assert statuses.count(OK) >= 36


async def test_a_lost_log_with_a_good_index_is_an_error_not_a_no(tmp_path: Path) -> None:
    await filled(tmp_path)
    min((tmp_path / "entries").iterdir()).unlink()
    async with running(tmp_path) as bookie:
        assert (await bookie.read_entry(1, 0)).status is BookieStatus.IO_ERROR
        assert (await bookie.read_entry(1, 99)).status is BookieStatus.NO_SUCH_ENTRY


async def test_a_damaged_payload_is_an_error_not_a_no(tmp_path: Path) -> None:
    await filled(tmp_path)
    flip(min((tmp_path / "entries").iterdir()), 64 + 8 + 36 + 100)
    async with running(tmp_path) as bookie:
        assert (await bookie.read_entry(1, 0)).status is BookieStatus.IO_ERROR
        assert (await bookie.read_entries(1, 0, 10, 1 << 20))[0] is BookieStatus.IO_ERROR
        assert (await bookie.read_entry(1, 1)).status is OK


class Logs:
    def __init__(self, directory: Path) -> None:
        self.disk = SystemDisk()
        self.directory = directory
        self.files = LogFiles(self.disk, directory)

    def write(self, log: int, count: int, *, seal: bool) -> LogWriter:
        writer = LogWriter(self.disk, self.directory, log, 0)
        writer.append(
            (ledger_id, e, tuple(entry(ledger_id, e, b"p" * 100)))
            for ledger_id in (1, 2)
            for e in range(count)
        )
        writer.sync()
        if seal:
            writer.seal()
        else:
            writer.close()
        return writer


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path)


@pytest.mark.parametrize("zeros", [45, 256 * KIB - 40, 256 * KIB + 3, 1 << 20])
def test_what_lies_behind_zeros_is_found_without_a_look_at_each(
    logs: Logs, zeros: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that has lost something often gives zeros. Nothing else is written while they are searched."""
    looked = 0
    head_at = entry_log._head_at

    def counted(data: bytes, at: int) -> tuple[int, int, int] | None:
        nonlocal looked
        looked += 1
        return head_at(data, at)

    logs.write(1, 3, seal=False)
    path = log_path(logs.directory, 1)
    data = path.read_bytes()
    path.write_bytes(data[:64] + bytes(zeros) + data[64:])
    monkeypatch.setattr(entry_log, "_head_at", counted)
    assert logs.files.resume(1, 64, len(data) + zeros) == 64 + zeros
    assert logs.files.resume(1, 64, 64 + zeros + 50) is None, "it ends before the entry does"
    assert looked < 200


def test_an_entry_log_is_scanned_in_order(logs: Logs) -> None:
    logs.write(1, 50, seal=True)
    logs.files.check_header(1)
    found = logs.files.read_map(1)
    assert found is not None
    records = list(logs.files.scan(1, end=found.data_end))
    assert [(r.ledger_id, r.entry_id) for r in records] == [
        (ledger, e) for ledger in (1, 2) for e in range(50)
    ]
    assert found.bytes_by_ledger == {1: 50 * 144, 2: 50 * 144}
    for record in records:
        assert logs.files.read(record.location)[0][2] == whole(record.ledger_id, record.entry_id, b"p" * 100)
    ahead = logs.files.read(records[45].location, 100 * KIB)
    assert [entry_id for _, entry_id, _ in ahead] == [45, 46, 47, 48, 49], "not into the next ledger"
    logs.files.close()


def test_a_log_without_a_map_ends_where_records_end(logs: Logs) -> None:
    writer = logs.write(1, 5, seal=False)
    path = log_path(logs.directory, 1)
    path.write_bytes(path.read_bytes() + b"half a record")
    assert logs.files.read_map(1) is None
    assert len(list(logs.files.scan(1))) == 10
    assert writer.synced_end == 64 + 10 * 144
    logs.files.close()


def test_a_damaged_map_is_no_map(logs: Logs) -> None:
    logs.write(1, 5, seal=True)
    path = log_path(logs.directory, 1)
    size = path.stat().st_size
    for back in range(1, 48 + 36, 3):
        flip(path, size - back)
        assert logs.files.read_map(1) is None, back
        flip(path, size - back)
    logs.files.close()


def test_a_log_that_is_none_is_refused(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookie.entry_log.VERSION", 2)
    logs.write(1, 1, seal=False)
    monkeypatch.setattr("magnetar.bookie.entry_log.VERSION", 1)
    with pytest.raises(NewerFormat):
        logs.files.check_header(1)
    log_path(logs.directory, 2).write_bytes(b"not a log at all" * 10)
    with pytest.raises(EntryLogCorrupt):
        logs.files.check_header(2)
    log_path(logs.directory, 1).rename(log_path(logs.directory, 3))
    logs.files.close()


def test_only_so_many_files_stay_open(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magnetar.bookie.entry_log._OPEN_FILES_MAX", 4)
    for log in range(1, 11):
        logs.write(log, 1, seal=True)
    for _ in range(2):
        for log in range(1, 11):
            assert len(list(logs.files.scan(log, end=64 + 144))) == 1
    assert logs.files._idle_count == 4 == sum(map(len, logs.files._idle.values()))
    with logs.files.opened(10):
        logs.files.forget(10)
    assert 10 not in logs.files._idle
    logs.files.close()


def test_an_index_gives_back_places_and_its_state(tmp_path: Path) -> None:
    from magnetar.bookie.entry_log import Location, StoredRecord

    index = EntryIndex(tmp_path / "index")
    assert index.state is None
    records = [
        StoredRecord(ledger, e, Location(1, e * 10, 5)) for ledger in (0, 5, 2**63 - 1) for e in range(1200)
    ]
    index.put(records, IndexState("me", 1, 99))
    index.sync()
    assert index.get(5, 1199) == Location(1, 11990, 5)
    assert index.get(5, 1200) is None
    assert index.get(4, 0) is None
    assert index.last(5) == (1199, Location(1, 11990, 5))
    assert index.last(2**63 - 1) == (1199, Location(1, 11990, 5))
    assert index.last(4) is None
    index.delete_ledgers([5])
    assert index.get(5, 0) is None
    assert index.last(5) is None
    assert index.get(0, 0) is not None
    index.doubt("a reason")
    index.close()
    again = EntryIndex(tmp_path / "index")
    assert again.state == IndexState("me", 1, 99, "a reason")
    with pytest.raises(IndexUnusable):
        EntryIndex(tmp_path / "index")
    again.close()


def test_the_ledger_table_remembers_and_is_rewritten(tmp_path: Path) -> None:
    disk = SystemDisk()
    file = LedgerTableFile(disk, tmp_path)
    file.create(1, [])
    table = LedgerTable()
    for ledger_id in range(10):
        table.register(ledger_id, KEY)
    table.register(99, b"")
    fenced = table.get(3)
    assert fenced is not None
    fenced.fenced = True
    fenced.explicit_lac = 17
    table.changed(fenced)
    table.remove(4)
    file.append(table.take_changes())
    assert not table.has_changes
    file.append([])
    file.close()

    again = LedgerTableFile(disk, tmp_path)
    loaded = again.load(1, file.end)
    assert set(loaded) == {0, 1, 2, 3, 5, 6, 7, 8, 9, 99}
    state = loaded.get(3)
    assert state is not None
    assert (state.fenced, state.explicit_lac, state.lac, state.master_key) == (True, 17, 17, KEY)
    assert not loaded.has_changes
    (tmp_path / "00000001.ledgers").open("ab").write(b"half a record")
    assert set(again.load(1, file.end)) == set(loaded), "what was appended after the checkpoint may be torn"

    again.create(2, loaded.snapshot())
    again.append(loaded.take_changes())
    third = LedgerTableFile(disk, tmp_path)
    assert set(third.load(2, HEADER_BYTES)) == set(loaded)
    assert [path.name for path in tmp_path.iterdir()] == ["00000002.ledgers"]
    for each in (again, third):
        each.close()


async def test_the_ledger_table_is_rewritten_when_it_is_mostly_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookie.ledger_table._REWRITE_MIN_BYTES", 400)
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(3))
        for lac in range(30):
            await bookie.write_lac(1, lac, KEY)
            await bookie.checkpoint()
    (table,) = (tmp_path / "ledgers").iterdir()
    assert table.stat().st_size < 500
    assert table.name != "00000001.ledgers"
    async with running(tmp_path) as bookie:
        assert (await bookie.read_lac(1)).lac == 29


def test_a_write_cache_knows_its_weight() -> None:
    cache = WriteCache(10_000)
    parts = tuple(entry(1, 0, b"x" * 100))
    assert cache.has_room(1 << 30), "an empty half takes anything"
    cache.put(1, 0, parts, 136)
    weight = cache.bytes
    cache.put(1, 0, tuple(entry(1, 0, b"x" * 50)), 86)
    assert cache.bytes == weight - 50
    half = cache.swap()
    cache.put(1, 1, parts, 136)
    assert cache.get(1, 0) is not None
    assert cache.get(1, 1) is not None
    assert [key[:2] for key in half.sorted_entries()] == [(1, 0)]
    cache.flushed()
    assert cache.get(1, 0) is None
    cache.drop_ledger(1)
    assert cache.bytes == 0
    assert cache.active.count == 0


def test_a_read_cache_stays_within_its_bounds() -> None:
    from magnetar.bookie.read_cache import ReadCache

    cache = ReadCache(10_000)
    for entry_id in range(100):
        cache.put(1, entry_id, b"x" * 500)
        assert cache.bytes <= 10_000
    assert cache.get(1, 0) is None
    assert cache.get(1, 99) is not None
    cache.put(1, 99, b"y")
    assert cache.get(1, 99) == b"y"
    cache.drop_ledger(1)
    assert cache.bytes == 0


async def test_the_page_cache_keeps_the_newest_of_the_logs(tmp_path: Path) -> None:
    from tests.unit.bookie.disks import WrappedDisk, WrappedFile

    forgotten: list[tuple[str, int, int]] = []

    class Watched(WrappedDisk):
        def open(self, path: Path, *, writable: bool = False) -> WrappedFile:
            file = WrappedFile(self, path, self.inner.open(path, writable=writable))
            file.forget = lambda offset, length: forgotten.append((path.name, offset, offset + length))  # type: ignore[method-assign]
            return file

    async with running(tmp_path, disk=Watched(), entry_log_cached_bytes=100 * KIB) as bookie:
        for burst in range(8):
            await add_many(bookie, 1, range(burst * 10, burst * 10 + 10), b"x" * 4 * KIB)
            await bookie.checkpoint()
            assert bookie.storage._window.bytes <= 100 * KIB
        assert len(forgotten) == 6, "two flushes of 40 KiB stay"
        assert len({name for name, _, _ in forgotten}) > 1
        for entry_id in range(80):
            assert (await bookie.read_entry(1, entry_id)).status is OK


async def test_a_read_backlog_passes_through_the_page_cache(tmp_path: Path) -> None:
    from tests.unit.bookie.disks import WrappedDisk, WrappedFile

    forgotten: list[tuple[str, int, int]] = []

    class Watched(WrappedDisk):
        def open(self, path: Path, *, writable: bool = False) -> WrappedFile:
            file = WrappedFile(self, path, self.inner.open(path, writable=writable))
            file.forget = lambda offset, length: forgotten.append((path.name, offset, offset + length))  # type: ignore[method-assign]
            return file

    windows = {"read_ahead_bytes": 20 * KIB, "entry_log_read_cached_bytes": 60 * KIB}
    async with running(tmp_path, disk=Watched(), **windows) as bookie:
        await add_many(bookie, 1, range(50), b"x" * 4 * KIB)
        await bookie.checkpoint()
        assert (await bookie.read_entries(1, 0, 50, 10_000 * KIB))[0] is OK
        assert not forgotten, "the newest stay, read or not"
    async with running(tmp_path, disk=Watched(), **windows) as bookie:
        for entry_id in range(50):
            assert (await bookie.read_entry(1, entry_id)).status is OK
        assert bookie.storage._window._read_bytes <= 60 * KIB
        assert forgotten[0][1] == 0
        reached = 0
        for _, start, end in forgotten:
            assert start <= reached < end, "no gap stays behind"
            reached = end
        assert 50 * 4 * KIB - reached <= 60 * KIB
