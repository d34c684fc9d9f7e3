"""The semantics of a record tree, apart from where its records are kept. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from magnetar.metadata.batch import Put, Write, check_batch
from magnetar.metadata.errors import (
    AlreadyExists,
    BadVersion,
    InvalidPath,
    NotEmpty,
    NotFound,
    ValueTooLarge,
)
from magnetar.metadata.paths import check_path, join, parent
from magnetar.metadata.store import MUST_NOT_EXIST, VALUE_BYTES_MAX, Change, Notification, Versioned


@dataclass(frozen=True, slots=True)
class Node:
    """A record with all that is kept about it."""

    value: bytes = b""
    version: int = 0
    session: str = ""
    created_ms: int = 0
    modified_ms: int = 0
    next_sequence: int = 0  # The number the next sequential child gets.

    def versioned(self) -> Versioned:
        return Versioned(self.value, self.version, self.session, self.created_ms, self.modified_ms)


class NodeStorage(Protocol):
    """Where nodes are kept."""

    def read(self, path: str) -> Node | None: ...

    def child_names(self, path: str) -> list[str]:
        """Sorted."""
        ...

    def has_children(self, path: str) -> bool: ...

    def write(self, changes: Sequence[tuple[str, Node | None]]) -> None:
        """Apply all changes or none; None removes the node."""
        ...


class Tree:
    """Checks each wish against what is there, carries it out, and says what watchers should hear."""

    __slots__ = ("_storage",)

    def __init__(self, storage: NodeStorage) -> None:
        self._storage = storage

    def get(self, path: str) -> Versioned | None:
        node = self._storage.read(check_path(path))
        return None if node is None else node.versioned()

    def exists(self, path: str) -> bool:
        return path == "/" or self._storage.read(check_path(path)) is not None

    def children(self, path: str) -> list[str]:
        return self._storage.child_names(check_path(path))

    def put(
        self, path: str, value: bytes, expected_version: int | None, session: str, now_ms: int
    ) -> tuple[int, list[Notification]]:
        """Create or change a node; `session` is "" unless a new node is to be ephemeral."""
        version, changes, heard = self._putting(path, value, expected_version, session, now_ms)
        self._storage.write(changes)
        return version, heard

    def write_all(
        self, writes: Sequence[Write], session: str, now_ms: int
    ) -> tuple[list[int | None], list[Notification]]:
        """Carry out all or none; answers the new version of each record that was put."""
        check_batch(writes)
        versions: list[int | None] = []
        changes: dict[str, Node | None] = {}
        heard: dict[Notification, None] = {}  # Once each: writes may share the parents they make.
        for write in writes:
            version: int | None = None
            if isinstance(write, Put):
                owner = session if write.ephemeral else ""
                version, made, told = self._putting(
                    write.path, bytes(write.value), write.expected_version, owner, now_ms
                )
                changes.update(made)
            else:
                told = self._deleting(write.path, write.expected_version)
                changes[write.path] = None
            versions.append(version)
            heard.update(dict.fromkeys(told))
        self._storage.write(list(changes.items()))
        return versions, list(heard)

    def _putting(
        self, path: str, value: bytes, expected_version: int | None, session: str, now_ms: int
    ) -> tuple[int, list[tuple[str, Node | None]], list[Notification]]:
        _check_value(path, value)
        node = self._storage.read(check_path(path))
        if node is None and path == "/":
            node = Node()
        if node is None:
            if expected_version not in (None, MUST_NOT_EXIST):
                raise BadVersion(path, expected_version, None)
            changes, heard = self._missing_parents(path, now_ms)
            changes.append((path, Node(value, 0, session, now_ms, now_ms)))
            return 0, changes, [*heard, *_created(path)]
        if expected_version == MUST_NOT_EXIST:
            raise AlreadyExists(path)
        if expected_version is not None and expected_version != node.version:
            raise BadVersion(path, expected_version, node.version)
        changed = replace(node, value=value, version=node.version + 1, modified_ms=now_ms)
        return changed.version, [(path, changed)], [Notification(Change.MODIFIED, path)]

    def create_sequential(
        self, prefix: str, value: bytes, session: str, now_ms: int
    ) -> tuple[str, list[Notification]]:
        """Create a numbered child; its parent's counter moves in the same write."""
        check_path(f"{prefix}0")
        folder = parent(prefix)
        above = self._storage.read(folder)
        changes, heard = ([], []) if above is not None else self._missing_parents(prefix, now_ms)
        if above is None:
            above = Node(created_ms=now_ms, modified_ms=now_ms)
        elif above.session:
            raise InvalidPath(prefix, f"{folder} is ephemeral and cannot have children")
        path = f"{prefix}{above.next_sequence:010d}"
        _check_value(path, value)
        changes = [change for change in changes if change[0] != folder]
        changes.append((folder, replace(above, next_sequence=above.next_sequence + 1)))
        changes.append((path, Node(value, 0, session, now_ms, now_ms)))
        self._storage.write(changes)
        return path, [*heard, *_created(path)]

    def delete(self, path: str, expected_version: int | None) -> list[Notification]:
        heard = self._deleting(path, expected_version)
        self._storage.write([(path, None)])
        return heard

    def _deleting(self, path: str, expected_version: int | None) -> list[Notification]:
        node = self._storage.read(check_path(path))
        if path == "/":
            raise InvalidPath(path, "the root cannot be deleted")
        if node is None:
            raise NotFound(path)
        if expected_version is not None and expected_version != node.version:
            raise BadVersion(path, expected_version, node.version)
        if self._storage.has_children(path):
            raise NotEmpty(path)
        return _deleted(path)

    def delete_recursive(self, path: str) -> list[Notification]:
        """Delete a node and all below it in one write, children first in what watchers hear."""
        check_path(path)
        doomed: list[str] = []
        waiting = [path]
        while waiting:
            step = waiting.pop()
            doomed.append(step)
            waiting.extend(join(step, name) for name in self._storage.child_names(step))
        if path == "/" or self._storage.read(path) is None:
            doomed.remove(path)
        doomed.reverse()
        self._storage.write([(step, None) for step in doomed])
        return [notification for step in doomed for notification in _deleted(step)]

    def end_session(self, paths: Sequence[str]) -> list[Notification]:
        """Delete the ephemerals of a session that has ended."""
        existing = [path for path in paths if self._storage.read(path) is not None]
        self._storage.write([(path, None) for path in existing])
        return [notification for path in existing for notification in _deleted(path)]

    def _missing_parents(
        self, path: str, now_ms: int
    ) -> tuple[list[tuple[str, Node | None]], list[Notification]]:
        """The nodes to make above `path`, topmost first."""
        missing: list[str] = []
        step = parent(path)
        while step != "/":
            node = self._storage.read(step)
            if node is not None:
                if node.session:
                    raise InvalidPath(path, f"{step} is ephemeral and cannot have children")
                break
            missing.append(step)
            step = parent(step)
        missing.reverse()
        node = Node(created_ms=now_ms, modified_ms=now_ms)
        return [(step, node) for step in missing], [heard for step in missing for heard in _created(step)]


def _check_value(path: str, value: bytes) -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(path, len(value), VALUE_BYTES_MAX)


def _created(path: str) -> list[Notification]:
    return [Notification(Change.CREATED, path), Notification(Change.CHILDREN_CHANGED, parent(path))]


def _deleted(path: str) -> list[Notification]:
    return [Notification(Change.DELETED, path), Notification(Change.CHILDREN_CHANGED, parent(path))]
