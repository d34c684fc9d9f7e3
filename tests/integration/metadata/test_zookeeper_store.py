"""ZooKeeper as a metadata store, when connections break, sessions end and servers die."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from magnetar.metadata.errors import StoreRefused, StoreUnavailable
from magnetar.metadata.locks import LockTaken, ResourceLock
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import Change, Notification, SessionState
from magnetar.metadata.zookeeper import ZooKeeperStore
from magnetar.testing.processes import free_port
from magnetar.testing.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]

DEADLINE_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server of this test's own, to be killed."""
    with ZooKeeperServer(tmp_path) as server:
        yield server


@pytest.fixture
async def store(server: ZooKeeperServer) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.open(f"{server.address}/test?session_timeout_s=4")
    yield store
    await store.close()


class States:
    """Remembers what was told of a session."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.seen: list[SessionState] = []
        self._more = asyncio.Event()
        store.on_session(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        self.seen.append(state)
        self._more.set()

    async def until(self, *states: SessionState) -> None:
        """Until one of `states` has been told."""
        async with asyncio.timeout(DEADLINE_S):
            while not set(states) & set(self.seen):
                self._more.clear()
                await self._more.wait()


async def expire(store: ZooKeeperStore) -> None:
    """End the session behind its back: another client takes it over and closes it."""
    taken = KazooClient(hosts=store._hosts, client_id=store._client.client_id)

    def take_and_close() -> None:
        taken.start()
        taken.stop()
        taken.close()

    await asyncio.to_thread(take_and_close)


async def heard(notifications: list[Notification], wish: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not wish():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_an_expired_session_is_told_and_a_new_one_works(store: ZooKeeperStore) -> None:
    states = States(store)
    first = store.session_id
    await store.put("/me", b"", ephemeral=True)
    lost: list[str] = []
    lock = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: lost.append("lost"))
    await expire(store)
    await states.until(SessionState.EXPIRED)
    await states.until(SessionState.CONNECTED)
    assert states.seen.index(SessionState.EXPIRED) < states.seen.index(SessionState.CONNECTED)
    assert store.session_id != first
    assert lost == ["lost"]
    assert not lock.held
    assert not await store.exists("/me")
    again = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: None)
    assert again.epoch > lock.epoch


async def test_a_stopped_server_makes_writes_unknown_and_reads_wait(
    server: ZooKeeperServer, store: ZooKeeperStore
) -> None:
    states = States(store)
    await store.put("/a", b"0")
    server.kill()
    await states.until(SessionState.LOST_CONNECTION)
    writing = asyncio.create_task(store.put("/a", b"1"))
    reading = asyncio.create_task(store.get("/a"))
    with pytest.raises(StoreUnavailable):
        await writing
    with pytest.raises(StoreUnavailable):
        await reading
    states.seen.clear()
    await asyncio.to_thread(server.start)
    await states.until(SessionState.REESTABLISHED, SessionState.CONNECTED)  # As long as it was away.
    assert await store.get("/a") is not None


async def test_ephemerals_and_locks_outlive_a_short_outage(tmp_path: Path) -> None:
    """The session may be away for 20 seconds, which is far longer than a server takes to start."""
    with ZooKeeperServer(tmp_path / "patient", tick_ms=1000) as server:
        store = await ZooKeeperStore.open(f"{server.address}/test?session_timeout_s=20")
        states = States(store)
        lock = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: None)
        server.kill()
        await states.until(SessionState.LOST_CONNECTION)
        await asyncio.to_thread(server.start)
        await states.until(SessionState.REESTABLISHED)
        assert lock.held
        assert SessionState.EXPIRED not in states.seen
        await lock.update(b"me, still")
        record = await store.get("/lock")
        assert record is not None
        assert record.session == store.session_id
        await store.close()


async def test_a_watch_tells_of_what_changed_while_the_connection_was_gone(
    server: ZooKeeperServer, store: ZooKeeperStore
) -> None:
    """The watcher's own connection hangs; another client works on."""
    notifications: list[Notification] = []
    for name in ("changed", "deleted", "untouched"):
        await store.put(f"/w/{name}", b"0")
    store.watch("/w", notifications.append)
    await store.get("/w")
    states = States(store)
    other = await ZooKeeperStore.open(f"{server.address}/test")
    store._client._connection._socket.shutdown(2)
    await other.put("/w/changed", b"1")
    await other.delete("/w/deleted")
    await other.put("/w/created/below", b"")
    await states.until(SessionState.REESTABLISHED)
    expected = [
        Notification(Change.MODIFIED, "/w/changed"),
        Notification(Change.DELETED, "/w/deleted"),
        Notification(Change.CREATED, "/w/created/below"),
    ]
    await heard(notifications, lambda: all(wish in notifications for wish in expected))
    assert not any(n.path == "/w/untouched" for n in notifications)
    await other.put("/w/untouched", b"1")
    await heard(notifications, lambda: Notification(Change.MODIFIED, "/w/untouched") in notifications)
    await other.close()


async def test_a_paused_server_is_waited_for(server: ZooKeeperServer, store: ZooKeeperStore) -> None:
    server.send_signal(signal.SIGSTOP)
    reading = asyncio.create_task(store.get("/a"))
    await asyncio.sleep(0.1)
    assert not reading.done()
    server.send_signal(signal.SIGCONT)
    assert await reading is None


async def test_no_server_is_said_so() -> None:
    with pytest.raises(StoreUnavailable, match="check that it runs"):
        await open_store(f"zk:127.0.0.1:{free_port()}?session_timeout_s=0.5")


async def test_a_senseless_address_is_said_so() -> None:
    with pytest.raises(StoreRefused, match="bad ZooKeeper address"):
        await open_store("zk:127.0.0.1:2181?session_timeout_s=soon")
    with pytest.raises(StoreRefused, match="cannot tell"):
        await open_store("mysql://localhost")


async def test_a_lock_held_by_another_session_is_refused(
    server: ZooKeeperServer, store: ZooKeeperStore
) -> None:
    other = await ZooKeeperStore.open(f"{server.address}/test")
    await ResourceLock.acquire(store, "/lock", b"first", on_lost=lambda: None)
    with pytest.raises(LockTaken, match="first"):
        await ResourceLock.acquire(other, "/lock", b"second", on_lost=lambda: None)
    await other.close()
