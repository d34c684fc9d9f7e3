"""Records are remembered, and never longer than they are true."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.metadata.memory import MemoryEnsemble
from magnetar.metadata.store import Versioned
from magnetar.policies import records
from magnetar.policies.errors import Conflict
from magnetar.policies.records import RecordCache, encode
from magnetar.policies.tenant import TenantInfo


class SlowStore:
    """Reads that end when the test says so."""

    def __init__(self, inner: object) -> None:
        self.inner = inner
        self.may_read = asyncio.Event()
        self.reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def get(self, path: str) -> Versioned | None:
        self.reads += 1
        stored: Versioned | None = await self.inner.get(path)  # type: ignore[attr-defined]
        await self.may_read.wait()
        return stored


async def test_a_read_that_a_change_has_overtaken_is_not_remembered() -> None:
    ensemble = MemoryEnsemble()
    writer, store = ensemble.connect(), SlowStore(ensemble.connect())
    cache = RecordCache(store, ("/x",))  # type: ignore[arg-type]
    await writer.put("/x/a", encode(TenantInfo(admin_roles=["old"]).to_json()))
    reading = asyncio.get_running_loop().create_task(cache.get("/x/a", TenantInfo))
    while not store.reads:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await writer.put("/x/a", encode(TenantInfo(admin_roles=["new"]).to_json()))
    for _ in range(5):  # The notification comes in a later turn of the loop.
        await asyncio.sleep(0)
    store.may_read.set()
    assert await reading == TenantInfo(admin_roles=["old"])
    assert await cache.get("/x/a", TenantInfo) == TenantInfo(admin_roles=["new"])
    assert store.reads == 2
    assert await cache.get("/x/a", TenantInfo) == TenantInfo(admin_roles=["new"])
    assert store.reads == 2, "now it is remembered"
    cache.close()


async def test_absence_is_remembered_too() -> None:
    store = SlowStore(MemoryEnsemble().connect())
    store.may_read.set()
    cache = RecordCache(store, ("/x",))  # type: ignore[arg-type]
    for _ in range(3):
        assert await cache.get("/x/none", TenantInfo) is None
    assert store.reads == 1
    await cache.create("/x/none", TenantInfo(), "exists")
    assert await cache.get("/x/none", TenantInfo) == TenantInfo()
    with pytest.raises(Conflict, match="it is there"):
        await cache.create("/x/none", TenantInfo(), "it is there")


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "REMEMBERED_MAX", 10)
    store = SlowStore(MemoryEnsemble().connect())
    store.may_read.set()
    cache = RecordCache(store, ("/x",))  # type: ignore[arg-type]
    for number in range(100):
        await cache.get(f"/x/{number}", TenantInfo)
        await cache.names(f"/x/{number}")
    await cache.get("/x/99", TenantInfo)
    assert store.reads == 100
    await cache.get("/x/1", TenantInfo)
    assert store.reads == 101


async def test_a_change_that_never_wins_gives_up() -> None:
    ensemble = MemoryEnsemble()
    writer, store = ensemble.connect(), ensemble.connect()
    cache = RecordCache(store, ("/x",))
    await writer.put("/x/a", encode({}))
    attempts = 0

    class Overtaken:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def get(self, path: str) -> Versioned | None:
            nonlocal attempts
            attempts += 1
            stored = await store.get(path)
            await writer.put(path, encode({"adminRoles": [str(attempts)]}))
            return stored

    cache.metadata = Overtaken()  # type: ignore[assignment]
    with pytest.raises(Conflict, match="Concurrent modification"):
        await cache.change("/x/a", TenantInfo, lambda info: info.changed(admin_roles=["me"]), "missing")
    assert attempts == records.ATTEMPTS_MAX


async def test_a_change_that_changes_nothing_writes_nothing() -> None:
    store = MemoryEnsemble().connect()
    cache = RecordCache(store, ("/x",))
    await cache.create("/x/a", TenantInfo(), "exists")
    await cache.change("/x/a", TenantInfo, lambda info: info, "missing")
    stored = await store.get("/x/a")
    assert stored is not None
    assert stored.version == 0


async def test_a_listener_that_fails_is_nobody_elses_trouble() -> None:
    store = MemoryEnsemble().connect()
    cache = RecordCache(store, ("/x",))
    heard: list[str] = []

    def fails(path: str) -> None:
        raise ValueError("oops")

    cache.on_change(fails)
    cache.on_change(heard.append)
    await cache.create("/x/a", TenantInfo(), "exists")
    async with asyncio.timeout(5):
        while "/x/a" not in heard:  # noqa: ASYNC110
            await asyncio.sleep(0)
