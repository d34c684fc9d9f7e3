"""Metadata in an embedded RocksDB: for a platform that runs alone.

Records are written at once without a sync, into the write-ahead log; then one sync in a thread makes
everything durable that was written before it began, and only then are the callers answered and the watchers
told. However many puts are in flight, they share a sync. A record whose sync is under way is not shown to
readers either: nobody acts on what a power cut could still take back.

There is one session per opening: what was ephemeral is swept away when the directory is opened again.

Directory: `FORMAT` (version of this layout), `LOCKED_BY`, `records/` (RocksDB; keys in `node_codec.py`).
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import rocksdict

from magnetar.environment.clock import Clock, SystemClock
from magnetar.environment.directory_lock import DirectoryLock
from magnetar.environment.disk import SystemDisk, fail_stop
from magnetar.environment.errors import DirectoryInUse, DiskFailed
from magnetar.environment.logs import get_logger
from magnetar.metadata.batch import Delete, Write
from magnetar.metadata.errors import MetadataError, StoreClosed, StoreRefused, StoreUnavailable
from magnetar.metadata.node_codec import (
    EPHEMERALS,
    child_prefix,
    decode_node,
    encode_node,
    ephemeral_key,
    node_key,
)
from magnetar.metadata.store import Listener, Notification, SessionListener, Versioned, Watch
from magnetar.metadata.tree import Node, Tree
from magnetar.metadata.watches import SessionListeners, WatchRegistry

FORMAT = 1

_FORMAT_FILE = "FORMAT"
_RECORDS = "records"
_log = get_logger("magnetar.metadata")
_T = TypeVar("_T")


class _RocksNodes:
    """Nodes in RocksDB. Every call holds the interpreter for some microseconds: values are small."""

    __slots__ = ("_database",)

    def __init__(self, database: rocksdict.Rdict) -> None:
        self._database = database

    def read(self, path: str) -> Node | None:
        data = self._database.get(node_key(path))
        return None if data is None else decode_node(path, data)

    def child_names(self, path: str) -> list[str]:
        prefix = child_prefix(path)
        return [key[len(prefix) :].decode() for key in self._keys(prefix)]

    def has_children(self, path: str) -> bool:
        return next(self._keys(child_prefix(path)), None) is not None

    def ephemerals(self) -> list[str]:
        """Paths of all ephemeral nodes, whichever session made them."""
        return [key[len(EPHEMERALS) :].decode() for key in self._keys(EPHEMERALS)]

    def write(self, changes: Sequence[tuple[str, Node | None]]) -> None:
        batch = rocksdict.WriteBatch(raw_mode=True)
        for path, node in changes:
            if node is None:
                batch.delete(node_key(path))
                batch.delete(ephemeral_key(path))
            else:
                batch.put(node_key(path), encode_node(node))
                if node.session:
                    batch.put(ephemeral_key(path), b"")
        try:
            self._database.write(batch)
        except Exception as error:  # rocksdict raises nothing more precise.
            raise StoreUnavailable(f"the metadata directory cannot be written: {error}") from error

    def _keys(self, prefix: bytes) -> Any:
        iterator = self._database.iter()
        iterator.seek(prefix)
        while iterator.valid():
            key = iterator.key()
            if not key.startswith(prefix):
                return
            yield key
            iterator.next()


@dataclass(slots=True)
class _Commit:
    """A change that waits for its sync: who is to be answered, and what watchers will hear."""

    durable: asyncio.Future[None]
    heard: Sequence[Notification]


class RocksDBStore:
    """The one session of a metadata directory."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        """Use `open`."""
        self._directory = directory
        self._clock = clock
        # Opening, syncs and closing, one at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._closed = False
        self._waiting: list[_Commit] = []
        self._syncing = False
        self._in_doubt: dict[str, asyncio.Future[None]] = {}
        self._ephemerals: dict[str, None] = {}
        self._watches = WatchRegistry()
        self._listeners = SessionListeners()
        self.lease_until = math.inf  # No other process can open the directory.
        self.session_id = f"rocksdb-{os.urandom(8).hex()}"

    @classmethod
    async def open(cls, directory: Path, *, clock: Clock | None = None) -> RocksDBStore:
        """Open or make the metadata directory, and sweep away the ephemerals of the last session.

        Raises:
            StoreRefused: in use by another process, of a newer version, or not readable.
        """
        store = cls(directory, clock if clock is not None else SystemClock())
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(store._thread, store._open)
            await store._sweep()
        except BaseException:
            store._thread.shutdown(wait=False)
            raise
        return store

    async def get(self, path: str) -> Versioned | None:
        found = self._tree().get(path)
        await self._settled(path)
        return found

    async def exists(self, path: str) -> bool:
        found = self._tree().exists(path)
        await self._settled(path)
        return found

    async def children(self, path: str) -> list[str]:
        found = self._tree().children(path)
        await self._settled(path)
        return found

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        session = self.session_id if ephemeral else ""
        now_ms = self._clock.time_ms()

        def change(tree: Tree) -> tuple[int, list[Notification]]:
            version, heard = tree.put(path, bytes(value), expected_version, session, now_ms)
            if ephemeral and version == 0:
                self._ephemerals[path] = None
            return version, heard

        return await self._commit([path], change)

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        now_ms = self._clock.time_ms()

        def change(tree: Tree) -> tuple[list[int | None], list[Notification]]:
            versions, heard = tree.write_all(writes, self.session_id, now_ms)
            for write, version in zip(writes, versions, strict=True):
                if isinstance(write, Delete):
                    self._ephemerals.pop(write.path, None)
                elif write.ephemeral and version == 0:
                    self._ephemerals[write.path] = None
            return versions, heard

        return await self._commit([write.path for write in writes], change)

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        session = self.session_id if ephemeral else ""
        now_ms = self._clock.time_ms()

        def change(tree: Tree) -> tuple[str, list[Notification]]:
            path, heard = tree.create_sequential(prefix, bytes(value), session, now_ms)
            if ephemeral:
                self._ephemerals[path] = None
            return path, heard

        return await self._commit([prefix], change)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        def change(tree: Tree) -> tuple[None, list[Notification]]:
            heard = tree.delete(path, expected_version)
            self._ephemerals.pop(path, None)
            return None, heard

        await self._commit([path], change)

    async def delete_recursive(self, path: str) -> None:
        def change(tree: Tree) -> tuple[None, list[Notification]]:
            return None, tree.delete_recursive(path)

        await self._commit([path], change)

    def watch(self, prefix: str, listener: Listener) -> Watch:
        return self._watches.watch(prefix, listener)

    def on_session(self, listener: SessionListener) -> Watch:
        """The session of an embedded store ends only with the process: nothing is ever told."""
        return self._listeners.add(listener)

    async def close(self) -> None:
        if self._closed:
            return
        tree = self._tree()
        self._closed = True
        self._watches.clear()
        self._listeners.clear()
        tree.end_session(list(self._ephemerals))
        await self._durable([])
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=True)

    async def _commit(
        self, paths: Sequence[str], change: Callable[[Tree], tuple[_T, list[Notification]]]
    ) -> _T:
        """Carry out `change` now; return its result once it is durable."""
        try:
            result, heard = change(self._tree())
        except MetadataError:
            for path in paths:  # What stood in the way must be there to stay before we say so.
                await self._settled(path)
            raise
        await self._durable(heard)
        return result

    def _durable(self, heard: Sequence[Notification]) -> Awaitable[None]:
        """Resolves when everything written so far has been synced and watchers were told of `heard`."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(_Commit(future, heard))
        for notification in heard:
            self._in_doubt[notification.path] = future
        if not self._syncing:
            self._sync()
        # A caller that gives up waiting does not take the change back.
        return asyncio.shield(future)

    def _sync(self) -> None:
        """Make all that waits durable with one sync."""
        self._syncing = True
        covered, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        sync = loop.run_in_executor(self._thread, self._database.flush_wal, True)
        sync.add_done_callback(lambda done: self._synced(covered, done))

    def _synced(self, covered: list[_Commit], sync: asyncio.Future[None]) -> None:
        error = sync.exception()
        if error is not None:
            fail_stop(DiskFailed(self._directory, str(error)))
        for commit in covered:
            commit.durable.set_result(None)
            for notification in commit.heard:
                if self._in_doubt.get(notification.path) is commit.durable:
                    del self._in_doubt[notification.path]
            self._watches.publish(commit.heard)
        self._syncing = False
        if self._waiting:
            self._sync()

    async def _settled(self, path: str) -> None:
        """Wait until what has just been read of `path` is durable. Later changes are not waited for."""
        future = self._in_doubt.get(path)
        if future is not None:
            await asyncio.shield(future)

    def _tree(self) -> Tree:
        if self._closed:
            raise StoreClosed
        return self._records

    async def _sweep(self) -> None:
        leftover = self._nodes.ephemerals()
        if leftover:
            self._records.end_session(leftover)
            await self._durable([])
            _log.info("session.swept", ephemerals=len(leftover))

    # In the thread.

    def _open(self) -> None:
        disk = SystemDisk()
        try:
            disk.make_directory(self._directory)
            self._lock = DirectoryLock(self._directory)
        except DirectoryInUse as error:
            raise StoreRefused(str(error)) from error
        except OSError as error:
            raise StoreRefused(f"metadata directory {self._directory} cannot be used: {error}") from error
        try:
            self._check_format(disk)
            records = self._directory / _RECORDS
            disk.make_directory(records)
            self._database = rocksdict.Rdict(str(records), _options())
        except MetadataError:
            self._lock.release()
            raise
        except Exception as error:  # rocksdict raises nothing more precise.
            self._lock.release()
            raise StoreRefused(f"metadata directory {self._directory} cannot be opened: {error}") from error
        self._nodes = _RocksNodes(self._database)
        self._records = Tree(self._nodes)

    def _check_format(self, disk: SystemDisk) -> None:
        path = self._directory / _FORMAT_FILE
        if not disk.exists(path):
            disk.replace_file(path, f"{FORMAT}\n".encode())
            return
        text = disk.read_file(path).decode("ascii", "replace").strip()
        if text != str(FORMAT):
            raise StoreRefused(
                f"metadata directory {self._directory} has format {text!r}, this version of Magnetar knows "
                f"{FORMAT}: use the version that wrote it, or a newer one"
            )

    def _close(self) -> None:
        self._database.close()
        self._lock.release()


def _options() -> rocksdict.Options:
    """A light RocksDB: metadata is small, and idle memory is what every user pays for."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_is_fd_close_on_exec(True)
    options.set_write_buffer_size(2 << 20)
    options.set_max_write_buffer_number(3)
    options.set_max_total_wal_size(8 << 20)
    options.set_max_background_jobs(2)
    options.set_max_open_files(64)
    options.set_max_file_opening_threads(1)
    options.set_table_cache_num_shard_bits(2)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_skip_stats_update_on_db_open(True)
    tables = rocksdict.BlockBasedOptions()
    tables.set_block_cache(rocksdict.Cache(2 << 20))
    tables.set_bloom_filter(10, False)
    options.set_block_based_table_factory(tables)
    return options
