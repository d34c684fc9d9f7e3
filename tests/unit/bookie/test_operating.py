"""What an operator does to a bookie: read-only and back, empty its directory, have it checked; and full disks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import ForeignDirectory, StillInUse
from magnetar.bookie.format import forget_bookie, format_directory
from magnetar.bookie.registration import BookieRegistration, read_only_wanted, set_read_only
from magnetar.bookie.sanity import check, write_and_read
from magnetar.bookie.space import Fullness, Watermarks
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.environment.errors import DirectoryInUse
from magnetar.metadata.opening import open_store
from magnetar.protocol.bookie import AddFlags, BookieAddress, BookieStatus
from tests.unit.bookie.disks import ShortDisk
from tests.unit.bookie.workbench import (
    add,
    add_many,
    crash,
    failed,
    make_bookie,
    running,
    small_settings,
    until,
)

OK = BookieStatus.OK
MIB = 1024 * 1024


async def test_read_only_by_wish_is_told_kept_over_restarts_and_taken_back(tmp_path: Path) -> None:
    metadata = await open_store("memory:wished")
    path = "/ledgers/available/b1"

    async def registered_read_only() -> bool:
        record = await metadata.get(path)
        return record is not None and BookieAddress.decode(record.value).read_only

    async with running(tmp_path) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.start()
        await set_read_only(metadata, "b1", True)
        await until(lambda: bookie.read_only)
        assert await add(bookie, 1, 0) is BookieStatus.READ_ONLY
        assert await add(bookie, 1, 0, flags=AddFlags.BACKGROUND) is BookieStatus.READ_ONLY
        assert await add(bookie, 1, 0, flags=AddFlags.RECOVERY) is OK
        while not await registered_read_only():
            await until(lambda: True)
        await registration.stop()
    async with running(tmp_path) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.start()
        assert bookie.read_only_reasons.keys() == {"wanted"}
        assert await registered_read_only()
        assert await read_only_wanted(metadata) == {"b1"}
        await set_read_only(metadata, "b1", False)
        await until(lambda: not bookie.read_only)
        assert await add(bookie, 1, 1) is OK
        await registration.stop()
    await metadata.close()


async def test_a_directory_is_formatted_while_nobody_uses_it(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    async with running(directory) as bookie:
        await add_many(bookie, 1, range(10))
        with pytest.raises(DirectoryInUse):
            format_directory(directory)
    formatted = format_directory(directory)
    assert formatted.files > 3
    assert formatted.bytes > 1000
    async with running(directory) as bookie:
        assert bookie.directory_is_fresh
        assert not bookie.ledgers()
    (directory / "holiday.jpg").write_bytes(b"!")
    with pytest.raises(ForeignDirectory, match=r"holiday\.jpg"):
        format_directory(directory)
    assert (directory / "cookie.json").exists()


async def test_only_a_bookie_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    metadata = await open_store("memory:forgotten")
    async with running(tmp_path) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.start()
        with pytest.raises(StillInUse):
            await forget_bookie(metadata, "b1")
        await registration.stop()
    assert await forget_bookie(metadata, "b1")
    assert not await forget_bookie(metadata, "b1")
    await metadata.close()


async def test_a_whole_directory_is_sane_even_after_a_kill(tmp_path: Path) -> None:
    bookie = make_bookie(tmp_path)
    await bookie.start()
    await add_many(bookie, 1, range(200), b"x" * 900)
    await bookie.checkpoint()
    await add_many(bookie, 2, range(5))
    await add_many(bookie, 1, range(200, 210))
    await bookie.delete_ledger(2)
    await crash(bookie)
    report = check(tmp_path)
    assert report.sane, report.problems
    assert report.bookie_id == "b1"
    assert report.entries == 200
    assert report.indexed == 200
    assert report.journal_records >= 10
    before = names(tmp_path)
    assert await write_and_read(tmp_path) == []
    assert names(tmp_path) == before, "nothing is added to the bookie itself"
    assert check(tmp_path).journal_records == report.journal_records
    assert check(tmp_path).sane


async def test_a_directory_with_its_journal_elsewhere_is_checked_and_formatted(tmp_path: Path) -> None:
    settings = replace(small_settings(tmp_path / "a"), journal_directories=(tmp_path / "j",))
    bookie = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="b1", on_disk_failure=failed)
    await bookie.start()
    await add_many(bookie, 1, range(50))
    await crash(bookie)
    report = check(tmp_path / "a")
    assert report.sane, report.problems
    assert report.journal_records >= 50
    assert await write_and_read(tmp_path / "a") == []
    format_directory(tmp_path / "a")
    assert not (tmp_path / "j" / "journal").exists()
    assert names(tmp_path / "a") == ["LOCKED_BY"]
    await bookie.start()
    assert bookie.directory_is_fresh
    await bookie.stop()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*"))


async def test_what_is_damaged_is_named_with_its_file_and_ledger(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 7, range(20), b"x" * 500)
    (entry_log,) = (tmp_path / "entries").glob("*.log")
    data = bytearray(entry_log.read_bytes())
    data[64 + 5 * 544 + 100] ^= 1  # In the payload of entry 5.
    entry_log.write_bytes(data)
    report = check(tmp_path)
    assert {(problem.ledger_id, problem.entry_id) for problem in report.problems} == {(7, 5)}
    assert str(entry_log) in {problem.file for problem in report.problems}
    entry_log.unlink()
    assert "missing" in " ".join(problem.what for problem in check(tmp_path).problems)


def test_a_disk_is_fine_again_only_well_below_the_border() -> None:
    marks = Watermarks(
        warn_usage=0.8, full_usage=0.9, low_usage=0.7, free_bytes_min=8 * MIB, reserve_bytes=2 * MIB
    )
    total = 1000 * MIB

    def judge(before: Fullness, free_mib: int) -> Fullness:
        return marks.judge(before, free_mib * MIB, total)[0]

    assert judge(Fullness.FINE, 300) is Fullness.FINE
    assert judge(Fullness.FINE, 150) is Fullness.WARN
    assert judge(Fullness.WARN, 90) is Fullness.FULL
    assert judge(Fullness.FULL, 250) is Fullness.FULL
    assert judge(Fullness.FULL, 301) is Fullness.FINE
    assert judge(Fullness.FULL, 5) is Fullness.FULL
    assert judge(Fullness.FULL, 1) is Fullness.RESERVED
    by_bytes = Watermarks(1.0, 1.0, 1.0, 8 * MIB, 2 * MIB)
    assert by_bytes.judge(Fullness.FULL, 8 * MIB + 1, total)[0] is Fullness.FULL
    assert by_bytes.judge(Fullness.FULL, 9 * MIB, total)[0] is Fullness.FINE


async def test_the_last_bytes_are_kept_from_recoveries_too(tmp_path: Path) -> None:
    free = 10 * MIB
    disk = ShortDisk(lambda: free)
    async with running(tmp_path, disk=disk, free_bytes_min=8 * MIB, reserve_bytes=2 * MIB) as bookie:
        filling: list[Fullness] = []
        bookie.on_disk_filling = lambda: filling.append(bookie.fullness)
        assert await add(bookie, 1, 0) is OK
        free = 4 * MIB
        await bookie.checkpoint()
        assert await add(bookie, 1, 1) is BookieStatus.READ_ONLY
        assert await add(bookie, 1, 1, flags=AddFlags.RECOVERY) is OK
        free = MIB
        await bookie.checkpoint()
        assert await add(bookie, 1, 2, flags=AddFlags.RECOVERY) is BookieStatus.READ_ONLY
        assert filling == [Fullness.FULL, Fullness.RESERVED]
        assert (await bookie.read_entry(1, 1)).status is OK


async def test_a_full_disk_is_looked_at_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookie.space_watch._AGAIN_S", 0.01)
    free = 4 * MIB
    disk = ShortDisk(lambda: free)
    async with running(tmp_path, disk=disk, free_bytes_min=8 * MIB) as bookie:
        assert bookie.read_only
        free = 10 * MIB
        await until(lambda: not bookie.read_only)
        assert bookie.free_bytes == free


async def test_a_look_at_the_disk_that_fails_is_not_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.bookie.space_watch._AGAIN_S", 0.01)
    free, failures = 4 * MIB, 0

    def look() -> int:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError("the disk does not say")
        return free

    async with running(tmp_path, disk=ShortDisk(look), free_bytes_min=8 * MIB) as bookie:
        assert bookie.read_only
        failures, free = 2, 10 * MIB
        await until(lambda: not bookie.read_only)
