"""Metadata in memory: for tests, for simulation, and as the plainest reading of the contract."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from magnetar.environment.clock import Clock, SystemClock
from magnetar.metadata.batch import Delete, Write
from magnetar.metadata.errors import StoreClosed
from magnetar.metadata.paths import parent
from magnetar.metadata.store import Listener, Notification, SessionListener, SessionState, Versioned, Watch
from magnetar.metadata.tree import Node, Tree
from magnetar.metadata.watches import SessionListeners, WatchRegistry


class _MemoryNodes:
    """Nodes in a dict, and the sorted names below each."""

    __slots__ = ("_names", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._names: dict[str, list[str]] = {}

    def read(self, path: str) -> Node | None:
        return self._nodes.get(path)

    def child_names(self, path: str) -> list[str]:
        return list(self._names.get(path, ()))

    def has_children(self, path: str) -> bool:
        return path in self._names

    def write(self, changes: Sequence[tuple[str, Node | None]]) -> None:
        for path, node in changes:
            if node is None:
                if self._nodes.pop(path, None) is not None:
                    self._unlink(path)
            else:
                if path not in self._nodes and path != "/":
                    above = self._names.setdefault(parent(path), [])
                    bisect.insort(above, path.rpartition("/")[2])
                self._nodes[path] = node

    def _unlink(self, path: str) -> None:
        above = parent(path)
        names = self._names[above]
        del names[bisect.bisect_left(names, path.rpartition("/")[2])]
        if not names:
            del self._names[above]


class MemoryEnsemble:
    """What several sessions share: the tree, and who has to be told of changes."""

    __slots__ = ("_next_session", "sessions", "tree")

    def __init__(self) -> None:
        self.tree = Tree(_MemoryNodes())
        self.sessions: list[MemoryStore] = []
        self._next_session = 1

    def connect(self, clock: Clock | None = None) -> MemoryStore:
        """A new session."""
        session_id = f"memory-{self._next_session}"
        self._next_session += 1
        store = MemoryStore(self, session_id, clock if clock is not None else SystemClock())
        self.sessions.append(store)
        return store

    def renew(self) -> str:
        """The id of the session that follows an expired one."""
        self._next_session += 1
        return f"memory-{self._next_session - 1}"

    def publish(self, notifications: Sequence[Notification]) -> None:
        for store in self.sessions:
            store.watches.publish(notifications)


class MemoryStore:
    """One session with a `MemoryEnsemble`."""

    __slots__ = (
        "_clock",
        "_closed",
        "_ensemble",
        "_ephemerals",
        "_listeners",
        "lease_until",
        "session_id",
        "watches",
    )

    def __init__(self, ensemble: MemoryEnsemble, session_id: str, clock: Clock) -> None:
        self._ensemble = ensemble
        self._clock = clock
        self._closed = False
        self._ephemerals: dict[str, None] = {}
        self._listeners = SessionListeners()
        self.session_id = session_id
        self.lease_until = math.inf
        """Simulations shorten it."""
        self.watches = WatchRegistry()

    async def get(self, path: str) -> Versioned | None:
        return self._tree().get(path)

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        session = self.session_id if ephemeral else ""
        version, heard = self._tree().put(
            path, bytes(value), expected_version, session, self._clock.time_ms()
        )
        if ephemeral and version == 0:
            self._ephemerals[path] = None
        self._ensemble.publish(heard)
        return version

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        versions, heard = self._tree().write_all(writes, self.session_id, self._clock.time_ms())
        for write, version in zip(writes, versions, strict=True):
            if isinstance(write, Delete):
                self._ephemerals.pop(write.path, None)
            elif write.ephemeral and version == 0:
                self._ephemerals[write.path] = None
        self._ensemble.publish(heard)
        return versions

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        session = self.session_id if ephemeral else ""
        path, heard = self._tree().create_sequential(prefix, bytes(value), session, self._clock.time_ms())
        if ephemeral:
            self._ephemerals[path] = None
        self._ensemble.publish(heard)
        return path

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        heard = self._tree().delete(path, expected_version)
        self._ephemerals.pop(path, None)
        self._ensemble.publish(heard)

    async def delete_recursive(self, path: str) -> None:
        self._ensemble.publish(self._tree().delete_recursive(path))

    async def children(self, path: str) -> list[str]:
        return self._tree().children(path)

    async def exists(self, path: str) -> bool:
        return self._tree().exists(path)

    def watch(self, prefix: str, listener: Listener) -> Watch:
        return self.watches.watch(prefix, listener)

    def on_session(self, listener: SessionListener) -> Watch:
        return self._listeners.add(listener)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        self.watches.clear()
        self._ensemble.sessions.remove(self)
        self._end_session()

    def expire(self) -> None:
        """End the session as a store does that has not heard from its client: for tests and simulation.

        Listeners hear EXPIRED, then CONNECTED with a new session.
        """
        self._end_session()
        self.session_id = self._ensemble.renew()
        self._listeners.tell(SessionState.EXPIRED)
        self._listeners.tell(SessionState.CONNECTED)

    def _end_session(self) -> None:
        mine = [path for path in self._ephemerals if self._owns(path)]
        self._ephemerals.clear()
        self._ensemble.publish(self._ensemble.tree.end_session(mine))

    def _owns(self, path: str) -> bool:
        node = self._ensemble.tree.get(path)
        return node is not None and node.session == self.session_id

    def _tree(self) -> Tree:
        if self._closed:
            raise StoreClosed
        return self._ensemble.tree


_shared: dict[str, MemoryEnsemble] = {}


def open_memory(name: str) -> MemoryStore:
    """A session with a new ensemble, or with the one that this process knows by `name`."""
    if not name:
        return MemoryEnsemble().connect()
    return _shared.setdefault(name, MemoryEnsemble()).connect()
