"""Paths of records: `/admin/policies/public/default`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from magnetar.metadata.errors import InvalidPath

# What ZooKeeper refuses in a name is refused everywhere, so that no store accepts what another cannot hold.
_FORBIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_EMPTY_OR_DOTS = re.compile(r"/(?=/|$)|/\.{1,2}(?=/|$)")


def check_path(path: str) -> str:
    """`path` itself, if it may name a record: absolute, no empty, `.` or `..` component, no control
    characters. Raises InvalidPath."""
    if path == "/":
        return path
    if not path.startswith("/"):
        raise InvalidPath(path, "it must begin with '/'")
    if _EMPTY_OR_DOTS.search(path):
        raise InvalidPath(path, "empty names, '.' and '..' are not allowed")
    forbidden = _FORBIDDEN.search(path)
    if forbidden:
        raise InvalidPath(path, f"character {forbidden.group()!r} is not allowed")
    return path


def parent(path: str) -> str:
    """`/a` of `/a/b`; the root is its own parent."""
    return path[: path.rindex("/")] or "/"


def join(path: str, name: str) -> str:
    """`/a/b` of `/a` and `b`."""
    return f"/{name}" if path == "/" else f"{path}/{name}"


def with_ancestors(path: str) -> Iterator[str]:
    """`path`, its parent, and so on up to the root."""
    while path != "/":
        yield path
        path = parent(path)
    yield path
