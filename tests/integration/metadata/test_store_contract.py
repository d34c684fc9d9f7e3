"""What every metadata store promises, asked of all four: memory, RocksDB, a real ZooKeeper and a real etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from magnetar.metadata.batch import Delete, Put
from magnetar.metadata.cached_reads import CachedReads
from magnetar.metadata.errors import (
    AlreadyExists,
    BadVersion,
    InvalidBatch,
    InvalidPath,
    NotEmpty,
    NotFound,
    StoreClosed,
    ValueTooLarge,
)
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import Change, MetadataStore, Notification

DEADLINE_S = 20.0


class Backend:
    """One set of records, and sessions with it."""

    def __init__(self, url: str, sessions_at_once: bool) -> None:
        self.url = url
        self.sessions_at_once = sessions_at_once
        self._open: list[MetadataStore] = []

    async def session(self) -> MetadataStore:
        store = await open_store(self.url)
        self._open.append(store)
        return store

    async def other_session(self, store: MetadataStore) -> MetadataStore:
        """A session besides `store`, or `store` itself where there is but one."""
        return await self.session() if self.sessions_at_once else store

    async def close(self) -> None:
        for store in self._open:
            await store.close()


ZOOKEEPER = pytest.param("zookeeper", marks=[pytest.mark.integration, pytest.mark.zookeeper])
ETCD = pytest.param("etcd", marks=[pytest.mark.integration, pytest.mark.etcd])


@pytest.fixture(params=["memory", "rocksdb", ZOOKEEPER, ETCD])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Backend]:
    if request.param == "memory":
        backend = Backend(f"memory:{tmp_path}", True)
    elif request.param == "rocksdb":
        backend = Backend(f"rocksdb:{tmp_path / 'metadata'}", False)
    else:
        backend = Backend(request.getfixturevalue(f"{request.param}_url"), True)
    yield backend
    await backend.close()


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.session()


class Heard:
    """A listener that remembers, and lets a test wait for what it must hear."""

    def __init__(self) -> None:
        self.notifications: list[Notification] = []
        self._more = asyncio.Event()

    def __call__(self, notification: Notification) -> None:
        self.notifications.append(notification)
        self._more.set()

    def of(self, path: str) -> list[Change]:
        return [heard.kind for heard in self.notifications if heard.path == path]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._more.clear()
                await self._more.wait()

    async def hear(self, kind: Change, path: str) -> None:
        await self.until(lambda: Notification(kind, path) in self.notifications)


# Records.


async def test_a_record_is_read_as_it_was_written(store: MetadataStore) -> None:
    assert await store.get("/a") is None
    assert not await store.exists("/a")
    assert await store.put("/a", b"\x00first\xff") == 0
    record = await store.get("/a")
    assert record is not None
    assert (record.value, record.version, record.ephemeral) == (b"\x00first\xff", 0, False)
    assert record.created_ms > 1_600_000_000_000
    assert await store.exists("/a")


async def test_each_change_counts_the_version_up(store: MetadataStore) -> None:
    assert [await store.put("/a", str(n).encode()) for n in range(4)] == [0, 1, 2, 3]
    record = await store.get("/a")
    assert record is not None
    assert (record.value, record.version) == (b"3", 3)
    assert record.modified_ms >= record.created_ms


async def test_an_empty_value_is_a_value(store: MetadataStore) -> None:
    await store.put("/a", b"")
    record = await store.get("/a")
    assert record is not None
    assert record.value == b""


async def test_missing_parents_are_made(store: MetadataStore) -> None:
    await store.put("/a/b/c", b"deep")
    assert await store.children("/a") == ["b"]
    parent = await store.get("/a/b")
    assert parent is not None
    assert (parent.value, parent.version) == (b"", 0)


async def test_compare_and_set(store: MetadataStore) -> None:
    await store.put("/a", b"0")
    assert await store.put("/a", b"1", expected_version=0) == 1
    with pytest.raises(BadVersion):
        await store.put("/a", b"x", expected_version=0)
    with pytest.raises(BadVersion, match="does not exist"):
        await store.put("/b", b"x", expected_version=0)
    with pytest.raises(AlreadyExists):
        await store.put("/a", b"x", expected_version=-1)
    assert await store.put("/b", b"new", expected_version=-1) == 0
    record = await store.get("/a")
    assert record is not None
    assert record.value == b"1"


async def test_deletion(store: MetadataStore) -> None:
    await store.put("/a/b", b"")
    await store.put("/a/b", b"")
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    with pytest.raises(BadVersion):
        await store.delete("/a/b", expected_version=0)
    await store.delete("/a/b", expected_version=1)
    with pytest.raises(NotFound):
        await store.delete("/a/b")
    with pytest.raises(NotFound):
        await store.delete("/a/b", expected_version=3)
    await store.delete("/a")
    assert not await store.exists("/a")


async def test_a_record_made_again_starts_at_version_zero(store: MetadataStore) -> None:
    await store.put("/a", b"")
    await store.put("/a", b"")
    await store.delete("/a")
    assert await store.put("/a", b"again", expected_version=-1) == 0


async def test_deleting_a_whole_subtree(store: MetadataStore) -> None:
    for path in ("/a/b/c", "/a/b/d", "/a/e", "/ab"):
        await store.put(path, b"")
    await store.delete_recursive("/a")
    assert not await store.exists("/a")
    assert await store.children("/a") == []
    assert await store.exists("/ab")
    await store.delete_recursive("/a")


async def test_children_are_names_in_order(store: MetadataStore) -> None:
    for path in ("/p/b", "/p/a/x", "/p/c", "/p2/z", "/p/a b"):
        await store.put(path, b"")
    assert await store.children("/p") == ["a", "a b", "b", "c"]
    assert {"p", "p2"} <= set(await store.children("/"))
    assert await store.children("/nothing") == []


AWKWARD = [
    "/persistent%2F%2Fpublic",
    "/a b",
    "/ünïcødé/日本語",
    "/with.dots/..not-parent",
    "/:colon:/{brace}/[x]",
    "/-/_/+",
    "/quote\"'/back\\slash",
    "/q?x=1&y=2#z",
    "/0000000000",
    "/" + "long" * 60,
]


async def test_many_paths_with_awkward_characters(store: MetadataStore) -> None:
    paths = [f"/awkward{path}" for path in AWKWARD] + [f"/many/{n:04}/leaf" for n in range(200)]
    await asyncio.gather(*(store.put(path, path.encode()) for path in paths))
    for path in paths:
        record = await store.get(path)
        assert record is not None, path
        assert record.value == path.encode()
        above, _, name = path.rpartition("/")
        assert name in await store.children(above)
    assert len(await store.children("/many")) == 200


@pytest.mark.parametrize(
    "path", ["", "a", "a/b", "/a/", "//", "/a//b", "/a/./b", "/a/..", "/a\x00b", "/\x07"]
)
async def test_a_text_that_is_no_path_is_refused(store: MetadataStore, path: str) -> None:
    for wish in (store.get(path), store.put(path, b""), store.delete(path), store.children(path)):
        with pytest.raises(InvalidPath):
            await wish


async def test_the_root_stays(store: MetadataStore) -> None:
    assert await store.exists("/")
    with pytest.raises(InvalidPath):
        await store.delete("/")


async def test_a_value_too_large_is_refused_and_the_store_lives_on(store: MetadataStore) -> None:
    await store.put("/a", b"x" * 1_000_000)
    with pytest.raises(ValueTooLarge):
        await store.put("/a", b"x" * 1_000_001)
    record = await store.get("/a")
    assert record is not None
    assert len(record.value) == 1_000_000


# Races.


async def test_of_many_who_create_one_wins(backend: Backend, store: MetadataStore) -> None:
    other = await backend.other_session(store)
    results = await asyncio.gather(
        *(
            (store, other)[n % 2].put("/prize", str(n).encode(), expected_version=-1, ephemeral=True)
            for n in range(20)
        ),
        return_exceptions=True,
    )
    winners = [n for n, result in enumerate(results) if result == 0]
    assert len(winners) == 1
    assert sum(isinstance(result, AlreadyExists) for result in results) == 19
    record = await store.get("/prize")
    assert record is not None
    assert record.value == str(winners[0]).encode()


async def test_no_increment_is_lost_between_racing_sessions(backend: Backend, store: MetadataStore) -> None:
    await store.put("/count", b"0")
    sessions = [store, await backend.other_session(store)]

    async def increment(session: MetadataStore) -> None:
        while True:
            record = await session.get("/count")
            assert record is not None
            value = str(int(record.value) + 1).encode()
            try:
                await session.put("/count", value, expected_version=record.version)
            except BadVersion:
                continue
            return

    await asyncio.gather(*(increment(sessions[n % 2]) for n in range(30)))
    record = await store.get("/count")
    assert record is not None
    assert (record.value, record.version) == (b"30", 30)


async def test_sequential_names_are_unique_and_only_grow(backend: Backend, store: MetadataStore) -> None:
    other = await backend.other_session(store)
    first = await store.create_sequential("/queue/job-", b"0")
    paths = await asyncio.gather(
        *((store, other)[n % 2].create_sequential("/queue/job-", b"") for n in range(20))
    )
    assert len({first, *paths}) == 21
    assert all(path.startswith("/queue/job-") and len(path) == len("/queue/job-") + 10 for path in paths)
    await store.delete(max(paths))
    later = await store.create_sequential("/queue/job-", b"")
    assert later > max(paths)
    assert await store.create_sequential("/queue/other-", b"") > "/queue/other-" + later[-10:]


# Several writes at once.


async def test_several_writes_happen_together(backend: Backend, store: MetadataStore) -> None:
    other = await backend.other_session(store)
    await store.put("/kept", b"0")
    await store.put("/gone", b"0")
    heard = Heard()
    other.watch("/", heard)
    await other.get("/kept")
    versions = await store.write_all(
        [
            Put("/kept", b"1", expected_version=0),
            Put("/new/deep/a", b"a", expected_version=-1),
            Put("/new/deep/b", b"b"),
            Put("/new/mine", b"m", ephemeral=True),
            Delete("/gone", expected_version=0),
        ]
    )
    assert versions == [1, 0, 0, 0, None]
    assert await store.children("/new/deep") == ["a", "b"]
    assert not await store.exists("/gone")
    mine = await store.get("/new/mine")
    assert mine is not None
    assert (mine.value, mine.session) == (b"m", store.session_id)
    await heard.hear(Change.MODIFIED, "/kept")
    await heard.hear(Change.CREATED, "/new/deep/b")
    await heard.hear(Change.DELETED, "/gone")
    assert await store.write_all([Put("/kept", b"2"), Put("/new/deep/a", b"a2")]) == [2, 1]
    assert await store.write_all([]) == []


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (Put("/a", b"x", expected_version=7), BadVersion),
        (Put("/a", b"x", expected_version=-1), AlreadyExists),
        (Put("/nothing", b"x", expected_version=0), BadVersion),
        (Put("/leaf/child", b"x"), InvalidPath),
        (Delete("/nothing"), NotFound),
        (Delete("/a", expected_version=7), BadVersion),
        (Delete("/folder"), NotEmpty),
    ],
)
async def test_of_several_writes_one_that_is_refused_keeps_all_from_happening(
    store: MetadataStore, refused: Put | Delete, error: type[Exception]
) -> None:
    await store.put("/a", b"0")
    await store.put("/b", b"0")
    await store.put("/folder/x", b"0")
    await store.put("/leaf", b"", ephemeral=True)
    for writes in (
        [Put("/b", b"1"), Put("/c", b"1"), refused],
        [refused, Delete("/b"), Put("/c", b"1", ephemeral=True)],
    ):
        with pytest.raises(error):
            await store.write_all(writes)
        record = await store.get("/b")
        assert record is not None
        assert (record.value, record.version) == (b"0", 0)
        assert not await store.exists("/c")


async def test_a_batch_that_no_store_could_do_is_refused(store: MetadataStore) -> None:
    refused: list[list[Put | Delete]] = [
        [Put("/a", b""), Delete("/a")],
        [Put("/a", b""), Put("/a/b", b"")],
        [Put(f"/{n}", b"") for n in range(33)],
    ]
    for writes in refused:
        with pytest.raises(InvalidBatch):
            await store.write_all(writes)
    with pytest.raises(ValueTooLarge):
        await store.write_all([Put("/a", b"x" * 600_000), Put("/b", b"x" * 600_000)])
    with pytest.raises(InvalidPath):
        await store.write_all([Delete("/")])
    assert len(await store.write_all([Put(f"/many/{n}/deep/er", b"") for n in range(32)])) == 32


async def test_of_racing_batches_all_take_effect_one_after_the_other(
    backend: Backend, store: MetadataStore
) -> None:
    """Two counters that are always raised together, by compare-and-set, never differ."""
    other = await backend.other_session(store)

    async def raise_both(session: MetadataStore) -> None:
        while True:
            left, right = await session.get("/left"), await session.get("/right")
            value = str(int(left.value) + 1 if left else 1).encode()
            try:
                await session.write_all(
                    [
                        Put("/left", value, expected_version=left.version if left else -1),
                        Put("/right", value, expected_version=right.version if right else -1),
                    ]
                )
            except BadVersion:
                continue
            return

    await asyncio.gather(*(raise_both((store, other)[n % 2]) for n in range(12)))
    left, right = await store.get("/left"), await store.get("/right")
    assert left is not None
    assert right is not None
    assert (left.value, left.version) == (right.value, right.version) == (b"12", 11)


# Ephemerals.


async def test_an_ephemeral_tells_whose_it_is(store: MetadataStore) -> None:
    await store.put("/here", b"", ephemeral=True)
    record = await store.get("/here")
    assert record is not None
    assert record.ephemeral
    assert record.session == store.session_id != ""


async def test_ephemerals_end_with_their_session(backend: Backend, store: MetadataStore) -> None:
    if backend.sessions_at_once:
        watcher, heard = await backend.session(), Heard()
        watcher.watch("/members", heard)
        await watcher.get("/members")
    await store.put("/members/me", b"", ephemeral=True)
    numbered = await store.create_sequential("/members/n-", b"", ephemeral=True)
    await store.put("/members/stays", b"")
    await store.put("/members/handed", b"", ephemeral=True)
    await store.delete("/members/handed")
    await store.put("/members/handed", b"")
    if backend.sessions_at_once:
        await heard.hear(Change.CREATED, "/members/me")
    await store.close()
    if backend.sessions_at_once:
        await heard.hear(Change.DELETED, "/members/me")
        await heard.hear(Change.DELETED, numbered)
    else:
        watcher = await backend.session()

    assert await watcher.children("/members") == ["handed", "stays"]


async def test_an_ephemeral_has_no_children(store: MetadataStore) -> None:
    await store.put("/a/leaf", b"", ephemeral=True)
    with pytest.raises(InvalidPath, match="ephemeral"):
        await store.put("/a/leaf/child", b"")
    with pytest.raises(InvalidPath, match="ephemeral"):
        await store.create_sequential("/a/leaf/child-", b"")


async def test_changing_an_ephemeral_keeps_it_ephemeral(store: MetadataStore) -> None:
    await store.put("/e", b"0", ephemeral=True)
    assert await store.put("/e", b"1") == 1
    record = await store.get("/e")
    assert record is not None
    assert record.ephemeral


# Watches.


async def test_a_watch_hears_its_subtree_and_nothing_else(backend: Backend, store: MetadataStore) -> None:
    other = await backend.other_session(store)
    heard = Heard()
    store.watch("/a", heard)
    await store.get("/a")
    await other.put("/ab", b"not below /a")
    await other.put("/a/b/c", b"0")
    await heard.hear(Change.CREATED, "/a/b/c")
    await heard.hear(Change.CREATED, "/a")
    await heard.hear(Change.CHILDREN_CHANGED, "/a/b")
    await other.put("/a/b/c", b"1")
    await heard.hear(Change.MODIFIED, "/a/b/c")
    await other.delete("/a/b/c")
    await heard.hear(Change.DELETED, "/a/b/c")
    assert heard.of("/a/b/c") == [Change.CREATED, Change.MODIFIED, Change.DELETED]
    assert all(n.path == "/a" or n.path.startswith("/a/") for n in heard.notifications)


async def test_who_watches_before_reading_misses_nothing(backend: Backend, store: MetadataStore) -> None:
    """Every value that was read and then changed is followed by a notification."""
    other = await backend.other_session(store)
    for n in range(20):
        await other.put(f"/w/{n}/x", b"0")
    heard = Heard()
    store.watch("/w", heard)
    assert len(await store.children("/w")) == 20
    await asyncio.gather(*(other.put(f"/w/{n}/x", b"1") for n in range(20)))
    await heard.until(lambda: all(Change.MODIFIED in heard.of(f"/w/{n}/x") for n in range(20)))


async def test_a_watcher_ends_up_knowing_the_last_value(backend: Backend, store: MetadataStore) -> None:
    """Read on each notification: however changes are merged, what was read last is what stays."""
    other = await backend.other_session(store)
    await store.put("/v", b"0")
    seen: list[int] = []
    wake = asyncio.Event()
    store.watch("/v", lambda _: wake.set())

    async def follow() -> None:
        while not seen or seen[-1] != 50:
            await wake.wait()
            wake.clear()
            record = await store.get("/v")
            assert record is not None
            seen.append(int(record.value))

    await store.get("/v")
    follower = asyncio.create_task(follow())
    for n in range(1, 51):
        await other.put("/v", str(n).encode())
    async with asyncio.timeout(DEADLINE_S):
        await follower
    assert seen == sorted(seen)


async def test_a_cancelled_watch_is_silent(backend: Backend, store: MetadataStore) -> None:
    cancelled, heard = Heard(), Heard()
    watch = store.watch("/a", cancelled)
    store.watch("/a", heard)
    await store.get("/a")
    watch.cancel()
    watch.cancel()
    await store.put("/a", b"")
    await heard.hear(Change.CREATED, "/a")
    assert cancelled.notifications == []


async def test_a_listener_that_raises_harms_no_one(store: MetadataStore) -> None:
    def broken(_: Notification) -> None:
        raise RuntimeError("a listener's own mistake")

    heard = Heard()
    store.watch("/a", broken)
    store.watch("/a", heard)
    await store.put("/a", b"")
    await heard.hear(Change.CREATED, "/a")
    await store.put("/a", b"")
    await heard.hear(Change.MODIFIED, "/a")


async def test_a_subtree_deleted_and_made_again_is_told_of(backend: Backend, store: MetadataStore) -> None:
    other = await backend.other_session(store)
    heard = Heard()
    await store.put("/t/a/b", b"")
    store.watch("/t", heard)
    await store.get("/t")
    await other.delete_recursive("/t")
    await heard.hear(Change.DELETED, "/t/a/b")
    await heard.hear(Change.DELETED, "/t")
    heard.notifications.clear()
    await other.put("/t/a/b", b"again")
    await heard.hear(Change.CREATED, "/t/a/b")


async def test_cached_reads_follow_what_others_write(backend: Backend, store: MetadataStore) -> None:
    other = await backend.other_session(store)
    await other.put("/c/x", b"0")
    cached = CachedReads(store, "/c")
    for n in range(1, 21):
        await other.put("/c/x", str(n).encode())
        await other.put(f"/c/child-{n}", b"")
        async with asyncio.timeout(DEADLINE_S):
            while (record := await cached.get("/c/x")) is None or record.value != str(n).encode():  # noqa: ASYNC110
                await asyncio.sleep(0)
            while len(await cached.children("/c")) != n + 1:  # noqa: ASYNC110
                await asyncio.sleep(0)
    async with asyncio.timeout(DEADLINE_S):
        while not cached.sure:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await cached.get("/c/x")
    before = cached.hits
    assert (await cached.get("/c/x")) == await store.get("/c/x")
    assert cached.hits == before + 1
    cached.close()


# The end.


async def test_after_close_nothing_can_be_asked(store: MetadataStore) -> None:
    await store.put("/a", b"")
    await store.close()
    await store.close()
    with pytest.raises(StoreClosed):
        await store.get("/a")
    with pytest.raises(StoreClosed):
        await store.put("/a", b"")


async def test_what_was_written_is_there_after_reopening(backend: Backend, store: MetadataStore) -> None:
    keeper = await backend.session() if backend.sessions_at_once else None
    await store.put("/kept/x", b"value")
    await store.put("/kept/x", b"value2")
    last = await store.create_sequential("/kept/s-", b"")
    await store.close()
    again = await backend.session()
    record = await again.get("/kept/x")
    assert record is not None
    assert (record.value, record.version) == (b"value2", 1)
    assert await again.create_sequential("/kept/s-", b"") > last
    assert again.session_id != store.session_id
    assert keeper is None or await keeper.exists("/kept/x")
