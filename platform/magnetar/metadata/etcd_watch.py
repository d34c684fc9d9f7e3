"""A watch over a subtree in etcd: a stream of all changes from a revision on, taken up again wherever it broke.

Every change has a revision, and a stream begins at the one after the last that was told, so nothing is missed. Where
etcd has thrown that revision away (compaction), the subtree is listed and compared with what was known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from magnetar.environment.logs import get_logger
from magnetar.metadata import etcd_pb2 as pb
from magnetar.metadata.errors import MetadataError, StoreClosed
from magnetar.metadata.etcd_connection import STREAM_BROKEN, Compacted, EtcdConnection, being_cancelled
from magnetar.metadata.etcd_keys import Keys
from magnetar.metadata.paths import parent
from magnetar.metadata.store import Change, Listener, Notification

_RETRY_S = 0.1
_LIST_TIMEOUT_S = 10.0
_SILENCE_S = 5.0
"""A stream that says nothing for so long is begun anew: one whose server died may hang for ever."""
_ASK_S = 1.5
"""How often etcd is asked to say something where nothing changes."""
_ASKED_FOR = -1
"""The watch id of what it says then."""

_log = get_logger("magnetar.metadata")


class _Known(NamedTuple):
    """The revisions that created and last changed a record."""

    created: int
    changed: int


class EtcdWatch:
    """One listener, and the revision up to which it has been told."""

    def __init__(
        self,
        connection: EtcdConnection,
        keys: Keys,
        prefix: str,
        listener: Listener,
        on_cancel: Callable[[EtcdWatch], None],
    ) -> None:
        self.prefix = prefix
        self._below = prefix if prefix == "/" else f"{prefix}/"
        self._connection = connection
        self._keys = keys
        self._listener = listener
        self._on_cancel = on_cancel
        self._cancelled = False
        self._revision = connection.revision
        self._known: dict[str, _Known] = {}
        self._task = asyncio.create_task(self._work(), name=f"watch {prefix}")

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()
            self._on_cancel(self)

    async def _work(self) -> None:
        listed = False
        while not self._cancelled:
            try:
                if not listed:
                    await self._list_before()
                    listed = True
                await self._follow()
            except Compacted:
                await self._compare_until_done()
                listed = True
            except StoreClosed:
                return
            except MetadataError as error:
                _log.info("watch.interrupted", prefix=self.prefix, reason=str(error))
            await asyncio.sleep(_RETRY_S)

    async def _compare_until_done(self) -> None:
        while True:
            try:
                await self._compare()
                return
            except StoreClosed:
                return
            except MetadataError as error:
                _log.info("watch.interrupted", prefix=self.prefix, reason=str(error))
                await asyncio.sleep(_RETRY_S)

    async def _list_before(self) -> None:
        """Learn what was there at the revision the watch began at."""
        found, _ = await self._list(self._revision)
        self._known = found

    async def _list(self, revision: int) -> tuple[dict[str, _Known], int]:
        first, end = self._keys.subtree(self.prefix)
        request = pb.RangeRequest(key=first, range_end=end, keys_only=True, revision=revision)
        answer = await self._connection.ask("KV/Range", request, pb.RangeResponse, _LIST_TIMEOUT_S)
        return {
            path: _Known(kv.create_revision, kv.mod_revision)
            for kv in answer.kvs
            if self._covers(path := self._keys.path_of(kv.key))
        }, answer.header.revision

    async def _compare(self) -> None:
        """What changed since the last revision that was told, found out without the changes themselves."""
        found, revision = await self._list(0)
        before, self._known, self._revision = self._known, found, revision
        _log.info("watch.compared", prefix=self.prefix, revision=revision)
        for path in sorted(before, reverse=True):
            if path not in found or found[path].created != before[path].created:
                self._tell(Change.DELETED, path)
        for path in sorted(found):
            if path not in before or found[path].created != before[path].created:
                self._tell(Change.CREATED, path)
            elif found[path].changed != before[path].changed:
                self._tell(Change.MODIFIED, path)

    async def _follow(self) -> None:
        first, end = self._keys.subtree(self.prefix)
        request = pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=first, range_end=end, start_revision=self._revision + 1, progress_notify=True
            )
        )
        stream = self._connection.stream("Watch/Watch", request, pb.WatchResponse)
        asking: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_SILENCE_S):
                await stream.write(request)
            asking = asyncio.create_task(_ask_now_and_then(stream), name=f"watch {self.prefix}: asking")
            while isinstance(answer := await _read(stream), pb.WatchResponse):
                if answer.canceled:
                    if answer.compact_revision:
                        raise Compacted(answer.cancel_reason)
                    return
                self._deliver(answer.events)
                if answer.events:
                    # Not the header's: a watcher that catches up is told of the newest revision before its time.
                    self._revision = max(self._revision, *(event.kv.mod_revision for event in answer.events))
                elif not answer.created and answer.watch_id != _ASKED_FOR:
                    # Of what was asked for, servers before 3.4.25 may answer with a revision they have not told yet.
                    self._revision = max(self._revision, answer.header.revision)
        except STREAM_BROKEN as error:
            _log.info("watch.interrupted", prefix=self.prefix, reason=str(error))
        except TimeoutError:
            return  # Silent, or dead without a word: taken up again, which misses nothing.
        except asyncio.CancelledError:
            if self._cancelled or being_cancelled():
                raise
            # Only the stream was cancelled: the connection turns to another server.
        finally:
            if asking is not None:
                asking.cancel()
            self._connection.done(stream)

    def _deliver(self, events: Iterable[pb.Event]) -> None:
        for event in events:
            kv = event.kv
            path = self._keys.path_of(kv.key)
            if not self._covers(path) or kv.mod_revision <= self._revision:
                continue
            if event.type == pb.Event.DELETE:
                self._known.pop(path, None)
                self._tell(Change.DELETED, path)
            else:
                self._known[path] = _Known(kv.create_revision, kv.mod_revision)
                self._tell(Change.CREATED if kv.version == 1 else Change.MODIFIED, path)

    def _covers(self, path: str) -> bool:
        return path == self.prefix or path.startswith(self._below)

    def _tell(self, change: Change, path: str) -> None:
        self._call(Notification(change, path))
        above = parent(path)
        if change is not Change.MODIFIED and path != self.prefix and self._covers(above):
            self._call(Notification(Change.CHILDREN_CHANGED, above))

    def _call(self, notification: Notification) -> None:
        if self._cancelled:
            return
        try:
            self._listener(notification)
        except Exception:
            _log.exception("watch.listener_failed", prefix=self.prefix, path=notification.path)


async def _ask_now_and_then(stream: Any) -> None:
    """Have a watch without changes show that it is alive: its restarts would be a burden on etcd, and on the log."""
    with suppress(*STREAM_BROKEN):  # Whoever reads finds out as well, and tells.
        while True:
            await asyncio.sleep(_ASK_S)
            await stream.write(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))


async def _read(stream: Any) -> Any:
    async with asyncio.timeout(_SILENCE_S):
        return await stream.read()
