"""A watch over a whole subtree, made of ZooKeeper's watches over single nodes, each of which fires once.

After every event the node is looked at again, which sets its watch anew, and what is found is compared with
what was known; so a change is never missed, though several close together may be told as one. After a lost
connection the whole subtree is compared. Looks are taken in the order of the events, some at a time, and
compared in that order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import StoreClosed, StoreUnavailable
from magnetar.metadata.paths import join, parent
from magnetar.metadata.store import Change, Listener, Notification

LOOKS_IN_FLIGHT = 64
RETRY_S = 1.0

_log = get_logger("magnetar.metadata")


class WatchingReads(Protocol):
    """The part of the store that a subtree watch needs."""

    async def stat_and_watch(self, path: str, on_event: Callable[[], None]) -> Any | None: ...

    async def children_and_watch(self, path: str, on_event: Callable[[], None]) -> list[str] | None: ...


class _Known(NamedTuple):
    """The transactions that created and last changed a node: equal numbers mean nothing happened."""

    created: int
    changed: int


class SubtreeWatch:
    """One listener, and what it has been told of its subtree."""

    def __init__(
        self,
        reads: WatchingReads,
        prefix: str,
        listener: Listener,
        on_cancel: Callable[[SubtreeWatch], None],
    ) -> None:
        self.prefix = prefix
        self.settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the subtree is watched: what is read after that cannot change unseen."""
        self._below = prefix if prefix == "/" else f"{prefix}/"
        self._reads = reads
        self._listener = listener
        self._on_cancel = on_cancel
        self._cancelled = False
        self._nodes: dict[str, _Known] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._looks: dict[str, None] = {}  # Paths to look at, in order.
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._look_at(self.prefix)

    def covers(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self._below)

    def cancel(self) -> None:
        self._cancelled = True
        self._looks.clear()
        if not self.settled.done():
            self.settled.set_result(None)
        self._on_cancel(self)

    def look_everywhere(self) -> None:
        """The connection is back: compare all, set all watches anew."""
        for path in [self.prefix, *self._nodes]:
            self._look_at(path)

    def _look_at(self, path: str) -> None:
        if self._cancelled:
            return
        self._looks[path] = None
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name=f"watch {self.prefix}")

    async def _work(self) -> None:
        paths: list[str] = []
        try:
            while self._looks:
                paths = list(itertools.islice(self._looks, LOOKS_IN_FLIGHT))
                for path in paths:
                    del self._looks[path]
                for path, (stat, names) in zip(paths, await self._read(paths), strict=True):
                    self._compare(path, stat, names)
            if not self.settled.done():
                self.settled.set_result(None)
        except (StoreUnavailable, StoreClosed) as error:
            if not self._cancelled:
                self._looks.update(dict.fromkeys(paths))
                _log.info("watch.interrupted", prefix=self.prefix, reason=str(error))
                asyncio.get_running_loop().call_later(RETRY_S, self.look_everywhere)
        finally:
            self._task = None

    async def _read(self, paths: Sequence[str]) -> list[tuple[Any | None, list[str] | None]]:
        stats = [self._reads.stat_and_watch(path, partial(self._look_at, path)) for path in paths]
        names = [self._reads.children_and_watch(path, partial(self._look_at, path)) for path in paths]
        found = await asyncio.gather(asyncio.gather(*stats), asyncio.gather(*names))
        return list(zip(*found, strict=True))

    def _compare(self, path: str, stat: Any | None, names: list[str] | None) -> None:
        if stat is None:
            self._forget(path)
            return
        found = _Known(stat.czxid, stat.mzxid)
        known = self._nodes.get(path)
        if known is not None and known.created != found.created:
            self._forget(path)
            known = None
        self._nodes[path] = found
        if known is None:
            self._tell(Change.CREATED, path)
        elif known.changed != found.changed:
            self._tell(Change.MODIFIED, path)
        if names is not None:
            self._compare_names(path, frozenset(names))

    def _compare_names(self, path: str, names: frozenset[str]) -> None:
        before = self._names.get(path, frozenset())
        self._names[path] = names
        for name in sorted(before - names):
            self._forget(join(path, name))
        fresh = sorted(names - before)
        for name in fresh:
            self._look_at(join(path, name))
        if names != before:
            self._tell(Change.CHILDREN_CHANGED, path)

    def _forget(self, path: str) -> None:
        """A node is gone, and with it all that was known below it."""
        for name in sorted(self._names.pop(path, ())):
            self._forget(join(path, name))
        if self._nodes.pop(path, None) is not None:
            self._tell(Change.DELETED, path)
        above = parent(path)
        name = path.rpartition("/")[2]
        if path != self.prefix and name in self._names.get(above, ()):
            self._names[above] -= {name}
            self._tell(Change.CHILDREN_CHANGED, above)

    def _tell(self, change: Change, path: str) -> None:
        # While the watch is being set up, what is found is what was there.
        if self._cancelled or not self.settled.done():
            return
        try:
            self._listener(Notification(change, path))
        except Exception:
            _log.exception("watch.listener_failed", prefix=self.prefix, path=path)
