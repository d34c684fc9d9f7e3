"""etcd as a metadata store, when connections break, leases run out, servers die and history is thrown away."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from magnetar.metadata import etcd_pb2 as pb
from magnetar.metadata import etcd_watch
from magnetar.metadata.errors import SessionExpired, StoreRefused, StoreUnavailable
from magnetar.metadata.etcd import EtcdStore
from magnetar.metadata.etcd_connection import Answer
from magnetar.metadata.locks import LockTaken, ResourceLock
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import Change, Notification, SessionState
from magnetar.testing.etcd import EtcdServer
from magnetar.testing.processes import free_port

pytestmark = [pytest.mark.integration, pytest.mark.etcd]

SESSION_S = 2.0
DEADLINE_S = 30.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server of this test's own, to be killed."""
    with EtcdServer(tmp_path) as server:
        yield server


@pytest.fixture
async def store(server: EtcdServer) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(f"{server.address}/test?session_timeout_s={SESSION_S}")
    yield store
    await store.close()


def sure(store: EtcdStore) -> bool:
    return store.lease_until > time.monotonic()


async def until(wish: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not wish():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def revoke(store: EtcdStore) -> None:
    """End the session behind its back."""
    request = pb.LeaseRevokeRequest(ID=store._session.id)
    await store._connection.ask("Lease/LeaseRevoke", request, pb.LeaseRevokeResponse, 5.0)


async def test_an_expired_session_is_told_and_a_new_one_works(store: EtcdStore) -> None:
    states: list[SessionState] = []
    store.on_session(states.append)
    first = store.session_id
    await store.put("/me", b"", ephemeral=True)
    lost: list[str] = []
    lock = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: lost.append("lost"))
    await revoke(store)
    await until(lambda: SessionState.CONNECTED in states)
    assert states == [SessionState.EXPIRED, SessionState.CONNECTED]
    assert store.session_id != first
    assert lost == ["lost"]
    assert not lock.held
    assert not await store.exists("/me")
    again = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: None)
    assert again.epoch > lock.epoch


async def test_a_watch_without_changes_stays_as_it_is_and_one_whose_server_hangs_is_begun_anew(
    server: EtcdServer, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "_SILENCE_S", 1.0)
    monkeypatch.setattr(etcd_watch, "_ASK_S", 0.2)
    begun: list[str] = []
    stream = store._connection.stream

    def counted(method: str, request: Answer, answer: type[Answer]) -> object:
        if method == "Watch/Watch":
            begun.append(method)
        return stream(method, request, answer)

    monkeypatch.setattr(store._connection, "stream", counted)
    seen: list[Notification] = []
    store.watch("/quiet", seen.append)
    await until(lambda: bool(begun))
    await asyncio.sleep(3.0)
    assert len(begun) == 1
    await store.put("/quiet", b"1")
    await until(lambda: Notification(Change.CREATED, "/quiet") in seen)
    assert len(begun) == 1
    server.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: len(begun) > 1)
    finally:
        server.send_signal(signal.SIGCONT)
    await until(lambda: store.lease_until > time.monotonic())
    await store.put("/quiet", b"2")
    await until(lambda: Notification(Change.MODIFIED, "/quiet") in seen)


async def test_nothing_can_be_made_in_a_session_that_has_expired(server: EtcdServer) -> None:
    """The session sends a sign of life only every five seconds: the write finds out, unless one was just due."""
    store = await EtcdStore.open(f"{server.address}/test?session_timeout_s=40")
    states: list[SessionState] = []
    store.on_session(states.append)
    expired = store.session_id
    await revoke(store)
    try:
        await store.put("/mine", b"", ephemeral=True)
    except SessionExpired:
        assert not await store.exists("/mine")
        await until(lambda: SessionState.CONNECTED in states)
        assert await store.put("/mine", b"", ephemeral=True) == 0
    made = await store.get("/mine")
    assert made is not None
    assert made.session not in ("", expired)
    await store.close()


async def test_a_lease_lapses_with_the_server_and_comes_back(server: EtcdServer, store: EtcdStore) -> None:
    """etcd begins leases anew when it starts: what was locked stays so."""
    states: list[SessionState] = []
    store.on_session(states.append)
    lock = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: None)
    heard: list[Notification] = []
    store.watch("/w", heard.append)
    await store.put("/w/x", b"0")
    assert sure(store)
    assert store.lease_until <= time.monotonic() + SESSION_S
    await asyncio.to_thread(server.kill)
    await until(lambda: not sure(store))
    with pytest.raises(StoreUnavailable):
        await store.put("/x", b"")
    with pytest.raises(StoreUnavailable):
        await store.get("/x")
    await asyncio.to_thread(server.start)
    await until(lambda: sure(store))
    assert states == [SessionState.LOST_CONNECTION, SessionState.REESTABLISHED]
    assert lock.held
    await store.put("/w/x", b"1")
    await until(lambda: Notification(Change.MODIFIED, "/w/x") in heard)


async def test_a_stopped_server_tells_nothing_and_is_waited_for(server: EtcdServer, store: EtcdStore) -> None:
    states: list[SessionState] = []
    store.on_session(states.append)
    server.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    await until(lambda: not sure(store))
    assert time.monotonic() < stopped_at + SESSION_S
    await until(lambda: SessionState.LOST_CONNECTION in states)
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.sleep(1.0)
    assert time.process_time() - cpu < 0.3 * (time.monotonic() - began)
    server.send_signal(signal.SIGCONT)
    await until(lambda: sure(store))


async def test_another_server_is_asked_when_one_is_silent(server: EtcdServer, tmp_path: Path) -> None:
    """The first address accepts connections and never says a word."""
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    store = await EtcdStore.open(f"127.0.0.1:{port},{server.address}?session_timeout_s={SESSION_S}")
    await store.put("/x", b"1")
    await until(lambda: sure(store))
    await store.close()
    silent.close()


async def test_a_watch_misses_nothing_though_its_history_was_thrown_away(
    server: EtcdServer, store: EtcdStore
) -> None:
    """While the watcher's stream is broken, others write, and what they wrote is compacted."""
    for name in ("changed", "deleted", "made-anew", "untouched"):
        await store.put(f"/w/{name}", b"0")
    heard: list[Notification] = []
    watch = store.watch("/w", heard.append)
    await store.put("/w/first", b"0")
    await until(lambda: Notification(Change.CREATED, "/w/first") in heard)
    heard.clear()
    other = await EtcdStore.open(f"{server.address}/test")
    for stream in list(store._connection._streams):
        stream.cancel()
    await other.put("/w/changed", b"1")
    await other.delete("/w/deleted")
    await other.delete("/w/made-anew")
    await other.put("/w/made-anew", b"1")
    await other.put("/w/created/below", b"1")
    await compact(other)
    expected = [
        Notification(Change.MODIFIED, "/w/changed"),
        Notification(Change.DELETED, "/w/deleted"),
        Notification(Change.DELETED, "/w/made-anew"),
        Notification(Change.CREATED, "/w/made-anew"),
        Notification(Change.CREATED, "/w/created/below"),
        Notification(Change.CHILDREN_CHANGED, "/w"),
    ]
    await until(lambda: all(wish in heard for wish in expected))
    assert not any(notification.path == "/w/untouched" for notification in heard)
    watch._revision = 1  # type: ignore[attr-defined]  # As after an outage longer than the history that is kept.
    for stream in list(store._connection._streams):
        stream.cancel()
    await other.put("/w/untouched", b"1")
    await until(lambda: Notification(Change.MODIFIED, "/w/untouched") in heard)
    await other.put("/w/last", b"1")
    await until(lambda: Notification(Change.CREATED, "/w/last") in heard)
    await other.close()


async def compact(store: EtcdStore) -> None:
    """Throw away all history up to now. Its request: revision = 1, physical = 2."""
    request = pb.LeaseGrantRequest(TTL=store._connection.revision, ID=1)  # The same numbers on the wire.
    answer: type[Answer] = pb.LeaseRevokeResponse
    await store._connection.ask("KV/Compact", request, answer, 5.0)


async def test_many_locks_are_taken_and_given_back(server: EtcdServer, store: EtcdStore) -> None:
    """Each lock watches; a session has as many streams as it has watches."""
    locks = await asyncio.gather(
        *(ResourceLock.acquire(store, f"/locks/{n}", b"me", on_lost=lambda: None) for n in range(100))
    )
    other = await EtcdStore.open(f"{server.address}/test")
    with pytest.raises(LockTaken, match="me"):
        await ResourceLock.acquire(other, "/locks/7", b"other", on_lost=lambda: None)
    await asyncio.gather(*(lock.release() for lock in locks))
    assert await other.children("/locks") == []
    await other.close()


async def test_no_server_and_a_senseless_address_are_said_so() -> None:
    with pytest.raises(StoreUnavailable, match="check that it runs"):
        await open_store(f"etcd:127.0.0.1:{free_port()}?session_timeout_s=1")
    with pytest.raises(StoreRefused, match="bad etcd address"):
        await open_store("etcd:127.0.0.1:2379?session_timeout_s=soon")
    with pytest.raises(StoreRefused, match="no server"):
        await open_store("etcd:,/chroot")
