"""One id, one data directory, one living process; and a session that ends is not the end."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from magnetar.bookie.errors import BookieAlreadyRegistered, CookieMismatch
from magnetar.bookie.registration import BookieRegistration
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore
from tests.unit.bookie.workbench import add, running

PATH = "/ledgers/available/b1"
COOKIE = "/ledgers/cookies/b1"


async def shared_store(name: str) -> MetadataStore:
    return await open_store(f"memory:{name}")


async def test_a_bookie_is_registered_while_it_runs(tmp_path: Path) -> None:
    metadata = await shared_store("registered")
    async with running(tmp_path) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:3181")
        await registration.start()
        record = await metadata.get(PATH)
        assert record is not None
        assert record.ephemeral
        fields = json.loads(record.value)
        assert fields["version"] == 1
        assert fields["address"] == "127.0.0.1:3181"
        assert fields["read_only"] is False
        cookie = await metadata.get(COOKIE)
        assert cookie is not None
        assert json.loads(cookie.value)["instance_id"] == bookie.instance_id
        await registration.stop()
        assert await metadata.get(PATH) is None
        assert await metadata.exists(COOKIE)
    await metadata.close()


async def test_a_restart_registers_again(tmp_path: Path) -> None:
    metadata = await shared_store("again")
    for _ in range(2):
        async with running(tmp_path) as bookie:
            registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
            await registration.start()
            await add(bookie, 1, 0)
            await registration.stop()
    await metadata.close()


async def test_an_emptied_or_swapped_directory_does_not_serve(tmp_path: Path) -> None:
    metadata = await shared_store("swapped")
    async with running(tmp_path / "data") as bookie:
        await BookieRegistration(metadata, bookie, "127.0.0.1:1").check_cookie()
    shutil.rmtree(tmp_path / "data")
    for _ in range(2):  # Not the second time either.
        async with running(tmp_path / "data") as bookie:
            with pytest.raises(CookieMismatch, match="emptied or swapped"):
                await BookieRegistration(metadata, bookie, "127.0.0.1:1").start()
            assert not await metadata.exists(PATH)
    await metadata.close()


async def test_a_directory_of_another_cluster_does_not_serve(tmp_path: Path) -> None:
    metadata = await shared_store("another-cluster")
    async with running(tmp_path) as bookie:
        await add(bookie, 1, 0)
        with pytest.raises(CookieMismatch, match="another cluster"):
            await BookieRegistration(metadata, bookie, "127.0.0.1:1").start()
    await metadata.close()


async def test_a_first_start_interrupted_before_the_cookie_goes_on(tmp_path: Path) -> None:
    metadata = await shared_store("interrupted")
    async with running(tmp_path):
        pass
    async with running(tmp_path) as bookie:
        await BookieRegistration(metadata, bookie, "127.0.0.1:1").check_cookie()
        assert await metadata.exists(COOKIE)
    await metadata.close()


async def test_an_old_session_is_waited_for(tmp_path: Path) -> None:
    metadata, older = await shared_store("old"), await shared_store("old")
    async with running(tmp_path) as bookie:
        await older.put(PATH, b"{}", ephemeral=True)
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        starting = asyncio.ensure_future(registration.start())
        await asyncio.sleep(0.02)
        assert not starting.done()
        await older.close()
        await asyncio.wait_for(starting, 10)
        await registration.stop()
        living = await shared_store("old")
        await living.put(PATH, b"{}", ephemeral=True)
        with pytest.raises(BookieAlreadyRegistered):
            await BookieRegistration(metadata, bookie, "127.0.0.1:1", old_session_wait_s=0).start()
        await living.close()
    await metadata.close()


async def until_registered(metadata: MetadataStore, **expected: object) -> None:
    async with asyncio.timeout(10):
        while True:
            record = await metadata.get(PATH)
            if record is not None and expected.items() <= json.loads(record.value).items():
                return
            await asyncio.sleep(0.005)


async def test_a_lost_registration_is_renewed_and_the_mode_told(tmp_path: Path) -> None:
    metadata = await shared_store("lost")
    async with running(tmp_path) as bookie:
        registration = BookieRegistration(metadata, bookie, "127.0.0.1:1")
        await registration.start()
        await metadata.delete(PATH)
        await until_registered(metadata, read_only=False)
        bookie.set_read_only("space", "it is full")
        await until_registered(metadata, read_only=True)
        await registration.stop()
    await metadata.close()
