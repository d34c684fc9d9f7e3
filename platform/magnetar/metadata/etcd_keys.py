"""How a record tree lies in etcd's flat key space. Pure.

Below the chroot (bytes; \\0 cannot occur in a path, and `0` is the byte after `/`):

    /node/a/b       the record at `/a/b`: format u8 = 1, modified ms i64, value; its version is etcd's, less one
    /child/a\\0b     `b` is a child of `/a`: format u8 = 1, created ms i64
    /next/a         the number the next sequential child of `/a` gets, in decimals

An ephemeral record's two keys hang on the lease of its session. `/node/` is the root; it always exists.
"""

from __future__ import annotations

import struct

from magnetar.metadata.errors import MetadataError
from magnetar.metadata.paths import parent

_FORMAT = 1
_STAMP = struct.Struct(">Bq")

KeyRange = tuple[bytes, bytes]
"""From the first key on, up to but without the second."""


class Keys:
    """The keys of all records below one chroot."""

    __slots__ = ("_child", "_next", "_node")

    def __init__(self, chroot: str) -> None:
        """`chroot` is "" or begins with a slash."""
        above = chroot.rstrip("/").encode()
        self._node = above + b"/node"
        self._child = above + b"/child"
        self._next = above + b"/next"

    def node(self, path: str) -> bytes:
        return self._node + path.encode()

    def path_of(self, node_key: bytes) -> str:
        """The path whose `node` key this is."""
        return node_key[len(self._node) :].decode()

    def child(self, path: str) -> bytes:
        """What says that `path` is a child of its parent."""
        return self._child + parent(path).encode() + b"\0" + path.rpartition("/")[2].encode()

    def children(self, path: str) -> KeyRange:
        above = self._child + path.encode()
        return above + b"\0", above + b"\1"

    def counter(self, path: str) -> bytes:
        return self._next + path.encode()

    def subtree(self, path: str) -> KeyRange:
        """The `node` keys of `path` and all below it; of some siblings, too: `/a.b` lies between `/a` and `/a/b`."""
        if path == "/":
            return self._node + b"/", self._node + b"0"
        return self.node(path), self.node(path) + b"0"

    def below(self, path: str) -> list[KeyRange]:
        """All keys of all records below `path`, and none else."""
        if path == "/":
            return [
                (self._node + b"/\0", self._node + b"0"),
                (self._child + b"/", self._child + b"0"),
                (self._next + b"/", self._next + b"0"),
            ]
        families = [(family + path.encode()) for family in (self._node, self._child, self._next)]
        return [(family + b"/", family + b"0") for family in families] + [self.children(path)]


def encode_stamped(at_ms: int, value: bytes) -> bytes:
    return _STAMP.pack(_FORMAT, at_ms) + value


def decode_stamped(key: bytes, data: bytes) -> tuple[int, bytes]:
    """Raises MetadataError for a format of a newer version, or bytes that are no record."""
    if len(data) < _STAMP.size or data[0] != _FORMAT:
        raise MetadataError(
            f"{key!r} in etcd has format {data[:1].hex() or 'none'}, where this version knows {_FORMAT}"
        )
    return _STAMP.unpack_from(data)[1], data[_STAMP.size :]
