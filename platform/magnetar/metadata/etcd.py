"""Metadata in etcd, for a cluster.

Every operation is one transaction, or a read and a transaction that compares what was read; a comparison that
fails brings along what is there now. Reads are asked again until the time-out; writes never are, because a write
whose answer is lost may have happened: the caller hears StoreUnavailable and has to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import parse_qs

from magnetar.environment.clock import Clock, SystemClock
from magnetar.metadata import etcd_pb2 as pb
from magnetar.metadata.batch import Delete, Put, Write, check_batch
from magnetar.metadata.errors import (
    AlreadyExists,
    BadVersion,
    InvalidPath,
    NotEmpty,
    NotFound,
    SessionExpired,
    StoreClosed,
    StoreRefused,
    StoreUnavailable,
    ValueTooLarge,
)
from magnetar.metadata.etcd_connection import EtcdConnection
from magnetar.metadata.etcd_keys import Keys, decode_stamped, encode_stamped
from magnetar.metadata.etcd_session import EtcdSession
from magnetar.metadata.etcd_transactions import (
    absent,
    batch_transaction,
    delete,
    in_range,
    lasting,
    present,
    put,
    unchanged,
)
from magnetar.metadata.etcd_watch import EtcdWatch
from magnetar.metadata.paths import check_path, parent, with_ancestors
from magnetar.metadata.store import (
    MUST_NOT_EXIST,
    VALUE_BYTES_MAX,
    Listener,
    SessionListener,
    Versioned,
    Watch,
)
from magnetar.metadata.watches import SessionListeners

SESSION_TIMEOUT_S = 10.0
_PATIENCE = 1 / 2
"""The share of a session's time-out that one call may take, so that a read is asked of two servers at least."""
_RETRY_S = 0.05
_IN_FLIGHT_MAX = 128  # A keep-alive queues behind no more than these.
_OPERATIONS_MAX = 100  # In one transaction; etcd's own limit is 128 by default.

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Counter:
    """The counter of a folder as it was read: the number it gives, and the revision that wrote it."""

    key: bytes
    number: int
    changed: int


class _CounterMoved(Exception):
    """Another session has taken the number."""


class EtcdStore:
    """One session with an etcd cluster."""

    def __init__(self, servers: Sequence[str], chroot: str, timeout_s: float, clock: Clock) -> None:
        """Use `open`."""
        self._timeout_s = timeout_s
        self._clock = clock
        self._keys = Keys(chroot)
        self._connection = EtcdConnection(servers)
        self._listeners = SessionListeners()
        self._session = EtcdSession(self._connection, timeout_s, clock, self._listeners.tell)
        self._watches: set[EtcdWatch] = set()
        self._numbering = asyncio.Lock()
        self._room = asyncio.Semaphore(_IN_FLIGHT_MAX)
        self._closed = False

    @classmethod
    async def open(cls, address: str, *, clock: Clock | None = None) -> EtcdStore:
        """Connect.

        Args:
            address: `host:port,host:port/chroot?session_timeout_s=10`.
        Raises:
            StoreUnavailable: no server answered within a session time-out.
            StoreRefused: the address is malformed.
        """
        place, _, query = address.partition("?")
        hosts, slash, chroot = place.partition("/")
        servers = [server for server in hosts.split(",") if server]
        try:
            timeout_s = float(parse_qs(query).get("session_timeout_s", [str(SESSION_TIMEOUT_S)])[0])
            if not servers or timeout_s <= 0:
                raise ValueError("it names no server" if not servers else "a session must last some time")
            check_path(slash + chroot or "/")
        except ValueError as error:
            raise StoreRefused(f"bad etcd address {address!r}: {error}") from error
        store = cls(servers, slash + chroot, timeout_s, clock if clock is not None else SystemClock())
        try:
            await store._again(store._make_root)
            await store._again(store._session.start)
        except BaseException as error:
            await store.close()
            if isinstance(error, StoreUnavailable):
                raise StoreUnavailable(
                    f"no etcd at {hosts} answered within {timeout_s:g} s; check that it runs ({error})"
                ) from error
            raise
        return store

    @property
    def session_id(self) -> str:
        return self._session.name

    @property
    def lease_until(self) -> float:
        return self._session.lease.until

    async def get(self, path: str) -> Versioned | None:
        node, child = self._keys.node(check_path(path)), self._keys.child(path)
        txn = pb.TxnRequest(success=[in_range(node), in_range(child)])
        found, placed = (response.response_range.kvs for response in (await self._read(txn)).responses)
        if not found:
            return None
        modified_ms, value = decode_stamped(node, found[0].value)
        created_ms = decode_stamped(child, placed[0].value)[0] if placed else modified_ms
        lease = found[0].lease
        return Versioned(value, found[0].version - 1, f"{lease:x}" if lease else "", created_ms, modified_ms)

    async def exists(self, path: str) -> bool:
        txn = pb.TxnRequest(success=[in_range(self._keys.node(check_path(path)), count_only=True)])
        return bool((await self._read(txn)).responses[0].response_range.count)

    async def children(self, path: str) -> list[str]:
        first, end = self._keys.children(check_path(path))
        txn = pb.TxnRequest(success=[in_range(first, end, keys_only=True)])
        kvs = (await self._read(txn)).responses[0].response_range.kvs
        return sorted(kv.key[len(first) :].decode() for kv in kvs)

    async def put(
        self, path: str, value: bytes, *, expected_version: int | None = None, ephemeral: bool = False
    ) -> int:
        _check_record(path, value)
        if expected_version == MUST_NOT_EXIST:
            await self._create(path, value, ephemeral)
            return 0
        if expected_version is not None:
            return await self._set(path, value, expected_version)
        while True:
            version = await self._overwrite(path, value)
            if version is not None:
                return version
            try:
                await self._create(path, value, ephemeral)
            except AlreadyExists:
                continue
            return 0

    async def write_all(self, writes: Sequence[Write]) -> list[int | None]:
        check_batch(writes)
        lease = self._session.id
        if not lease and any(isinstance(write, Put) and write.ephemeral for write in writes):
            raise SessionExpired("there is no etcd session now; ask again once it is connected")
        while True:
            looked_at = [path for write in writes for path in with_ancestors(write.path)]
            found = await self._look(dict.fromkeys(looked_at))
            occupied = [
                write.path
                for write in writes
                if isinstance(write, Delete) and await self._has_children(write.path)
            ]
            txn, versions = batch_transaction(
                self._keys, writes, found, occupied, lease, self._clock.time_ms()
            )
            if len(txn.success) > _OPERATIONS_MAX:  # It is the parents that are so many.
                for path in looked_at:
                    if path not in found and not any(write.path == path for write in writes):
                        with contextlib.suppress(AlreadyExists):
                            await self._create(path, b"", False)
            elif (await self._txn(txn)).succeeded:
                return versions

    async def _look(self, paths: Iterable[str]) -> dict[str, pb.KeyValue]:
        """The `node` keys that exist, without their values."""
        found: dict[str, pb.KeyValue] = {}
        waiting = [self._keys.node(path) for path in paths]
        for start in range(0, len(waiting), _OPERATIONS_MAX):
            some = waiting[start : start + _OPERATIONS_MAX]
            answer = await self._read(pb.TxnRequest(success=[in_range(key, keys_only=True) for key in some]))
            for response in answer.responses:
                for kv in response.response_range.kvs:
                    found[self._keys.path_of(kv.key)] = kv
        return found

    async def _has_children(self, path: str) -> bool:
        txn = pb.TxnRequest(success=[in_range(*self._keys.children(path), count_only=True)])
        return bool((await self._read(txn)).responses[0].response_range.count)

    async def create_sequential(self, prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        _check_record(f"{prefix}0", value)
        key = self._keys.counter(parent(prefix))
        async with self._numbering:  # Our own calls need not race each other.
            while True:
                kvs = (
                    (await self._read(pb.TxnRequest(success=[in_range(key)]))).responses[0].response_range.kvs
                )
                counter = (
                    _Counter(key, int(kvs[0].value), kvs[0].mod_revision) if kvs else _Counter(key, 0, 0)
                )
                path = f"{prefix}{counter.number:010d}"
                try:
                    await self._create(path, value, ephemeral, counter)
                except (_CounterMoved, AlreadyExists) as error:
                    if isinstance(error, AlreadyExists):  # Someone made a record of that very name by hand.
                        await self._skip(counter)
                    continue
                return path

    async def delete(self, path: str, *, expected_version: int | None = None) -> None:
        node = self._keys.node(check_path(path))
        if path == "/":
            raise InvalidPath(path, "the root cannot be deleted")
        first, end = self._keys.children(path)
        while True:
            txn = pb.TxnRequest(success=[in_range(node), in_range(first, end, count_only=True)])
            found, children = (response.response_range for response in (await self._read(txn)).responses)
            if not found.kvs:
                raise NotFound(path)
            version, changed = found.kvs[0].version - 1, found.kvs[0].mod_revision
            if expected_version is not None and expected_version != version:
                raise BadVersion(path, expected_version, version)
            if children.count:
                raise NotEmpty(path)
            txn = pb.TxnRequest(
                compare=[
                    unchanged(node, changed),
                    absent(first, end),
                ],
                success=[delete(node), delete(self._keys.child(path)), delete(self._keys.counter(path))],
            )
            if (await self._txn(txn)).succeeded:
                return

    async def delete_recursive(self, path: str) -> None:
        """Here it is atomic."""
        operations = [delete(first, end) for first, end in self._keys.below(check_path(path))]
        operations.append(delete(self._keys.counter(path)))
        if path != "/":
            operations += [delete(self._keys.node(path)), delete(self._keys.child(path))]
        await self._txn(pb.TxnRequest(success=operations))

    def watch(self, prefix: str, listener: Listener) -> Watch:
        watch = EtcdWatch(self._connection, self._keys, check_path(prefix), listener, self._watches.discard)
        self._watches.add(watch)
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
        await self._session.close()
        await self._connection.close()

    # Writing.

    async def _set(self, path: str, value: bytes, expected_version: int) -> int:
        node = self._keys.node(path)
        answer = await self._txn(
            pb.TxnRequest(
                compare=[
                    pb.Compare(
                        result=pb.Compare.EQUAL,
                        target=pb.Compare.VERSION,
                        key=node,
                        version=expected_version + 1,
                    )
                ],
                success=[self._put_existing(node, value)],
                failure=[in_range(node, keys_only=True)],
            )
        )
        if answer.succeeded:
            return expected_version + 1
        found = answer.responses[0].response_range.kvs
        raise BadVersion(path, expected_version, found[0].version - 1 if found else None)

    async def _overwrite(self, path: str, value: bytes) -> int | None:
        """Change a record whatever its version; None where there is none."""
        node = self._keys.node(path)
        answer = await self._txn(
            pb.TxnRequest(
                compare=[present(node)],
                success=[self._put_existing(node, value)],
            )
        )
        # etcd counts from 1: the version before, as it counts, is the version after, as we do.
        return answer.responses[0].response_put.prev_kv.version if answer.succeeded else None

    def _put_existing(self, node: bytes, value: bytes) -> pb.RequestOp:
        stamped = encode_stamped(self._clock.time_ms(), value)
        return pb.RequestOp(
            request_put=pb.PutRequest(key=node, value=stamped, ignore_lease=True, prev_kv=True)
        )

    async def _create(
        self, path: str, value: bytes, ephemeral: bool, counter: _Counter | None = None
    ) -> None:
        """Make a record, and the parents that are missing."""
        lease = self._session.id if ephemeral else 0
        if ephemeral and not lease:
            raise SessionExpired("there is no etcd session now; ask again once it is connected")
        ancestors = list(with_ancestors(path))[1:]
        missing: list[str] = []
        ground = parent(path)  # The nearest ancestor that exists: its parent at first, to be tried.
        while True:
            txn = self._creation(path, value, lease, missing, ground)
            txn.failure.extend(in_range(self._keys.node(step), keys_only=True) for step in (path, *ancestors))
            if counter is not None:
                self._count(txn, counter)
            answer = await self._txn(txn)
            if answer.succeeded:
                return
            found = [response.response_range.kvs for response in answer.responses]
            if found[0]:
                raise AlreadyExists(path)
            missing = []
            for step, kvs in zip(ancestors, found[1:], strict=False):
                if kvs:
                    if kvs[0].lease:
                        raise InvalidPath(path, f"{step} is ephemeral and cannot have children")
                    ground = step
                    break
                missing.insert(0, step)
            if counter is not None:
                last = found[-1]
                if (last[0].mod_revision if last else 0) != counter.changed:
                    raise _CounterMoved

    def _creation(
        self, path: str, value: bytes, lease: int, missing: Sequence[str], ground: str
    ) -> pb.TxnRequest:
        keys, now_ms = self._keys, self._clock.time_ms()
        txn = pb.TxnRequest(
            compare=[
                present(keys.node(ground)),
                lasting(keys.node(ground)),
            ]
        )
        for step in (*missing, path):
            own = (value, lease) if step == path else (b"", 0)
            txn.compare.append(absent(keys.node(step)))
            txn.success.append(put(keys.node(step), encode_stamped(now_ms, own[0]), own[1]))
            txn.success.append(put(keys.child(step), encode_stamped(now_ms, b""), own[1]))
        return txn

    def _count(self, txn: pb.TxnRequest, counter: _Counter) -> None:
        """Take a number in the same transaction."""
        txn.compare.append(unchanged(counter.key, counter.changed))
        txn.success.append(put(counter.key, str(counter.number + 1).encode(), 0))
        txn.failure.append(in_range(counter.key, keys_only=True))

    async def _skip(self, counter: _Counter) -> None:
        txn = pb.TxnRequest()
        self._count(txn, counter)
        await self._txn(txn)

    async def _make_root(self) -> None:
        root = self._keys.node("/")
        await self._txn(
            pb.TxnRequest(
                compare=[absent(root)],
                success=[put(root, encode_stamped(self._clock.time_ms(), b""), 0)],
            )
        )

    # Asking.

    async def _read(self, txn: pb.TxnRequest) -> pb.TxnResponse:
        """Ask something that may be asked twice."""
        return await self._again(lambda: self._txn(txn))

    async def _again(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        while True:
            try:
                return await ask()
            except StoreUnavailable:
                if self._closed or loop.time() + _RETRY_S >= deadline:
                    raise
            await asyncio.sleep(_RETRY_S)

    async def _txn(self, txn: pb.TxnRequest) -> pb.TxnResponse:
        if self._closed:
            raise StoreClosed
        try:
            async with self._room:
                return await self._connection.ask("KV/Txn", txn, pb.TxnResponse, self._timeout_s * _PATIENCE)
        except SessionExpired:
            self._session.look()
            raise


def _check_record(path: str, value: bytes) -> None:
    check_path(path)
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(path, len(value), VALUE_BYTES_MAX)
