"""What a transaction of etcd is put together from, and those of several writes. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from magnetar.metadata import etcd_pb2 as pb
from magnetar.metadata.batch import Delete, Put, Write
from magnetar.metadata.errors import AlreadyExists, BadVersion, InvalidPath, NotEmpty, NotFound
from magnetar.metadata.etcd_keys import Keys, encode_stamped
from magnetar.metadata.paths import with_ancestors
from magnetar.metadata.store import MUST_NOT_EXIST


def in_range(
    key: bytes, end: bytes = b"", *, keys_only: bool = False, count_only: bool = False
) -> pb.RequestOp:
    return pb.RequestOp(
        request_range=pb.RangeRequest(key=key, range_end=end, keys_only=keys_only, count_only=count_only)
    )


def put(key: bytes, value: bytes, lease: int) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes, end: bytes = b"") -> pb.RequestOp:
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=end))


def absent(key: bytes, end: bytes = b"") -> pb.Compare:
    """That the key is not there, or none of a range: of an empty range, etcd compares zero."""
    return pb.Compare(
        result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=key, range_end=end, create_revision=0
    )


def present(key: bytes) -> pb.Compare:
    return pb.Compare(result=pb.Compare.GREATER, target=pb.Compare.CREATE, key=key, create_revision=0)


def unchanged(key: bytes, revision: int) -> pb.Compare:
    """That the key was last written at that revision; 0 where it was not there."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)


def lasting(key: bytes) -> pb.Compare:
    """That the record is not ephemeral."""
    return pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.LEASE, key=key, lease=0)


def batch_transaction(
    keys: Keys,
    writes: Sequence[Write],
    found: Mapping[str, pb.KeyValue],
    occupied: Collection[str],
    lease: int,
    now_ms: int,
) -> tuple[pb.TxnRequest, list[int | None]]:
    """The transaction that does all of `writes` if nothing has changed since it was looked, and what it will answer.

    Args:
        found: what was there of the paths and their ancestors.
        occupied: those to be deleted that have children.
    Raises:
        BadVersion, AlreadyExists, NotFound, NotEmpty, InvalidPath: what was found forbids it.
    """
    txn = pb.TxnRequest()
    versions: list[int | None] = []
    made: set[str] = set()
    for write in writes:
        node, kv = keys.node(write.path), found.get(write.path)
        _check_expected(write, kv)
        txn.compare.append(unchanged(node, kv.mod_revision) if kv is not None else absent(node))
        if isinstance(write, Delete):
            if write.path in occupied:
                raise NotEmpty(write.path)
            txn.compare.append(absent(*keys.children(write.path)))
            txn.success.extend(
                (delete(node), delete(keys.child(write.path)), delete(keys.counter(write.path)))
            )
            versions.append(None)
            continue
        stamped = encode_stamped(now_ms, write.value)
        if kv is not None:
            txn.success.append(
                pb.RequestOp(request_put=pb.PutRequest(key=node, value=stamped, ignore_lease=True))
            )
            versions.append(kv.version)  # etcd counts from 1, we from 0: its version before is ours after.
            continue
        _make_parents(txn, keys, write.path, found, made, now_ms)
        own = lease if write.ephemeral else 0
        txn.success.append(put(node, stamped, own))
        txn.success.append(put(keys.child(write.path), encode_stamped(now_ms, b""), own))
        versions.append(0)
    return txn, versions


def _check_expected(write: Write, kv: pb.KeyValue | None) -> None:
    expected = write.expected_version
    if kv is None:
        if isinstance(write, Delete):
            raise NotFound(write.path)
        if expected not in (None, MUST_NOT_EXIST):
            raise BadVersion(write.path, expected, None)
        return
    if isinstance(write, Put) and expected == MUST_NOT_EXIST:
        raise AlreadyExists(write.path)
    if expected is not None and expected != kv.version - 1:
        raise BadVersion(write.path, expected, kv.version - 1)


def _make_parents(
    txn: pb.TxnRequest,
    keys: Keys,
    path: str,
    found: Mapping[str, pb.KeyValue],
    made: set[str],
    now_ms: int,
) -> None:
    for step in list(with_ancestors(path))[1:]:
        if step in made:
            return
        made.add(step)
        node = keys.node(step)
        if step in found:
            if found[step].lease:
                raise InvalidPath(path, f"{step} is ephemeral and cannot have children")
            txn.compare.extend((present(node), lasting(node)))
            return
        txn.compare.append(absent(node))
        txn.success.append(put(node, encode_stamped(now_ms, b""), 0))
        txn.success.append(put(keys.child(step), encode_stamped(now_ms, b""), 0))
