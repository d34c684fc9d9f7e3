"""Reads answered from memory, for as long as a watch is sure to tell of changes.

What is remembered of a path is forgotten when a change of it is told, and all of it when the connection is lost or
the session ends. It is given out only while the store's lease lasts: without one, nobody knows what was not told.
Between a change and its being told lies the way of a notification, for our own writes too; whoever writes upon what
was read compares the version, and whoever must see its own write calls `forget` first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from magnetar.environment.clock import Clock, SystemClock
from magnetar.metadata.paths import check_path, parent
from magnetar.metadata.store import Change, MetadataStore, Notification, SessionState, Versioned

ENTRIES_MAX = 10_000

_T = TypeVar("_T")


class _Asking:
    """A read under way; outdated by whatever is told of its path meanwhile, which may be later than the answer."""

    __slots__ = ("outdated",)

    def __init__(self) -> None:
        self.outdated = False


class CachedReads:
    """`get` and `children` of one subtree of a store."""

    __slots__ = (
        "_asking",
        "_below",
        "_children",
        "_clock",
        "_connected",
        "_entries_max",
        "_prefix",
        "_records",
        "_store",
        "_watches",
        "hits",
        "misses",
    )

    def __init__(
        self,
        store: MetadataStore,
        prefix: str,
        *,
        clock: Clock | None = None,
        entries_max: int = ENTRIES_MAX,
    ) -> None:
        """
        Args:
            entries_max: how many records, and how many lists of children, are remembered; the oldest go first.
        """
        self._store = store
        self._prefix = check_path(prefix)
        self._below = prefix if prefix == "/" else f"{prefix}/"
        self._clock = clock if clock is not None else SystemClock()
        self._entries_max = entries_max
        self._records: dict[str, Versioned | None] = {}
        self._children: dict[str, tuple[str, ...]] = {}
        self._asking: dict[str, list[_Asking]] = {}
        self._connected = True
        self._watches = (store.watch(prefix, self._on_change), store.on_session(self._on_session))
        self.hits = 0
        self.misses = 0

    @property
    def sure(self) -> bool:
        """Whether what is remembered may be given out now."""
        return self._connected and self._store.lease_until > self._clock.monotonic()

    async def get(self, path: str) -> Versioned | None:
        """As `MetadataStore.get`; raises the same."""
        return await self._read(self._records, path, self._store.get)

    async def children(self, path: str) -> list[str]:
        """As `MetadataStore.children`; raises the same."""
        names: tuple[str, ...] = await self._read(self._children, path, self._list)
        return list(names)

    def forget(self, path: str) -> None:
        """What is known of `path` and of its parent's children may be out of date."""
        self._outdate(path)
        self._outdate(parent(path))
        self._records.pop(path, None)
        self._children.pop(path, None)
        self._children.pop(parent(path), None)

    def close(self) -> None:
        """Watch no longer; every read then goes to the store."""
        for watch in self._watches:
            watch.cancel()
        self._forget_all()
        self._connected = False

    async def _read(self, remembered: dict[str, _T], path: str, ask: Callable[[str], Awaitable[_T]]) -> _T:
        if path in remembered and self.sure:
            self.hits += 1
            return remembered[path]
        self.misses += 1
        asking = _Asking()
        self._asking.setdefault(path, []).append(asking)
        try:
            found = await ask(path)
        finally:
            others = self._asking[path]
            others.remove(asking)
            if not others:
                del self._asking[path]
        if not asking.outdated and self.sure and self._covers(path):
            remembered[path] = found
            if len(remembered) > self._entries_max:
                del remembered[next(iter(remembered))]
        return found

    async def _list(self, path: str) -> tuple[str, ...]:
        return tuple(await self._store.children(path))

    def _covers(self, path: str) -> bool:
        return path == self._prefix or path.startswith(self._below)

    def _on_change(self, notification: Notification) -> None:
        path = notification.path
        self._outdate(path)
        if notification.kind is not Change.CHILDREN_CHANGED:
            self._records.pop(path, None)
        if notification.kind is not Change.MODIFIED:
            self._children.pop(path, None)

    def _on_session(self, state: SessionState) -> None:
        self._connected = state in (SessionState.CONNECTED, SessionState.REESTABLISHED)
        self._forget_all()

    def _forget_all(self) -> None:
        for path in self._asking:
            self._outdate(path)
        self._records.clear()
        self._children.clear()

    def _outdate(self, path: str) -> None:
        for asking in self._asking.get(path, ()):
            asking.outdated = True
