"""A bookie that has lost data denies nothing, lets no fence be forgotten, and is whole again in the end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.errors import CookieMismatch, DirectoryDamaged, JournalCorrupt
from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.integrity import Holdings, Integrity
from magnetar.bookie.limbo import LimboFile
from magnetar.bookie.registration import BookieRegistration
from magnetar.environment.disk import SystemDisk
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.protocol.bookie import LAST_ENTRY, AddFlags, BookieStatus
from tests.unit.bookie.test_garbage import Catalog
from tests.unit.bookie.workbench import KEY, add, add_many, crash, make_bookie, running, until, whole

OK, UNKNOWN = BookieStatus.OK, BookieStatus.UNKNOWN
LIMBO: dict[str, Any] = {"on_lost_data": "limbo"}


@dataclass
class KnownPeers:
    """Metadata and other bookies, as a test has them."""

    wanted: dict[int, Sequence[tuple[int, int]]]
    entries: dict[tuple[int, int], bytes] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)
    fail: bool = False
    asked: int = 0

    async def ledgers(self) -> set[int]:
        self.asked += 1
        if self.fail:
            raise OSError("metadata is away")
        return set(self.wanted)

    async def fenceable(self) -> set[int]:
        return await self.ledgers()

    async def holdings(self, ledger_id: int) -> Holdings | None:
        return Holdings(self.wanted[ledger_id], ledger_id not in self.unsettled, KEY)

    async def fetch(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self.entries.get((ledger_id, entry_id))


def peers_with(count: int) -> KnownPeers:
    return KnownPeers({1: [(0, count - 1)]}, {(1, e): whole(1, e) for e in range(count)})


async def expect_unknown(bookie: Bookie, ledger_id: int, entry_id: int) -> None:
    assert (await bookie.read_entry(ledger_id, entry_id)).status is UNKNOWN
    assert (await bookie.read_entries(ledger_id, entry_id, 5, 1000))[0] is UNKNOWN
    assert (await bookie.read_entry(ledger_id, LAST_ENTRY)).status is UNKNOWN
    assert (await bookie.read_lac(ledger_id)).status is UNKNOWN
    assert (await bookie.list_entries(ledger_id)).status is UNKNOWN


async def registered(metadata: MetadataStore, bookie: Bookie) -> None:
    """As a process does that stores: and nothing is left registered."""
    registration = BookieRegistration(metadata, bookie, "127.0.0.1:1", old_session_wait_s=0)
    await registration.start()
    await registration.stop()


async def test_an_emptied_disk_is_filled_again_from_peers(tmp_path: Path) -> None:
    metadata = await open_store("memory:emptied")
    async with running(tmp_path / "data") as bookie:
        await registered(metadata, bookie)
        await add_many(bookie, 1, range(30))
    shutil.rmtree(tmp_path / "data")
    peers = peers_with(30)
    async with running(tmp_path / "data") as bookie:
        with pytest.raises(CookieMismatch, match="on_lost_data: limbo"):
            await registered(metadata, bookie)
    async with running(tmp_path / "data", **LIMBO) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.check_cookie()
        with pytest.raises(CookieMismatch, match="fenced"):
            await registration.start()
        integrity = Integrity(bookie, peers, retry_s=0.01)
        await integrity.prepare()
        await registration.start()
        await expect_unknown(bookie, 1, 3)
        await expect_unknown(bookie, 7, 0)
        assert await add(bookie, 9, 0) is BookieStatus.READ_ONLY
        assert await add(bookie, 1, 40, flags=AddFlags.NONE) is BookieStatus.READ_ONLY
    async with running(tmp_path / "data") as bookie:  # It is remembered, and the cookie was taken over.
        await BookieRegistration(metadata, bookie, "127.0.0.1:1").check_cookie()
        await expect_unknown(bookie, 1, 3)
        integrity = Integrity(bookie, peers, retry_s=0.01)
        await integrity.prepare()
        integrity.start()
        await until(lambda: not bookie.limbo)
        for entry_id in range(30):
            assert (await bookie.read_entry(1, entry_id)).entry == whole(1, entry_id)
        assert (await bookie.read_entry(1, 30)).status is BookieStatus.NO_SUCH_ENTRY
        assert (await bookie.read_entry(7, 0)).status is BookieStatus.NO_SUCH_LEDGER
        assert await add(bookie, 1, 30) is BookieStatus.FENCED, "its fence may have been lost"
        assert await add(bookie, 9, 0) is OK
        await integrity.stop()
    async with running(tmp_path / "data") as bookie:
        assert not bookie.limbo
        assert await add(bookie, 1, 30) is BookieStatus.FENCED
    await metadata.close()


async def test_what_no_peer_has_stays_unknown_and_the_rest_does_not_wait(tmp_path: Path) -> None:
    peers = peers_with(10)
    peers.wanted[2] = [(0, 0)]
    peers.entries[2, 0] = whole(2, 0)
    del peers.entries[1, 4]
    peers.entries[1, 5] = whole(1, 6)  # A liar, or a damaged disk.
    async with running(tmp_path, **LIMBO) as bookie:
        await bookie.enter_limbo("for the test")
        integrity = Integrity(bookie, peers, retry_s=0.01)
        await integrity.prepare()
        integrity.start()
        await until(lambda: bookie.limbo.reason is None)
        assert bookie.limbo.ledgers == {1}
        assert integrity.last is not None
        assert integrity.last.lost == {1: 2}
        assert (await bookie.read_entry(1, 3)).status is OK
        assert (await bookie.read_entry(1, 4)).status is UNKNOWN
        assert (await bookie.read_entry(2, 1)).status is BookieStatus.NO_SUCH_ENTRY
        assert not bookie.read_only
        peers.entries[1, 4] = whole(1, 4)
        peers.entries[1, 5] = whole(1, 5)
        await until(lambda: not bookie.limbo)
        assert (await bookie.read_entry(1, 4)).status is OK
        await integrity.stop()


async def test_limbo_lasts_while_metadata_is_away_or_a_ledger_has_no_end(tmp_path: Path) -> None:
    peers = peers_with(3)
    peers.unsettled.add(1)
    async with running(tmp_path, **LIMBO) as bookie:
        await bookie.enter_limbo("for the test")
        integrity = Integrity(bookie, peers, retry_s=0.001)
        await integrity.prepare()
        peers.fail = True
        integrity.start()
        await until(lambda: peers.asked > 5)
        assert bookie.limbo.reason is not None
        peers.fail = False
        await until(lambda: bookie.limbo.reason is None)
        assert bookie.limbo.ledgers == {1}
        assert (await bookie.read_entry(1, 2)).status is OK
        assert (await bookie.read_entry(1, 3)).status is UNKNOWN
        assert await add(bookie, 1, 3) is BookieStatus.FENCED
        assert await add(bookie, 2, 0) is OK
        peers.unsettled.clear()
        await until(lambda: not bookie.limbo)
        await integrity.stop()


async def test_yesterdays_copy_of_the_directory_is_found_out(tmp_path: Path) -> None:
    metadata = await open_store("memory:yesterday")
    data, copy = tmp_path / "data", tmp_path / "copy"
    async with running(data) as bookie:
        await registered(metadata, bookie)
        await add_many(bookie, 1, range(5))
    shutil.copytree(data, copy)
    async with running(data) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.start()
        await add_many(bookie, 1, range(5, 9))
        await registration.stop()  # It says how far it has come, as it does once a minute.
    shutil.rmtree(data)
    shutil.copytree(copy, data)
    async with running(data) as bookie:
        with pytest.raises(CookieMismatch, match="older copy"):
            await registered(metadata, bookie)
    async with running(data, **LIMBO) as bookie:
        await BookieRegistration(metadata, bookie, "127.0.0.1:1").check_cookie()
        assert (await bookie.read_entry(1, 4)).status is OK
        await expect_unknown(bookie, 1, 7)
    await metadata.close()


async def test_a_living_bookies_cookie_is_not_taken_away(tmp_path: Path) -> None:
    from magnetar.bookie.errors import BookieAlreadyRegistered

    metadata, other = await open_store("memory:living"), await open_store("memory:living")
    async with running(tmp_path / "data") as bookie, running(tmp_path / "other", **LIMBO) as thief:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.start()
        with pytest.raises(BookieAlreadyRegistered):
            await BookieRegistration(other, thief, "127.0.0.1:2", old_session_wait_s=0).check_cookie()
        await registration.stop()
        await BookieRegistration(metadata, bookie, "127.0.0.1:1").check_cookie()
    await metadata.close()
    await other.close()


async def journalled(directory: Path) -> None:
    """Six groups in the journal and nothing anywhere else."""
    bookie = make_bookie(directory)
    await bookie.start()
    for entry_id in range(6):
        assert await add(bookie, 1, entry_id, b"x" * 100) is OK
    await bookie.read_lac(2, fence=True, master_key=KEY)
    assert await add(bookie, 3, 0) is OK
    await crash(bookie)


async def test_damage_in_the_middle_of_the_journal_costs_what_is_damaged(tmp_path: Path) -> None:
    await journalled(tmp_path)
    (segment,) = sorted((tmp_path / "journal").glob("*.journal"))[-1:]
    data = bytearray(segment.read_bytes())
    data[4096 * 3 + 50] ^= 4
    segment.write_bytes(data)
    with pytest.raises(JournalCorrupt, match="on_lost_data: limbo"):
        await make_bookie(tmp_path).start()
    for _ in range(2):  # Damaged or not, it is remembered.
        bookie = make_bookie(tmp_path, **LIMBO)
        await bookie.start()
        assert bookie.limbo.reason is not None
        assert segment.name in bookie.limbo.reason
        statuses = [(await bookie.read_entry(1, entry_id)).status for entry_id in range(6)]
        assert statuses.count(UNKNOWN) == 1
        assert statuses.count(OK) == 5
        assert (await bookie.read_entry(3, 0)).status is OK
        assert await add(bookie, 2, 0, flags=AddFlags.RECOVERY) is OK
        await bookie.checkpoint()
        await bookie.stop()
    async with running(tmp_path) as bookie:  # It need not be said again.
        assert bookie.limbo.reason is not None


@pytest.mark.parametrize("part", ["journal", "ledgers", "entries", "lastMark"])
async def test_any_part_may_be_lost(tmp_path: Path, part: str) -> None:
    bookie = make_bookie(tmp_path)
    await bookie.start()
    await add_many(bookie, 1, range(10))
    await bookie.checkpoint()
    await add_many(bookie, 1, range(10, 20))
    await crash(bookie)
    path = tmp_path / part
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    with pytest.raises(DirectoryDamaged, match="on_lost_data: limbo"):
        await make_bookie(tmp_path).start()
    peers = peers_with(20)
    async with running(tmp_path, **LIMBO) as bookie:
        integrity = Integrity(bookie, peers, retry_s=0.01)
        await integrity.prepare()
        for entry_id in range(20):
            read = await bookie.read_entry(1, entry_id)
            assert read.status in (OK, UNKNOWN, BookieStatus.IO_ERROR), entry_id
            assert read.status is not OK or read.entry == whole(1, entry_id)
        assert await add(bookie, 1, 20) is BookieStatus.READ_ONLY
        await integrity.check()
        await bookie.leave_limbo(())
        for entry_id in range(20):
            assert (await bookie.read_entry(1, entry_id)).entry == whole(1, entry_id)
    async with running(tmp_path) as bookie:
        assert not bookie.limbo
        assert bookie.storage.doubt is None
        assert not bookie.storage.missing_logs()


@dataclass
class PastPeers(KnownPeers):
    """Metadata that names the bookie in earlier fragments only: a writer has long gone on elsewhere."""

    async def fenceable(self) -> set[int]:
        return set()


async def known_again(bookie: Bookie) -> None:
    """With peers that have nothing: what is here must be found here."""
    wanted: dict[int, Sequence[tuple[int, int]]] = {ledger: [(0, 19)] for ledger in (1, 2)}
    integrity = Integrity(bookie, PastPeers(wanted), retry_s=0.01)
    await integrity.prepare()
    catalog = Catalog(1, 2)
    await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
    report = await integrity.check()
    assert not report.lost
    await bookie.leave_limbo(report.lost)
    await GarbageCollector(bookie, catalog.live, exists=catalog.exists).collect()
    for ledger_id in (1, 2):
        for entry_id in range(20):
            assert (await bookie.read_entry(ledger_id, entry_id)).entry == whole(ledger_id, entry_id)
        assert (await bookie.read_lac(ledger_id)).last_entry == 19
        assert await add(bookie, ledger_id, 20, flags=AddFlags.RECOVERY) is OK


async def test_ledgers_whose_registration_is_lost_are_neither_denied_nor_collected(tmp_path: Path) -> None:
    bookie = make_bookie(tmp_path)
    await bookie.start()
    await add_many(bookie, 1, range(20))
    await add_many(bookie, 2, range(10))
    await bookie.checkpoint()
    await bookie.in_storage_thread(bookie.storage._seal_current)
    await add_many(bookie, 2, range(10, 20))
    await crash(bookie)
    shutil.rmtree(tmp_path / "ledgers")
    bookie = make_bookie(tmp_path, **LIMBO)
    await bookie.start()
    await crash(bookie)
    async with running(tmp_path) as bookie:  # Limbo outlives a crash before anything was mended.
        await known_again(bookie)
    async with running(tmp_path) as bookie:
        assert not bookie.limbo
        assert (await bookie.read_entry(1, 19)).entry == whole(1, 19)


async def test_no_moment_between_doubt_and_limbo_denies_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **LIMBO) as bookie:
        await add_many(bookie, 1, range(3))
        await bookie.checkpoint()
        bookie.storage._index.doubt("for the test")
        await expect_unknown(bookie, 1, 3)
        ended, seen = bookie.storage.end_doubt, []

        def end_doubt() -> None:
            ended()
            seen.append((bookie.limbo.doubts(1), LimboFile(SystemDisk(), tmp_path).read().doubts(1)))

        monkeypatch.setattr(bookie.storage, "end_doubt", end_doubt)
        await bookie.leave_limbo([1])
        assert seen == [(True, True)]
        await expect_unknown(bookie, 1, 3)
        assert (await bookie.read_entry(2, 0)).status is BookieStatus.NO_SUCH_LEDGER


async def test_a_repair_given_up_at_the_door_does_not_spoil_the_stop(tmp_path: Path) -> None:
    bookie = make_bookie(tmp_path)
    await bookie.start()
    bookie._entrance.back._has_room = lambda size: False
    bookie._entrance.has_spare_room = lambda size: False  # type: ignore[method-assign]
    repair = asyncio.ensure_future(bookie.add_repaired(1, 0, whole(1, 0), KEY))
    await until(lambda: len(bookie._back_door) == 1)
    repair.cancel()
    await asyncio.gather(repair, return_exceptions=True)
    await bookie.stop()
    async with running(tmp_path) as bookie:  # It has let go of its directory.
        assert await add(bookie, 1, 0) is OK


async def test_an_index_in_doubt_is_mended_without_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as bookie:
        await add_many(bookie, 1, range(3))
        await bookie.checkpoint()
        integrity = Integrity(bookie, peers_with(5), retry_s=0.01, look_s=0.01)
        integrity.start()
        await asyncio.sleep(0.03)
        assert integrity.last is None, "there was nothing to look for"
        bookie.storage._index.doubt("its log is damaged")
        await until(lambda: bookie.storage.doubt is None and not bookie.limbo)
        assert (await bookie.read_entry(1, 4)).entry == whole(1, 4)
        assert (await bookie.read_entry(1, 5)).status is BookieStatus.NO_SUCH_ENTRY
        await integrity.stop()


async def test_what_a_process_told_itself_does_not_make_it_an_older_copy(tmp_path: Path) -> None:
    metadata = await open_store("memory:told")
    async with running(tmp_path) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        for entry_id in range(3):  # A start that metadata's absence ends is tried again.
            await registration.check_cookie()
            assert await add(bookie, 1, entry_id) is OK
    await metadata.close()
