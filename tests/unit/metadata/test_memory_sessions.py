"""Sessions with the store in memory, as simulation ends them."""

from __future__ import annotations

import asyncio

from magnetar.metadata.memory import MemoryEnsemble, open_memory
from magnetar.metadata.store import Change, Notification, SessionState


async def test_an_expired_session_leaves_nothing_ephemeral_and_begins_anew() -> None:
    ensemble = MemoryEnsemble()
    store, other = ensemble.connect(), ensemble.connect()
    states: list[SessionState] = []
    heard: list[Notification] = []
    store.on_session(states.append)
    cancelled = store.on_session(lambda _: states.clear())
    cancelled.cancel()
    other.watch("/e", heard.append)
    await store.put("/e", b"", ephemeral=True)
    first = store.session_id
    store.expire()
    assert states == [SessionState.EXPIRED, SessionState.CONNECTED]
    assert store.session_id != first
    assert await store.get("/e") is None
    await asyncio.sleep(0)
    assert Notification(Change.DELETED, "/e") in heard


async def test_an_ephemeral_taken_over_by_another_session_is_not_swept() -> None:
    ensemble = MemoryEnsemble()
    store, other = ensemble.connect(), ensemble.connect()
    await store.put("/e", b"mine", ephemeral=True)
    await other.delete("/e")
    await other.put("/e", b"theirs", ephemeral=True)
    store.expire()
    assert await other.exists("/e")


async def test_a_named_store_is_shared_within_the_process() -> None:
    a, b = open_memory("shared-by-name"), open_memory("shared-by-name")
    await a.put("/x", b"1")
    assert await b.exists("/x")
    assert not await open_memory("").exists("/x")
