"""Metadata in ZooKeeper, for a cluster; kazoo speaks to it.

kazoo answers in its own threads; every answer hops to the event loop once and is dealt with there. Reads are
asked again after a lost connection until the time-out; writes never are, because a write whose answer is lost
may have happened: the caller hears StoreUnavailable and has to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

from kazoo import exceptions as zk
from kazoo.client import KazooState, TransactionRequest
from kazoo.interfaces import IAsyncResult
from kazoo.protocol.states import WatchedEvent, ZnodeStat

from magnetar.environment.clock import Clock, SystemClock
from magnetar.environment.logs import get_logger
from magnetar.metadata.batch import Delete, Put, Write, check_batch
from magnetar.metadata.errors import (
    UNKNOWN_VERSION,
    AlreadyExists,
    BadVersion,
    InvalidPath,
    MetadataError,
    NotEmpty,
    NotFound,
    SessionExpired,
    StoreClosed,
    StoreRefused,
    StoreUnavailable,
    ValueTooLarge,
)
from magnetar.metadata.paths import check_path, join, parent
from magnetar.metadata.session_lease import SessionLease, Sign
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    VALUE_BYTES_MAX,
    Listener,
    SessionListener,
    SessionState,
    Versioned,
    Watch,
)
from magnetar.metadata.watches import SessionListeners
from magnetar.metadata.zookeeper_connection import ZooKeeperConnection
from magnetar.metadata.zookeeper_watch import SubtreeWatch

SESSION_TIMEOUT_S = 10.0
_LEASE = 1 / 2
"""The share of a session's time-out that a lease lasts, counted from when a request was sent that the leader answered.
The rest covers what the leader may not have heard yet: docs/decisions/0020-metadata-leases.md."""
_HEARTBEAT = 1 / 8
_SILENCE = 1 / 3
"""A connection that answers nothing for this share of the time-out is dropped, in time to find another server."""

_UNAVAILABLE = (
    zk.ConnectionLoss,
    zk.ConnectionClosedError,
    zk.OperationTimeoutError,
    zk.SessionMovedError,
)
_log = get_logger("magnetar.metadata")
_T = TypeVar("_T")


class ZooKeeperStore:
    """One session with a ZooKeeper ensemble."""

    def __init__(self, hosts: str, session_timeout_s: float, clock: Clock) -> None:
        """Use `open`."""
        self._hosts = hosts
        self._timeout_s = session_timeout_s
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._connection = ZooKeeperConnection(hosts, session_timeout_s)
        self._client = self._connection.client
        self._connected = asyncio.Event()
        self._was_connected = False
        self._expired = False
        self._closed = False
        self._lease = SessionLease()
        self._lease_timer: asyncio.TimerHandle | None = None
        self._listeners = SessionListeners()
        self._watches: set[SubtreeWatch] = set()
        self._client.add_listener(self._from_kazoo)

    @classmethod
    async def open(cls, address: str, *, clock: Clock | None = None) -> ZooKeeperStore:
        """Connect.

        Args:
            address: `host:port,host:port/chroot?session_timeout_s=10`; a missing chroot is made.
        Raises:
            StoreUnavailable: no server answered within a session time-out.
            StoreRefused: the address is malformed.
        """
        hosts, _, query = address.partition("?")
        try:
            timeout_s = float(parse_qs(query).get("session_timeout_s", [str(SESSION_TIMEOUT_S)])[0])
            store = cls(hosts, timeout_s, clock if clock is not None else SystemClock())
        except ValueError as error:
            raise StoreRefused(f"bad ZooKeeper address {address!r}: {error}") from error
        store._client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await store._connected.wait()
                await store._made_chroot()
        except BaseException as error:
            await store.close()
            if isinstance(error, TimeoutError):
                raise StoreUnavailable(
                    f"no ZooKeeper at {hosts} answered within {timeout_s:g} s; check that it runs"
                ) from error
            raise
        return store

    @property
    def session_id(self) -> str:
        client_id = self._client.client_id
        return "" if client_id is None else _session_name(client_id[0])

    @property
    def lease_until(self) -> float:
        return self._lease.until

    async def get(self, path: str) -> Versioned | None:
        check_path(path)
        await self._watches_settled(path)
        try:
            value, stat = await self._read(lambda: self._client.get_async(path))
        except zk.NoNodeError:
            return None
        owner = stat.ephemeralOwner
        return Versioned(value, stat.version, _session_name(owner) if owner else "", stat.ctime, stat.mtime)

    async def exists(self, path: str) -> bool:
        check_path(path)
        await self._watches_settled(path)
        return await self._read(lambda: self._client.exists_async(path)) is not None

    async def children(self, path: str) -> list[str]:
        check_path(path)
        await self._watches_settled(path)
        try:
            return sorted(await self._read(lambda: self._client.get_children_async(path)))
        except zk.NoNodeError:
            return []

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        _check_record(path, value)
        await self._watches_settled(path)
        with _translated(path, expected_version):
            if expected_version == MUST_NOT_EXIST:
                return await self._create(path, value, ephemeral)
            if expected_version is not None:
                return await self._set(path, value, expected_version)
            while True:
                with contextlib.suppress(zk.NoNodeError):
                    return await self._set(path, value, -1)
                with contextlib.suppress(zk.NodeExistsError):
                    return await self._create(path, value, ephemeral)

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        check_batch(writes)
        if not writes:
            return []
        await asyncio.gather(*(self._watches_settled(write.path) for write in writes))
        while True:
            exists = await self._readied(writes)
            transaction = self._client.transaction()
            for write, there in zip(writes, exists, strict=True):
                _add(transaction, write, there)
            with _translated(writes[0].path, None):
                results = await self._ask(transaction.commit_async())
            refused = _refused(writes, results)
            if refused is None:
                return [
                    None if isinstance(write, Delete) else result.version if there else 0
                    for write, there, result in zip(writes, exists, results, strict=True)
                ]
            write, error = refused
            if _overtaken(write, error):
                continue
            with _translated(write.path, write.expected_version):
                if isinstance(write, Delete) and isinstance(error, zk.NoNodeError):
                    raise NotFound(write.path)
                raise error

    async def _readied(self, writes: Sequence[Write]) -> list[bool]:
        """Make the parents that are missing, and tell which records exist, as far as that is not for the write to say."""
        above = {parent(write.path) for write in writes if isinstance(write, Put) and write.path != "/"}
        for step in sorted(above - {"/"}):
            with _translated(step, None):
                await self._ask(self._client.ensure_path_async(step))

        async def there(write: Write) -> bool:
            if write.expected_version is not None:
                return write.expected_version != MUST_NOT_EXIST
            return await self.exists(write.path)

        return list(await asyncio.gather(*(there(write) for write in writes)))

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        _check_record(f"{prefix}0", value)
        await self._watches_settled(prefix)
        with _translated(prefix, None):
            path = await self._ask(
                self._client.create_async(prefix, value, ephemeral=ephemeral, sequence=True, makepath=True)
            )
        return str(path)

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        check_path(path)
        if path == "/":
            raise InvalidPath(path, "the root cannot be deleted")
        await self._watches_settled(path)
        version = -1 if expected_version is None else expected_version
        with _translated(path, expected_version):
            try:
                await self._ask(self._client.delete_async(path, version=version))
            except zk.NoNodeError:
                raise NotFound(path) from None

    async def delete_recursive(self, path: str) -> None:
        for name in await self.children(path):
            await self.delete_recursive(join(path, name))
        if path == "/":
            return
        try:
            await self.delete(path)
        except NotFound:
            return
        except NotEmpty:  # Someone has added a child meanwhile.
            await self.delete_recursive(path)

    def watch(self, prefix: str, listener: Listener) -> Watch:
        watch = SubtreeWatch(self, check_path(prefix), listener, self._watches.discard)
        self._watches.add(watch)
        watch.start()
        return watch

    def on_session(self, listener: SessionListener) -> Watch:
        return self._listeners.add(listener)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._listeners.clear()
        for watch in list(self._watches):
            watch.cancel()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
        self._client.remove_listener(self._from_kazoo)
        self._lease.ended()
        await asyncio.to_thread(self._connection.close)

    # For `SubtreeWatch`: reads that leave a watch behind.

    async def stat_and_watch(self, path: str, on_event: Callable[[], None]) -> ZnodeStat | None:
        """Look at a node, and be called once when it is created, changed or deleted."""
        watch = self._one_shot(on_event)
        stat: ZnodeStat | None = await self._ask(self._client.exists_async(path, watch=watch))
        return stat

    async def children_and_watch(self, path: str, on_event: Callable[[], None]) -> list[str] | None:
        """List the names below a node, and be called once when they change; None if it does not exist."""
        try:
            watch = self._one_shot(on_event)
            names: list[str] = await self._ask(self._client.get_children_async(path, watch=watch))
        except zk.NoNodeError:
            return None
        return names

    def _one_shot(self, on_event: Callable[[], None]) -> Callable[[WatchedEvent], None]:
        def from_kazoo(event: WatchedEvent) -> None:
            # Events without a type say that the connection is gone: the whole subtree is read again then.
            if event.type != "NONE":
                self._to_loop(on_event)

        return from_kazoo

    # The lease.

    def _prolong_lease(self) -> None:
        """Ask the leader for a sign of life of this session, and again a little later."""
        if self._closed:
            return
        timeout_s = self._connection.session_timeout_s
        self._lease_timer = self._loop.call_later(timeout_s * _HEARTBEAT, self._prolong_lease)
        if not self._connected.is_set():
            return
        now = self._clock.monotonic()
        sign = self._lease.send(self.session_id, now)
        if sign is not None:
            self._client.sync_async("/").rawlink(lambda done: self._to_loop(self._sign_answered, done, sign))
        elif self._lease.overdue(now, timeout_s * _SILENCE):
            _log.warning("connection.silent", hosts=self._hosts, session=self.session_id)
            self._lease.given_up()
            self._connection.drop()

    def _sign_answered(self, done: IAsyncResult, sign: Sign) -> None:
        if done.exception is None:
            self._lease.answered(sign, self.session_id, self._connection.session_timeout_s * _LEASE)
        else:
            self._lease.given_up(sign)

    # Asking.

    async def _create(self, path: str, value: bytes, ephemeral: bool) -> int:
        await self._ask(self._client.create_async(path, value, ephemeral=ephemeral, makepath=True))
        return 0

    async def _set(self, path: str, value: bytes, version: int) -> int:
        stat = await self._ask(self._client.set_async(path, value, version=version))
        return int(stat.version)

    async def _read(self, ask: Callable[[], IAsyncResult]) -> Any:
        """Ask something that may be asked twice."""
        deadline = self._loop.time() + self._timeout_s
        while True:
            try:
                return await self._ask(ask())
            except StoreUnavailable:
                if self._closed or self._loop.time() >= deadline:
                    raise
            try:
                async with asyncio.timeout_at(deadline):
                    await self._connected.wait()
            except TimeoutError:
                raise StoreUnavailable(f"ZooKeeper at {self._hosts} does not answer") from None

    async def _ask(self, result: IAsyncResult) -> Any:
        """What kazoo answers, on the loop."""
        if self._closed:
            raise StoreClosed
        future: asyncio.Future[Any] = self._loop.create_future()
        result.rawlink(lambda done: self._to_loop(_resolve, future, done))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await future
        except TimeoutError:
            raise StoreUnavailable(
                f"ZooKeeper at {self._hosts} has not answered within {self._timeout_s:g} s; "
                "the operation may still happen"
            ) from None
        except zk.SessionExpiredError as error:
            raise SessionExpired("the ZooKeeper session has expired") from error
        except (*_UNAVAILABLE, RuntimeError) as error:  # RuntimeError: kazoo met an answer it did not expect.
            raise StoreUnavailable(
                f"the connection to ZooKeeper at {self._hosts} was lost ({type(error).__name__}); "
                "the operation may have happened"
            ) from error

    async def _watches_settled(self, path: str) -> None:
        """Whoever watches first, and reads or writes then, must not miss a change after that."""
        waiting = [
            watch.settled for watch in self._watches if watch.covers(path) and not watch.settled.done()
        ]
        if waiting:
            await asyncio.wait(waiting, timeout=self._timeout_s)

    async def _made_chroot(self) -> None:
        if self._client.chroot:
            await self._ask(self._client.ensure_path_async("/"))

    # From kazoo's threads.

    def _from_kazoo(self, state: str) -> None:
        self._to_loop(self._on_state, state)

    def _to_loop(self, function: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # The loop has been closed before us: no one listens.
            self._loop.call_soon_threadsafe(function, *arguments)

    def _on_state(self, state: str) -> None:
        if self._closed:
            return
        if state == KazooState.SUSPENDED:
            self._connected.clear()
            self._lease.given_up()
            self._tell(SessionState.LOST_CONNECTION)
        elif state == KazooState.LOST:
            self._connected.clear()
            self._expired = True
            self._lease.ended()
            self._tell(SessionState.EXPIRED)
            if self._client._connection.connection_stopped.is_set():
                # Not the session's end: kazoo's own thread has failed, and would not connect again by itself.
                _log.error("connection.failed", hosts=self._hosts)
                self._loop.run_in_executor(None, self._client.start_async)
        else:
            self._connected.set()
            again = self._was_connected and not self._expired
            self._was_connected, self._expired = True, False
            if self._lease_timer is not None:
                self._lease_timer.cancel()
            self._prolong_lease()
            self._tell(SessionState.REESTABLISHED if again else SessionState.CONNECTED)
            for watch in list(self._watches):
                watch.look_everywhere()

    def _tell(self, state: SessionState) -> None:
        _log.info("session.changed", state=state.value, session=self.session_id)
        self._listeners.tell(state)


def _add(transaction: TransactionRequest, write: Write, there: bool) -> None:
    version = -1 if write.expected_version is None else write.expected_version
    if isinstance(write, Delete):
        transaction.delete(write.path, version)
    elif there:
        transaction.set_data(write.path, write.value, version)
    else:
        transaction.create(write.path, write.value, ephemeral=write.ephemeral)


def _refused(writes: Sequence[Write], results: Sequence[Any]) -> tuple[Write, Exception] | None:
    """The write that kept all others from happening, and why."""
    for write, result in zip(writes, results, strict=True):
        if isinstance(result, Exception) and not isinstance(
            result, zk.RolledBackError | zk.RuntimeInconsistency
        ):
            return write, result
    return None


def _overtaken(write: Write, error: Exception) -> bool:
    """Whether someone has made or deleted, since we looked, what this write takes as it comes: look again."""
    if isinstance(write, Delete):
        return False
    if isinstance(error, zk.NodeExistsError):
        return write.expected_version is None
    return isinstance(error, zk.NoNodeError) and write.expected_version in (None, MUST_NOT_EXIST)


def _resolve(future: asyncio.Future[Any], done: IAsyncResult) -> None:
    if future.done():
        return  # The caller has given up.
    if done.exception is not None:
        future.set_exception(done.exception)
    else:
        future.set_result(done.value)


def _session_name(client_id: int) -> str:
    return f"{client_id & 0xFFFFFFFFFFFFFFFF:x}"


def _check_record(path: str, value: bytes) -> None:
    check_path(path)
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(path, len(value), VALUE_BYTES_MAX)


@contextlib.contextmanager
def _translated(path: str, expected_version: int | None) -> Iterator[None]:
    """ZooKeeper's errors in this room's words."""
    try:
        yield
    except zk.NodeExistsError:
        raise AlreadyExists(path) from None
    except zk.BadVersionError:
        raise BadVersion(path, expected_version, UNKNOWN_VERSION) from None
    except zk.NoNodeError:
        raise BadVersion(path, expected_version, None) from None
    except zk.NotEmptyError:
        raise NotEmpty(path) from None
    except zk.NoChildrenForEphemeralsError:
        raise InvalidPath(path, "its parent is ephemeral and cannot have children") from None
    except zk.KazooException as error:
        raise MetadataError(f"{path}: ZooKeeper refused ({type(error).__name__} {error})") from error
