"""Cached reads against the store itself, while others write, answers dawdle and connections break."""

from __future__ import annotations

import asyncio
import math

from hypothesis import example, given, settings
from hypothesis import strategies as st

from magnetar.metadata.cached_reads import CachedReads
from magnetar.metadata.errors import MetadataError
from magnetar.metadata.memory import MemoryEnsemble, MemoryStore
from magnetar.metadata.store import SessionState, Versioned

PATHS = st.sampled_from(["/c", "/c/a", "/c/b", "/c/a/x", "/c/a/y", "/other"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PATHS, st.binary(max_size=2)),
        st.tuples(st.just("delete"), PATHS, st.just(b"")),
        st.tuples(st.just("delete_recursive"), PATHS, st.just(b"")),
        st.tuples(st.just("get"), PATHS, st.just(b"")),
        st.tuples(st.just("children"), PATHS, st.just(b"")),
        st.tuples(st.just("slow get"), PATHS, st.just(b"")),
        st.tuples(st.just("answer"), PATHS, st.just(b"")),
        st.tuples(st.just("settle"), PATHS, st.just(b"")),
        st.tuples(st.just("expire"), PATHS, st.just(b"")),
        st.tuples(st.just("lose"), PATHS, st.just(b"")),
        st.tuples(st.just("return"), PATHS, st.just(b"")),
    ),
    max_size=40,
)


class SlowStore(MemoryStore):
    """Answers a `get` with what was there when it was asked, but only when let."""

    slow = False
    answers: asyncio.Event

    async def get(self, path: str) -> Versioned | None:
        found = await super().get(path)
        if self.slow:
            await self.answers.wait()
        return found


def connected(ensemble: MemoryEnsemble) -> SlowStore:
    inner = ensemble.connect()
    store = SlowStore(ensemble, inner.session_id, inner._clock)
    store.answers = asyncio.Event()
    ensemble.sessions.append(store)
    return store


async def settle() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def carried_out(steps: list[tuple[str, str, bytes]]) -> CachedReads:
    ensemble = MemoryEnsemble()
    store, other = connected(ensemble), ensemble.connect()
    cached = CachedReads(store, "/c", entries_max=3)
    slow: list[asyncio.Task[Versioned | None]] = []
    for step, path, value in steps:
        match step:
            case "put":
                await other.put(path, value)
            case "delete":
                try:
                    await other.delete(path)
                except MetadataError:
                    assert await other.children(path) or not await other.exists(path)
            case "delete_recursive":
                await other.delete_recursive(path)
            case "get":
                await settle()
                assert await cached.get(path) == await other.get(path)
            case "children":
                await settle()
                assert await cached.children(path) == await other.children(path)
            case "slow get":
                store.slow = True
                slow.append(asyncio.create_task(cached.get(path)))
                await settle()
                store.slow = False
            case "answer":
                store.answers.set()
                await asyncio.gather(*slow)
                slow.clear()
                store.answers.clear()
            case "expire":
                store.expire()
            case "lose":
                store._listeners.tell(SessionState.LOST_CONNECTION)
                assert not cached.sure
            case "return":
                store._listeners.tell(SessionState.REESTABLISHED)
            case _:
                await settle()
    store.answers.set()
    await asyncio.gather(*slow)
    await settle()
    for path in ("/c", "/c/a", "/c/b", "/c/a/x", "/c/a/y", "/other"):
        for _ in range(2):
            assert await cached.get(path) == await other.get(path)
            assert await cached.children(path) == await other.children(path)
    assert not cached._asking
    return cached


@settings(max_examples=150, deadline=None)
@example(
    [("slow get", "/c/a", b""), ("put", "/c/a", b"1"), ("settle", "/c", b""), ("answer", "/c", b"")]
)  # The news overtakes the answer.
@example([("slow get", "/c/a", b""), ("lose", "/c", b""), ("return", "/c", b""), ("answer", "/c", b"")])
@given(STEPS)
def test_what_is_remembered_is_what_is_there_once_news_has_come(steps: list[tuple[str, str, bytes]]) -> None:
    asyncio.run(carried_out(steps))


class CountingStore(MemoryStore):
    """Counts what it is asked."""

    asked = 0

    async def get(self, path: str) -> Versioned | None:
        self.asked += 1
        return await super().get(path)


async def test_a_record_is_read_once_and_again_after_each_change() -> None:
    ensemble = MemoryEnsemble()
    inner = ensemble.connect()
    store = CountingStore(ensemble, inner.session_id, inner._clock)
    ensemble.sessions.append(store)
    cached = CachedReads(store, "/c")
    for _ in range(5):
        assert await cached.get("/c/a") is None
    assert store.asked == 1
    await inner.put("/c/a", b"1")
    await settle()
    for _ in range(5):
        record = await cached.get("/c/a")
        assert record is not None
        assert record.value == b"1"
    assert store.asked == 2
    assert (cached.hits, cached.misses) == (8, 2)
    await cached.get("/elsewhere")
    await cached.get("/elsewhere")
    assert store.asked == 4, "nothing is remembered of what is not watched"
    cached.close()
    await cached.get("/c/a")
    assert store.asked == 5


async def test_nothing_is_given_out_of_memory_without_a_lease() -> None:
    ensemble = MemoryEnsemble()
    inner = ensemble.connect()
    store = CountingStore(ensemble, inner.session_id, inner._clock)
    ensemble.sessions.append(store)
    cached = CachedReads(store, "/c")
    await cached.get("/c/a")
    store.lease_until = -math.inf
    assert not cached.sure
    await cached.get("/c/a")
    await cached.get("/c/a")
    assert store.asked == 3
    store.lease_until = math.inf
    await cached.get("/c/a")
    assert store.asked == 3
