"""A session with three ZooKeepers whose servers die: one, two, and all of them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from magnetar.metadata.election import LeaderElection
from magnetar.metadata.errors import StoreUnavailable
from magnetar.metadata.locks import ResourceLock
from magnetar.metadata.store import Change, Notification, SessionState
from magnetar.metadata.zookeeper import ZooKeeperStore
from magnetar.testing.zookeeper_ensemble import ZooKeeperEnsemble

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper]

SESSION_S = 2.0
DEADLINE_S = 30.0


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path, tick_ms=500) as ensemble:
        yield ensemble


@pytest.fixture
async def store(ensemble: ZooKeeperEnsemble) -> AsyncIterator[ZooKeeperStore]:
    store = await ZooKeeperStore.open(f"{ensemble.address}/test?session_timeout_s={SESSION_S}")
    yield store
    await store.close()


def sure(store: ZooKeeperStore) -> bool:
    return store.lease_until > time.monotonic()


async def until(wish: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not wish():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def write(store: ZooKeeperStore, path: str, value: bytes) -> None:
    """Until it is there."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                await store.put(path, value)
            except StoreUnavailable:
                continue
            return


async def test_the_session_outlives_the_leader(ensemble: ZooKeeperEnsemble, store: ZooKeeperStore) -> None:
    """Whichever server we are with: a lease is never longer than the session, and both go on."""
    session = store.session_id
    lock = await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: None)
    heard: list[Notification] = []
    store.watch("/w", heard.append)
    await store.get("/w")
    killed_at = time.monotonic()
    await asyncio.to_thread(ensemble.leader().kill)
    await write(store, "/w/x", b"1")
    await until(lambda: sure(store))
    assert time.monotonic() < killed_at + 10
    assert store.session_id == session
    assert lock.held
    await until(lambda: Notification(Change.CREATED, "/w/x") in heard)


async def test_a_stopped_leader_is_gone_round(ensemble: ZooKeeperEnsemble, store: ZooKeeperStore) -> None:
    """SIGSTOP leaves its connections open: only silence tells."""
    leader = ensemble.leader()
    leader.send_signal(signal.SIGSTOP)
    await write(store, "/x", b"1")
    await until(lambda: sure(store))
    leader.send_signal(signal.SIGCONT)
    await write(store, "/x", b"2")
    record = await store.get("/x")
    assert record is not None
    assert record.value == b"2"


async def test_without_a_majority_nothing_is_sure_and_all_comes_back(
    ensemble: ZooKeeperEnsemble, store: ZooKeeperStore
) -> None:
    changes: list[tuple[bool, bool]] = []
    election = LeaderElection(store, "/leader", b"me", lambda leads: changes.append((leads, sure(store))))
    election.start()
    await until(lambda: election.leading)
    followers = ensemble.followers()
    for server in followers:
        server.kill()
    await until(lambda: not sure(store))
    assert not election.leading
    with pytest.raises(StoreUnavailable):
        await store.put("/x", b"1")
    await asyncio.to_thread(ensemble.start)
    back_at = time.monotonic()
    await until(lambda: election.leading and sure(store))
    assert time.monotonic() < back_at + 5
    await write(store, "/x", b"2")
    await election.stop()


async def test_all_gone_for_long_and_back(ensemble: ZooKeeperEnsemble, store: ZooKeeperStore) -> None:
    """Longer than the session: events come in order, watches live on, and waiting costs no processor time."""
    states: list[SessionState] = []
    store.on_session(states.append)
    heard: list[Notification] = []
    store.watch("/w", heard.append)
    await write(store, "/w/x", b"0")
    await store.put("/w/mine", b"", ephemeral=True)
    lost: list[str] = []
    await ResourceLock.acquire(store, "/lock", b"me", on_lost=lambda: lost.append("lost"))
    await asyncio.to_thread(ensemble.kill)
    await until(lambda: SessionState.LOST_CONNECTION in states)
    cpu, began = time.process_time(), time.monotonic()
    await asyncio.sleep(4 * SESSION_S)
    assert time.process_time() - cpu < 0.2 * (time.monotonic() - began)
    assert not sure(store)
    # A new leader begins all sessions anew, so ours may just have survived: then it is taken as it is.
    await asyncio.to_thread(ensemble.start)
    back_at = time.monotonic()
    await until(lambda: sure(store))
    assert time.monotonic() < back_at + 5
    assert states[0] is SessionState.LOST_CONNECTION
    if SessionState.EXPIRED in states:
        expired = states.index(SessionState.EXPIRED)
        assert SessionState.CONNECTED in states[expired:]
        assert lost == ["lost"]
        await until(lambda: Notification(Change.DELETED, "/w/mine") in heard)
    else:
        assert SessionState.REESTABLISHED in states
        assert lost == []
    await write(store, "/w/x", b"1")
    await until(lambda: Notification(Change.MODIFIED, "/w/x") in heard)
