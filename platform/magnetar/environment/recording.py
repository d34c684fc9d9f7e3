"""A disk that remembers what was made durable, and rebuilds what a power cut may leave.

    disk = RecordingDisk(directory)
    ... a receipt is sent; at = disk.mark() ...
    disk.worst_image(at, elsewhere)       # then open `elsewhere` and look for what was promised

SIGKILL proves nothing about syncs, because the page cache outlives the process. Here every operation is
written down in order, and an image contains only what some sync covered: un-synced writes, sizes and
truncations are dropped, and so is every creation, renaming and removal whose directory was not synced. With
a random source, each un-synced page and each un-synced name is kept or lost by the toss of a coin instead:
torn writes, writes out of order, and renames that outlive the content they should have followed.

A sync covers what had finished when it began, so operations of several threads are judged by the strictest
order they could have had.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from magnetar.environment.disk import Buffer, Disk, DiskFile, SystemDisk, replace_file

_PAGE = 4096


@dataclass(frozen=True, slots=True)
class _Written:
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Resized:
    node: int
    size: int


@dataclass(frozen=True, slots=True)
class _Synced:
    node: int
    covers: int  # Operations numbered below this one are covered.


@dataclass(frozen=True, slots=True)
class _Named:
    """The entry `name` of `directory` now means `node`; None: there is no such entry."""

    directory: str
    name: str
    node: int | None


@dataclass(frozen=True, slots=True)
class _Renamed:
    """One step for whoever looks at the directory; a power cut may still take the two names for two."""

    new: _Named
    old: _Named


@dataclass(frozen=True, slots=True)
class _DirectoryMade:
    directory: str


@dataclass(frozen=True, slots=True)
class _DirectorySynced:
    directory: str
    covers: int


_Change: TypeAlias = _Written | _Resized
_Operation: TypeAlias = _Change | _Synced | _Named | _Renamed | _DirectoryMade | _DirectorySynced


@dataclass(slots=True)
class _Content:
    """The bytes of one file, whatever its name: what is durable, and what waits for a sync."""

    durable: bytearray = field(default_factory=bytearray)
    waiting: list[tuple[int, _Change]] = field(default_factory=list)

    def sync(self, covers: int) -> None:
        kept = []
        for number, change in self.waiting:
            if number < covers:
                _apply(self.durable, change)
            else:
                kept.append((number, change))
        self.waiting = kept

    def survivor(self, coin: random.Random | None) -> bytearray:
        if coin is None or not self.waiting:
            return self.durable
        image = bytearray(self.durable)
        for _, change in self.waiting:
            if isinstance(change, _Resized):
                if coin.random() < 0.5:
                    _apply(image, change)
                continue
            for start, piece in _pages(change):
                if coin.random() < 0.5:
                    _apply(image, _Written(change.node, start, piece))
        return image


class _Replay:
    """The state of the durable world after a prefix of the operations."""

    def __init__(
        self, directories: set[str], names: dict[tuple[str, str], int], files: dict[int, bytes]
    ) -> None:
        self.position = 0
        self._directories = directories
        self._names = names
        self._waiting_names: list[tuple[int, _Named]] = []
        self._contents = {node: _Content(bytearray(data)) for node, data in files.items()}

    def advance(self, operations: Sequence[_Operation], until: int) -> None:
        for number in range(self.position, until):
            self._play(number, operations[number])
        self.position = until

    def write_image(self, into: Path, coin: random.Random | None) -> None:
        names = dict(self._names)
        for _, change in self._waiting_names:
            if coin is not None and coin.random() < 0.5:
                _rename(names, change)
        for directory in sorted(self._directories):
            (into / directory).mkdir(parents=True, exist_ok=True)
        for (directory, name), node in sorted(names.items()):
            (into / directory / name).write_bytes(self._content(node).survivor(coin))

    def _play(self, number: int, operation: _Operation) -> None:
        match operation:
            case _Written() | _Resized():
                self._content(operation.node).waiting.append((number, operation))
            case _Synced(node, covers):
                self._content(node).sync(covers)
            case _Named():
                self._waiting_names.append((number, operation))
            case _Renamed(new, old):
                self._waiting_names += [(number, new), (number, old)]
            case _DirectoryMade(directory):
                self._directories.add(directory)
            case _DirectorySynced(directory, covers):
                kept = []
                for entry in self._waiting_names:
                    if entry[1].directory == directory and entry[0] < covers:
                        _rename(self._names, entry[1])
                    else:
                        kept.append(entry)
                self._waiting_names = kept

    def _content(self, node: int) -> _Content:
        return self._contents.setdefault(node, _Content())


class RecordingFile:
    """A file of a `RecordingDisk`."""

    __slots__ = ("_disk", "_file", "_node")

    def __init__(self, disk: RecordingDisk, file: DiskFile, node: int) -> None:
        self._disk = disk
        self._file = file
        self._node = node

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        written = self._file.write(offset, [data])
        self._disk.record(_Written(self._node, offset, data))
        return written

    def read(self, offset: int, size: int) -> bytes:
        return self._file.read(offset, size)

    def sync(self) -> None:
        covers = self._disk.mark()
        self._file.sync()
        self._disk.record(_Synced(self._node, covers))

    def allocate(self, offset: int, length: int) -> None:
        self._file.allocate(offset, length)
        self._disk.record(_Written(self._node, offset, bytes(length)))

    def forget(self, offset: int, length: int) -> None:
        self._file.forget(offset, length)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._disk.record(_Resized(self._node, size))

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class RecordingDisk:
    """A disk for tests. Only files below `root` may be touched; what is there already counts as durable.

    Everything written is kept in memory as well: meant for megabytes, not gigabytes.
    """

    def __init__(self, root: Path, inner: Disk | None = None) -> None:
        self._root = root.absolute()
        self._inner: Disk = inner if inner is not None else SystemDisk()
        self._lock = threading.Lock()
        self._operations: list[_Operation] = []
        self._nodes: dict[tuple[str, str], int] = {}
        self._next_node = 0
        directories: set[str] = set()
        files: dict[int, bytes] = {}
        for folder, _, names in os.walk(self._root):
            directory = self._directory(Path(folder))
            directories.add(directory)
            for name in names:
                node = self._new_node((directory, name))
                files[node] = (Path(folder) / name).read_bytes()
        initial = dict(self._nodes)
        self._start: Callable[[], _Replay] = lambda: _Replay(set(directories), dict(initial), files)
        self._replay = self._start()

    # What tests ask.

    def mark(self) -> int:
        """The number of operations so far: all of them numbered below it."""
        with self._lock:
            return len(self._operations)

    def worst_image(self, at: int, into: Path, *, coin: random.Random | None = None) -> None:
        """Write below `into` what a power cut after the first `at` operations leaves.

        Args:
            into: made if it is missing; must be empty.
            coin: None drops all that is not durable. Otherwise each un-synced page, size and name survives
                or not as this source decides: run several seeds.
        """
        with self._lock:
            if at > len(self._operations):
                raise ValueError(f"only {len(self._operations)} operations so far, not {at}")
            if at < self._replay.position:
                self._replay = self._start()
            self._replay.advance(self._operations, at)
            self._replay.write_image(into, coin)

    def record(self, operation: _Operation) -> None:
        """Number an operation that has been carried out. Called by this disk's files."""
        with self._lock:
            self._operations.append(operation)

    # The disk.

    def create(self, path: Path) -> RecordingFile:
        file = self._inner.create(path)
        with self._lock:
            key = self._key(path)
            node = self._new_node(key)
            self._operations.append(_Named(*key, node))
        return RecordingFile(self, file, node)

    def open(self, path: Path, *, writable: bool = False) -> RecordingFile:
        file = self._inner.open(path, writable=writable)
        with self._lock:
            node = self._nodes[self._key(path)]
        return RecordingFile(self, file, node)

    def list(self, directory: Path) -> list[str]:
        return self._inner.list(directory)

    def make_directory(self, path: Path) -> None:
        self._inner.make_directory(path)
        directory = self._directory(path)
        while directory != ".":
            self.record(_DirectoryMade(directory))
            directory = str(Path(directory).parent)

    def rename(self, source: Path, target: Path) -> None:
        old, new = self._key(source), self._key(target)
        with self._lock:
            self._inner.rename(source, target)
            node = self._nodes.pop(old)
            self._nodes[new] = node
            self._operations.append(_Renamed(_Named(*new, node), _Named(*old, None)))

    def remove(self, path: Path) -> None:
        key = self._key(path)
        with self._lock:
            self._inner.remove(path)
            self._nodes.pop(key, None)
            self._operations.append(_Named(*key, None))

    def exists(self, path: Path) -> bool:
        return self._inner.exists(path)

    def sync_directory(self, path: Path) -> None:
        covers = self.mark()
        self._inner.sync_directory(path)
        self.record(_DirectorySynced(self._directory(path), covers))

    def free_bytes(self, path: Path) -> int:
        return self._inner.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self._inner.total_bytes(path)

    def read_file(self, path: Path) -> bytes:
        return self._inner.read_file(path)

    def replace_file(self, path: Path, data: bytes) -> None:
        replace_file(self, path, data)

    def _new_node(self, key: tuple[str, str]) -> int:
        node = self._nodes[key] = self._next_node
        self._next_node += 1
        return node

    def _key(self, path: Path) -> tuple[str, str]:
        return self._directory(path.parent), path.name

    def _directory(self, path: Path) -> str:
        return str(path.absolute().relative_to(self._root))


def _apply(content: bytearray, change: _Change) -> None:
    if isinstance(change, _Resized):
        if change.size <= len(content):
            del content[change.size :]
        else:
            content.extend(bytes(change.size - len(content)))
        return
    end = change.offset + len(change.data)
    if change.offset > len(content):
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : end] = change.data


def _pages(change: _Written) -> list[tuple[int, bytes]]:
    """A write cut at page boundaries: what may survive or be lost by itself."""
    pieces = []
    offset, end = change.offset, change.offset + len(change.data)
    while offset < end:
        stop = min(end, (offset // _PAGE + 1) * _PAGE)
        pieces.append((offset, change.data[offset - change.offset : stop - change.offset]))
        offset = stop
    return pieces


def _rename(names: dict[tuple[str, str], int], change: _Named) -> None:
    if change.node is None:
        names.pop((change.directory, change.name), None)
    else:
        names[change.directory, change.name] = change.node
