"""A bookie serves only from its own, whole directory, of a version it knows, that nobody else uses."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import (
    BookieNotRunning,
    DirectoryDamaged,
    ForeignDirectory,
    JournalCorrupt,
    NewerFormat,
)
from magnetar.environment.errors import DirectoryInUse
from magnetar.protocol.checksum import crc32c
from tests.unit.bookie.workbench import add, add_many, crash, make_bookie, running


async def expect(directory: Path, error: type[Exception], match: str) -> None:
    """A start that fails, twice: the first leaves nothing locked."""
    for _ in range(2):
        with pytest.raises(error, match=match):
            await make_bookie(directory).start()


async def used(directory: Path) -> None:
    bookie = make_bookie(directory)
    await bookie.start()
    await add_many(bookie, 1, range(5))
    await bookie.checkpoint()
    await add_many(bookie, 1, range(5, 10))
    await crash(bookie)


async def test_a_directory_is_made_and_found_again(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "inside"
    async with running(directory) as bookie:
        instance = bookie.instance_id
        assert bookie.directory_is_fresh
    async with running(directory) as bookie:
        assert bookie.instance_id == instance
        assert not bookie.directory_is_fresh


async def test_two_bookies_never_share_a_directory(tmp_path: Path) -> None:
    async with running(tmp_path):
        await expect(tmp_path, DirectoryInUse, "in use")
    async with running(tmp_path):
        pass


async def test_another_bookies_directory_is_refused(tmp_path: Path) -> None:
    await used(tmp_path)
    with pytest.raises(ForeignDirectory, match="belongs to bookie b1, this is b2"):
        await make_bookie(tmp_path, bookie_id="b2").start()


async def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"sand")
    await expect(tmp_path, ForeignDirectory, r"holiday\.jpg")
    assert (tmp_path / "holiday.jpg").read_bytes() == b"sand"


async def test_a_lost_cookie_is_noticed(tmp_path: Path) -> None:
    await used(tmp_path)
    (tmp_path / "cookie.json").unlink()
    await expect(tmp_path, (ForeignDirectory, DirectoryDamaged), "cookie")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["journal", "entries", "ledgers"])
async def test_a_missing_part_is_refused(tmp_path: Path, part: str) -> None:
    await used(tmp_path)
    shutil.rmtree(tmp_path / part)
    await expect(tmp_path, DirectoryDamaged, f"{part}.*missing")


async def test_an_emptied_journal_is_refused(tmp_path: Path) -> None:
    await used(tmp_path)
    for segment in (tmp_path / "journal").iterdir():
        segment.unlink()
    await expect(tmp_path, JournalCorrupt, "missing")


async def test_an_emptied_ledger_table_is_refused(tmp_path: Path) -> None:
    await used(tmp_path)
    for table in (tmp_path / "ledgers").iterdir():
        table.unlink()
    await expect(tmp_path, DirectoryDamaged, "ledger table is missing")


async def test_a_damaged_ledger_table_is_refused(tmp_path: Path) -> None:
    await used(tmp_path)
    (table,) = (tmp_path / "ledgers").iterdir()
    data = bytearray(table.read_bytes())
    data[40] ^= 1
    table.write_bytes(data)
    await expect(tmp_path, DirectoryDamaged, "fences may be lost")


async def test_a_missing_or_damaged_mark_is_refused(tmp_path: Path) -> None:
    await used(tmp_path)
    mark = tmp_path / "lastMark"
    text = mark.read_bytes()
    for damaged in (
        b"",
        text[:20],
        text.replace(b'"segment": ', b'"segment": 1'),
        text[:-3] + b"0\n",
        b"[]\n00000000\n",
    ):
        mark.write_bytes(damaged)
        await expect(tmp_path, DirectoryDamaged, "lastMark")
    mark.unlink()
    await expect(tmp_path, DirectoryDamaged, "lastMark.*missing")


async def test_newer_formats_are_refused(tmp_path: Path) -> None:
    await used(tmp_path)
    cookie, mark = tmp_path / "cookie.json", tmp_path / "lastMark"
    good = cookie.read_bytes()
    cookie.write_text(json.dumps({**json.loads(good), "version": 3}))
    await expect(tmp_path, NewerFormat, "format version 3, this program knows up to 2")
    cookie.write_bytes(good)
    text = json.dumps({**json.loads(mark.read_bytes().splitlines()[0]), "version": 3}).encode()
    mark.write_bytes(text + b"\n%08x\n" % crc32c(text))
    await expect(tmp_path, NewerFormat, "format version 3")


async def test_an_unreadable_cookie_is_damage(tmp_path: Path) -> None:
    await used(tmp_path)
    for text in ("", "[]", "{", '{"version": 1}', '"x"'):
        (tmp_path / "cookie.json").write_text(text)
        await expect(tmp_path, DirectoryDamaged, "unreadable")


async def test_a_directory_whose_making_was_interrupted_is_made_again(tmp_path: Path) -> None:
    async with running(tmp_path):
        pass
    # All that exists before the cookie is written last.
    (tmp_path / "cookie.json").unlink()
    shutil.rmtree(tmp_path / "index")
    async with running(tmp_path) as bookie:
        assert bookie.directory_is_fresh
        assert (await add(bookie, 1, 0)).is_positive


def test_a_bookie_has_no_identity_before_it_started(tmp_path: Path) -> None:
    bookie: Bookie = make_bookie(tmp_path)
    with pytest.raises(BookieNotRunning):
        _ = bookie.instance_id


async def test_a_start_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    await used(tmp_path)
    starting = asyncio.ensure_future(make_bookie(tmp_path).start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with running(tmp_path) as bookie:
        assert (await bookie.read_entry(1, 9)).status.is_positive
