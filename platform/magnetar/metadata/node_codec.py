"""How a record tree lies in an ordered key-value store.

Keys (one byte says what it is):

    n | depth u16 | path      a node; the depth first, so that the children of a path lie side by side
    e | path                  the node at `path` is ephemeral

A node's value, big-endian: format u8 = 1, version u64, created ms i64, modified ms i64, next sequence u64,
length of the session u8, session, value.
"""

from __future__ import annotations

import struct

from magnetar.metadata.errors import MetadataError
from magnetar.metadata.tree import Node

EPHEMERALS = b"e"

_FORMAT = 1
_HEADER = struct.Struct(">BQqqQB")


def node_key(path: str) -> bytes:
    depth = 0 if path == "/" else path.count("/")
    return b"n" + depth.to_bytes(2, "big") + path.encode()


def child_prefix(path: str) -> bytes:
    """What the keys of all children of `path`, and no others, begin with."""
    if path == "/":
        return b"n\x00\x01/"
    return b"n" + (path.count("/") + 1).to_bytes(2, "big") + path.encode() + b"/"


def ephemeral_key(path: str) -> bytes:
    return EPHEMERALS + path.encode()


def encode_node(node: Node) -> bytes:
    session = node.session.encode()
    header = _HEADER.pack(
        _FORMAT, node.version, node.created_ms, node.modified_ms, node.next_sequence, len(session)
    )
    return header + session + node.value


def decode_node(path: str, data: bytes) -> Node:
    """Raises MetadataError for a format of a newer version, or bytes that are no node."""
    if len(data) < _HEADER.size or data[0] != _FORMAT:
        raise MetadataError(
            f"{path}: a record of format {data[:1].hex() or 'none'}, where this version knows {_FORMAT}"
        )
    _, version, created_ms, modified_ms, next_sequence, session_length = _HEADER.unpack_from(data)
    start = _HEADER.size + session_length
    return Node(
        value=data[start:],
        version=version,
        session=data[_HEADER.size : start].decode(),
        created_ms=created_ms,
        modified_ms=modified_ms,
        next_sequence=next_sequence,
    )
