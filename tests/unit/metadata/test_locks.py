"""Locks, election and ids, over the store in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from magnetar.metadata.counters import LEDGER_IDS_PATH, IdAllocator
from magnetar.metadata.election import LeaderElection
from magnetar.metadata.errors import MetadataError, StoreUnavailable
from magnetar.metadata.locks import LockTaken, ResourceLock
from magnetar.metadata.memory import MemoryEnsemble, MemoryStore
from magnetar.metadata.store import SessionState, Versioned


def nothing() -> None:
    """A lock's loss that is of no interest."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Unanswered(MemoryStore):
    """Carries a write out and then loses the answer, as often as told."""

    def __init__(self, ensemble: MemoryEnsemble) -> None:
        inner = ensemble.connect()
        super().__init__(ensemble, inner.session_id, inner._clock)
        ensemble.sessions.append(self)
        self.lose = 0

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        version = await super().put(path, value, expected_version=expected_version, ephemeral=ephemeral)
        if self.lose:
            self.lose -= 1
            raise StoreUnavailable("the answer was lost")
        return version


# Locks.


async def test_a_lock_has_one_holder_at_a_time_and_later_holders_count_higher() -> None:
    ensemble = MemoryEnsemble()
    a, b = ensemble.connect(), ensemble.connect()
    first = await ResourceLock.acquire(a, "/topics/x", b"a", on_lost=nothing)
    with pytest.raises(LockTaken, match="held by a"):
        await ResourceLock.acquire(b, "/topics/x", b"b", on_lost=nothing)
    await first.release()
    second = await ResourceLock.acquire(b, "/topics/x", b"b", on_lost=nothing)
    assert second.epoch > first.epoch
    assert not first.held
    await first.release()
    assert await a.exists("/topics/x"), "whoever has released once must not release for another"


async def test_a_lock_is_lost_with_its_session_and_says_so_once() -> None:
    ensemble = MemoryEnsemble()
    store, other = ensemble.connect(), ensemble.connect()
    lost: list[str] = []
    lock = await ResourceLock.acquire(store, "/lock", b"a", on_lost=lambda: lost.append("lost"))
    store.expire()
    assert lost == ["lost"]
    assert not lock.held
    await asyncio.sleep(0)
    assert lost == ["lost"]
    taken = await ResourceLock.acquire(other, "/lock", b"b", on_lost=nothing)
    assert taken.epoch > lock.epoch
    with pytest.raises(LockTaken):
        await lock.update(b"still mine?")


async def test_a_lock_removed_by_force_is_lost() -> None:
    ensemble = MemoryEnsemble()
    store, administrator = ensemble.connect(), ensemble.connect()
    lost: list[str] = []
    lock = await ResourceLock.acquire(store, "/lock", b"a", on_lost=lambda: lost.append("lost"))
    await administrator.delete("/lock")
    await until(lambda: bool(lost))
    assert not lock.held
    await lock.release()


async def test_releasing_is_no_loss() -> None:
    store = MemoryEnsemble().connect()
    lost: list[str] = []
    lock = await ResourceLock.acquire(store, "/lock", b"a", on_lost=lambda: lost.append("lost"))
    await lock.update(b"a, elsewhere")
    await lock.release()
    await asyncio.sleep(0)
    assert lost == []
    assert not await store.exists("/lock")


async def test_a_lock_taken_without_knowing_is_ours_when_asked_again() -> None:
    store = Unanswered(MemoryEnsemble())
    store.lose = 1
    with pytest.raises(StoreUnavailable):
        await ResourceLock.acquire(store, "/lock", b"a", on_lost=nothing)
    lock = await ResourceLock.acquire(store, "/lock", b"a", on_lost=nothing)
    assert lock.held


class LastLook(MemoryStore):
    """Something happens right after a lock's record is looked at, before whoever looked goes on."""

    def __init__(self, ensemble: MemoryEnsemble, happens: Callable[[], None]) -> None:
        inner = ensemble.connect()
        super().__init__(ensemble, inner.session_id, inner._clock)
        ensemble.sessions.append(self)
        self._happens = happens

    async def get(self, path: str) -> Versioned | None:
        record = await super().get(path)
        if path == "/topics/x":
            self._happens()
        return record


async def test_a_lock_lost_before_its_last_look_is_answered_is_not_had() -> None:
    ensemble = MemoryEnsemble()
    store = LastLook(ensemble, lambda: store._listeners.tell(SessionState.EXPIRED))
    losses: list[str] = []
    with pytest.raises(LockTaken):
        await ResourceLock.acquire(store, "/topics/x", b"a", on_lost=lambda: losses.append("x"))


async def test_an_acquisition_that_failed_tells_nothing_of_the_next_lock() -> None:
    ensemble = MemoryEnsemble()

    def unanswered() -> None:
        raise StoreUnavailable("the answer was lost")

    store = LastLook(ensemble, unanswered)
    losses: list[str] = []
    with pytest.raises(StoreUnavailable):
        await ResourceLock.acquire(store, "/topics/x", b"a", on_lost=lambda: losses.append("first"))
    store._happens = nothing
    lock = await ResourceLock.acquire(store, "/topics/x", b"a", on_lost=lambda: losses.append("second"))
    await lock.release()
    await asyncio.sleep(0)
    assert losses == []


async def test_an_epoch_of_a_newer_format_is_refused() -> None:
    store = MemoryEnsemble().connect()
    await store.put("/magnetar/epochs/lock", b"2 7 something")
    with pytest.raises(MetadataError, match="upgrade"):
        await ResourceLock.acquire(store, "/lock", b"a", on_lost=nothing)


# Election.


class Candidate:
    """One session that stands for leadership, and what it was told."""

    def __init__(self, ensemble: MemoryEnsemble, name: str, store: MemoryStore | None = None) -> None:
        self.store = store or ensemble.connect()
        self.told: list[bool] = []
        self.election = LeaderElection(self.store, "/leader", name.encode(), self.told.append)
        self.election.start()


async def test_exactly_one_candidate_leads_and_another_follows_when_it_goes() -> None:
    ensemble = MemoryEnsemble()
    candidates = [Candidate(ensemble, name) for name in "abc"]
    await until(lambda: any(c.election.leading for c in candidates))
    leader = next(c for c in candidates if c.election.leading)
    assert sum(c.election.leading for c in candidates) == 1
    epoch = leader.election.epoch
    await leader.election.stop()
    assert leader.told == [True, False]
    await until(lambda: any(c.election.leading for c in candidates))
    successor = next(c for c in candidates if c.election.leading)
    assert successor is not leader
    assert successor.election.epoch > epoch
    for candidate in candidates:
        await candidate.election.stop()
    assert not await leader.store.exists("/leader")


async def test_a_leader_whose_session_ends_stops_leading_and_stands_again() -> None:
    ensemble = MemoryEnsemble()
    candidate = Candidate(ensemble, "a")
    await until(lambda: candidate.election.leading)
    assert await candidate.election.leader() == b"a"
    candidate.store.expire()
    assert candidate.told == [True, False]
    assert candidate.election.epoch == 0
    await until(lambda: candidate.election.leading)
    assert candidate.told == [True, False, True]
    await candidate.election.stop()


class Silent(MemoryStore):
    """Deletes nothing once told so: nobody answers."""

    silent = False

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        if self.silent:
            raise StoreUnavailable("nobody answers")
        await super().delete(path, expected_version=expected_version)


async def test_a_leader_stops_though_the_store_does_not_answer() -> None:
    """Its session's end gives the leadership up."""
    ensemble = MemoryEnsemble()
    inner = ensemble.connect()
    store = Silent(ensemble, inner.session_id, inner._clock)
    ensemble.sessions.append(store)
    candidate = Candidate(ensemble, "a", store)
    await until(lambda: candidate.election.leading)
    store.silent = True
    await candidate.election.stop()
    assert candidate.told == [True, False]
    assert await inner.exists("/leader")


# Ids.


async def test_ids_grow_and_are_unique_over_sessions_and_restarts() -> None:
    ensemble = MemoryEnsemble()
    allocators = [IdAllocator(ensemble.connect(), block_size=3) for _ in range(3)]
    found = await asyncio.gather(*(allocators[n % 3].allocate() for n in range(60)))
    assert len(set(found)) == 60
    for number in range(3):
        own = list(found[number::3])
        assert own == sorted(own)
    assert await IdAllocator(ensemble.connect()).allocate() > max(found)


async def test_an_id_is_never_given_twice_though_answers_are_lost() -> None:
    ensemble = MemoryEnsemble()
    store = Unanswered(ensemble)
    allocator = IdAllocator(store, block_size=2)
    found = []
    for number in range(20):
        store.lose = number % 2
        try:
            found.append(await allocator.allocate())
        except StoreUnavailable:
            continue
    assert len(found) == len(set(found)) > 5


async def test_ids_of_a_newer_format_are_refused() -> None:
    store = MemoryEnsemble().connect()
    await store.put(LEDGER_IDS_PATH, b'{"version": 2, "next": "7f"}')
    with pytest.raises(MetadataError, match="upgrade"):
        await IdAllocator(store).allocate()
