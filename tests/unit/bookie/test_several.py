"""A bookie with several journals and ledger directories: one name, one cookie, and a share of the ledgers in each."""

from __future__ import annotations

import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookie.errors import BookieError, CookieMismatch, DirectoryDamaged, ForeignDirectory
from magnetar.bookie.format import format_directory
from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.integrity import Holdings, Integrity
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.several import AnyBookie, SeveralDirectories, make_bookie
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import Disk, SystemDisk
from magnetar.metadata.opening import open_store
from magnetar.protocol.bookie import COOKIES_PATH, AddFlags, BookieStatus
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.workbench import KEY, add, begin_add, failed, small_settings, until, whole

OK = BookieStatus.OK


def made(
    root: Path, ledgers: int = 3, journals: int = 0, *, disk: Disk | None = None, **changes: Any
) -> AnyBookie:
    settings = replace(
        small_settings(root / "home", **changes),
        ledger_directories=tuple(root / f"ledgers{number}" for number in range(ledgers)),
        journal_directories=tuple(root / f"journal{number}" for number in range(journals)),
    )
    return make_bookie(
        settings, disk=disk or SystemDisk(), clock=SystemClock(), bookie_id="b1", on_disk_failure=failed
    )


@asynccontextmanager
async def started(bookie: AnyBookie) -> AsyncIterator[AnyBookie]:
    await bookie.start()
    try:
        yield bookie
    finally:
        await bookie.stop()


async def filled(bookie: AnyBookie, ledgers: range) -> None:
    for ledger_id in ledgers:
        assert await add(bookie, ledger_id, 0) is OK


async def all_there(bookie: AnyBookie, ledgers: range) -> None:
    for ledger_id in ledgers:
        assert (await bookie.read_entry(ledger_id, 0)).entry == whole(ledger_id, 0), ledger_id


@pytest.mark.parametrize(("ledgers", "journals"), [(3, 0), (3, 3), (3, 1), (1, 3), (2, 3), (1, 1), (0, 2)])
async def test_ledgers_are_spread_and_found_again(tmp_path: Path, ledgers: int, journals: int) -> None:
    async with started(made(tmp_path, ledgers, journals)) as bookie:
        await filled(bookie, range(12))
        assert (await bookie.read_lac(5, fence=True, master_key=KEY)).status is OK
        count = max(ledgers, journals, 1)
        assert len(bookie.shares) == count
        assert [len(share.ledgers()) for share in bookie.shares] == [12 // count] * count
        assert bookie.ledgers() == set(range(12))
    for number in range(journals):
        assert any((tmp_path / f"journal{number}" / "journal").glob("*.journal"))
    async with started(made(tmp_path, ledgers, journals)) as bookie:
        await all_there(bookie, range(12))
        assert await add(bookie, 5, 1) is BookieStatus.FENCED
        assert (await bookie.read_entry(99, 0)).status is BookieStatus.NO_SUCH_LEDGER
        assert (await bookie.list_entries(3)).ranges == ((0, 0),)


async def test_a_directory_may_be_added_and_old_ledgers_stay(tmp_path: Path) -> None:
    """Also to a bookie that had but one, without a list."""
    settings = small_settings(tmp_path / "ledgers0")
    alone = make_bookie(
        settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="b1", on_disk_failure=failed
    )
    async with started(alone):
        await filled(alone, range(6))
        identity = alone.instance_id
    for count in (2, 3):
        async with started(made(tmp_path, count)) as bookie:
            assert bookie.instance_id == identity
            await all_there(bookie, range(6))
            assert bookie.shares[0].ledgers() >= set(range(6))
            for ledger_id in range(6):
                assert await add(bookie, ledger_id, count) is OK
            assert bookie.shares[0].ledgers() >= set(range(6))
            await filled(bookie, range(100 * count, 100 * count + 3))
            assert bookie.shares[-1].ledgers()
    with pytest.raises(ForeignDirectory, match="several"):
        await alone.start()
    with pytest.raises(ForeignDirectory, match=r"ledgers2.*name them"):
        await made(tmp_path, 2).start()


def emptied(root: Path) -> None:
    shutil.rmtree(root / "ledgers1")
    (root / "ledgers1").mkdir()


def missing(root: Path) -> None:
    shutil.rmtree(root / "ledgers1")


def swapped(root: Path) -> None:
    (root / "ledgers1").rename(root / "other")
    (root / "ledgers2").rename(root / "ledgers1")
    (root / "other").rename(root / "ledgers2")


def first_gone(root: Path) -> None:
    shutil.rmtree(root / "ledgers0")


def journal_emptied(root: Path) -> None:
    shutil.rmtree(root / "journal1" / "journal")
    (root / "journal1" / "journal").mkdir()


def journals_swapped(root: Path) -> None:
    (root / "journal1").rename(root / "other")
    (root / "journal2").rename(root / "journal1")
    (root / "other").rename(root / "journal2")


@pytest.mark.parametrize("loss", [emptied, missing, swapped, first_gone, journal_emptied, journals_swapped])
async def test_a_directory_that_is_not_what_it_was_is_refused(
    tmp_path: Path, loss: Callable[[Path], None]
) -> None:
    async with started(made(tmp_path, 3, 3)) as bookie:
        await filled(bookie, range(6))
    loss(tmp_path)
    for _ in range(2):
        with pytest.raises(BookieError):
            await made(tmp_path, 3, 3).start()


async def test_another_bookies_journal_is_left_alone(tmp_path: Path) -> None:
    async with started(made(tmp_path / "a", 1, 1)) as bookie:
        await filled(bookie, range(2))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "journal0").symlink_to(tmp_path / "a" / "journal0")
    with pytest.raises(ForeignDirectory, match="journal of another"):
        await made(tmp_path / "b", 1, 1).start()
    async with started(made(tmp_path / "a", 1, 1)) as bookie:
        await all_there(bookie, range(2))


class OnePeer:
    """Knows of six ledgers with an entry each, and has all of them."""

    async def ledgers(self) -> set[int]:
        return set(range(6))

    async def fenceable(self) -> set[int]:
        return set(range(6))

    async def holdings(self, ledger_id: int) -> Holdings | None:
        return Holdings(((0, 0),), True, KEY)

    async def fetch(self, ledger_id: int, entry_id: int) -> bytes | None:
        return whole(ledger_id, entry_id)


async def test_an_emptied_directory_puts_all_in_limbo_until_it_is_filled(tmp_path: Path) -> None:
    store = await open_store(f"memory:{tmp_path}")
    async with started(made(tmp_path)) as bookie:
        registration = BookieRegistration(store, bookie, "here:1")
        await registration.start()
        await filled(bookie, range(6))
        await registration.stop()
    emptied(tmp_path)
    for _ in range(2):  # A kill comes before it is whole.
        bookie = made(tmp_path, on_lost_data="limbo")
        await bookie.start()
        assert all(share.limbo.reason for share in bookie.shares)
        for ledger_id in (1, 4, 77):
            assert (await bookie.read_entry(ledger_id, 0)).status is BookieStatus.UNKNOWN
        await all_there(bookie, range(0, 6, 3))
        assert await add(bookie, 0, 1) is BookieStatus.READ_ONLY
        registration = BookieRegistration(store, bookie, "here:1")
        with pytest.raises(CookieMismatch, match="fences"):
            await registration.start()
        await bookie.stop()
    async with started(made(tmp_path, on_lost_data="limbo")) as bookie:
        registration = BookieRegistration(store, bookie, "here:1")
        await registration.check_cookie()
        integrity = Integrity(bookie, OnePeer(), retry_s=0.01, look_s=0.01)
        await integrity.prepare()
        await registration.start()
        integrity.start()
        await until(lambda: not bookie.limbo)
        await integrity.stop()
        await all_there(bookie, range(6))
        assert (await bookie.read_entry(77, 0)).status is BookieStatus.NO_SUCH_LEDGER
        assert not bookie.read_only
        await registration.stop()
    async with started(made(tmp_path)) as bookie:
        await BookieRegistration(store, bookie, "here:1").check_cookie()
        await all_there(bookie, range(6))


async def test_an_older_copy_of_one_directory_is_found_out(tmp_path: Path) -> None:
    """Though the others have gone on."""
    store = await open_store(f"memory:{tmp_path}")
    for ledgers in (range(6), range(6, 30)):
        if ledgers.start:
            shutil.copytree(tmp_path / "ledgers1", tmp_path / "copy")
        async with started(made(tmp_path)) as bookie:
            registration = BookieRegistration(store, bookie, "here:1")
            await registration.start()
            await filled(bookie, ledgers)
            await registration.stop()
    shutil.rmtree(tmp_path / "ledgers1")
    (tmp_path / "copy").rename(tmp_path / "ledgers1")
    async with started(made(tmp_path)) as bookie:
        await filled(bookie, range(30, 90, 3))
        assert (await bookie.read_entry(7, 0)).status is BookieStatus.NO_SUCH_LEDGER
        with pytest.raises(CookieMismatch, match="older copy"):
            await BookieRegistration(store, bookie, "here:1").check_cookie()
    assert await store.get(f"{COOKIES_PATH}/b1") is not None


class OneFullDisk(WrappedDisk):
    """Says that nothing is free in one directory while it is full."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.full = True

    def free_bytes(self, path: Path) -> int:
        return 0 if self.full and path.name == self._name else 1 << 30

    def total_bytes(self, path: Path) -> int:
        return 1 << 31


async def test_a_full_directory_is_read_only_by_itself(tmp_path: Path) -> None:
    disk = OneFullDisk("ledgers1")
    disk.full = False
    async with started(made(tmp_path)) as bookie:
        await filled(bookie, range(3))
    disk.full = True
    async with started(made(tmp_path, disk=disk, free_bytes_min=1000)) as bookie:
        assert not bookie.read_only
        assert [share.read_only for share in bookie.shares] == [False, True, False]
        assert await add(bookie, 1, 1) is BookieStatus.READ_ONLY
        await all_there(bookie, range(3))
        await filled(bookie, range(10, 40))
        assert bookie.shares[1].ledgers() == {1}
        assert all(len(share.ledgers()) > 10 for share in (bookie.shares[0], bookie.shares[2]))
        assert (await bookie.read_lac(43, fence=True, master_key=KEY)).status is OK
        assert next(s.value for s in bookie.metrics() if s.name == "bookie_writable_dirs") == 2
    disk.full = False
    async with started(made(tmp_path, disk=disk, free_bytes_min=1000)) as bookie:
        await all_there(bookie, range(10, 40))
        assert await add(bookie, 1, 1) is OK


class FailingEntries(WrappedDisk):
    """Entry logs of one directory cannot be written."""

    def __init__(self) -> None:
        super().__init__()
        self.failing = True

    def before_write(self, path: Path) -> None:
        if self.failing and path.parent.name == "entries" and path.parent.parent.name == "ledgers1":
            raise OSError(errno.EIO, "Input/output error", str(path))


async def test_a_failing_directory_leaves_the_others_going(tmp_path: Path) -> None:
    disk = FailingEntries()
    bookie = made(tmp_path, disk=disk)
    await bookie.start()
    await filled(bookie, range(6))
    bookie.shares[1]._checkpointer.begin()
    await until(lambda: bookie.shares[1].read_only)
    assert not bookie.read_only
    assert await add(bookie, 1, 1) is BookieStatus.READ_ONLY
    await filled(bookie, range(10, 16))
    await all_there(bookie, range(6))
    disk.failing = False
    await bookie.checkpoint()
    await bookie.stop()
    async with started(made(tmp_path)) as again:
        await all_there(again, range(6))
        await all_there(again, range(10, 16))


async def test_a_new_ledger_stays_where_its_first_entry_waits(tmp_path: Path) -> None:
    """The door is closed while its journal has too much to write; meanwhile the disk becomes full, and has room again."""
    async with started(made(tmp_path, journal_pending_bytes=3)) as bookie:
        assert isinstance(bookie, SeveralDirectories)
        first = begin_add(bookie, 7, 0)
        second = begin_add(bookie, 4, 0)  # Waits at the door of the same share.
        assert not bookie.shares[1].knows(4)
        bookie.shares[1].set_read_only("space", "full")
        third = begin_add(bookie, 4, 1)
        bookie.shares[1].set_read_only("space", None)
        assert [await first, await second, await third] == [OK, OK, OK]
        assert [4 in share.ledgers() for share in bookie.shares] == [False, True, False]
        assert not bookie._chosen


async def test_garbage_is_collected_in_every_directory(tmp_path: Path) -> None:
    async with started(made(tmp_path, entry_log_bytes=1)) as bookie:
        await filled(bookie, range(6))
        await bookie.checkpoint()
        assert all(list((tmp_path / f"ledgers{number}" / "entries").iterdir()) for number in range(3))

        async def live() -> set[int]:
            return {1}

        collected = await GarbageCollector(bookie, live).collect()
        assert collected.ledgers == 5
        assert collected.removed_logs == 2
        assert bookie.ledgers() == {1}
        await all_there(bookie, range(1, 2))


async def test_a_repair_and_a_recovery_find_the_share(tmp_path: Path) -> None:
    async with started(made(tmp_path)) as bookie:
        await filled(bookie, range(6))
        assert await bookie.add_repaired(4, 1, whole(4, 1), KEY) is OK
        assert await bookie.add_repaired(50, 0, whole(50, 0), b"") is OK
        assert await add(bookie, 4, 2, flags=AddFlags.RECOVERY) is OK
        assert await bookie.held(4) == [(0, 2)]
        assert await bookie.write_lac(4, 2, KEY) is OK
        assert (await bookie.wait_lac(4, 1, 5.0)).lac == 2
        status, entries = await bookie.read_entries(4, 0, 10, 1 << 20)
        assert (status, len(entries)) == (OK, 3)
        await bookie.delete_ledger(4)
        assert not bookie.knows(4)


async def test_a_damaged_list_is_damage(tmp_path: Path) -> None:
    async with started(made(tmp_path)):
        pass
    (tmp_path / "ledgers0" / "shares.json").write_text("{")
    with pytest.raises(DirectoryDamaged, match="shares"):
        await made(tmp_path).start()


class NoPeer:
    """Metadata name the bookie for these ledgers, and nobody else has any of it."""

    def __init__(self, ledgers: range) -> None:
        self._ledgers = set(ledgers)

    async def ledgers(self) -> set[int]:
        return self._ledgers

    async def fenceable(self) -> set[int]:
        return self._ledgers

    async def holdings(self, ledger_id: int) -> Holdings | None:
        return Holdings([(0, 0)], master_key=KEY)

    async def fetch(self, ledger_id: int, entry_id: int) -> bytes | None:
        return None


async def test_a_share_that_lost_its_table_still_has_its_ledgers(tmp_path: Path) -> None:
    """Also those that would go elsewhere now: its copies may be the last there are."""
    async with started(made(tmp_path, 1)) as bookie:
        await filled(bookie, range(6))
    async with started(made(tmp_path, 3)) as bookie:
        await all_there(bookie, range(6))
    for table in (tmp_path / "ledgers0" / "ledgers").iterdir():
        table.write_bytes(b"")
    async with started(made(tmp_path, 3, on_lost_data="limbo")) as bookie:
        integrity = Integrity(bookie, NoPeer(range(6)), retry_s=0.01, look_s=0.01)
        await integrity.prepare()
        report = await integrity.check()
        assert not report.lost
        await bookie.leave_limbo(())
        await all_there(bookie, range(6))
        assert bookie.shares[0].ledgers() == set(range(6))
        assert await add(bookie, 4, 1) is BookieStatus.FENCED


async def test_what_lies_in_a_share_of_the_same_directory_is_formatted_with_it(tmp_path: Path) -> None:
    async with started(made(tmp_path, 1, 3)) as bookie:
        await filled(bookie, range(6))
    formatted = format_directory(tmp_path / "ledgers0")
    assert formatted.files >= 9
    assert not any((tmp_path / "ledgers0").glob("share-*"))
    assert not any((tmp_path / f"journal{number}" / "journal").exists() for number in range(3))
    async with started(made(tmp_path, 1, 3)) as bookie:
        assert bookie.directory_is_fresh
        assert not bookie.ledgers()
