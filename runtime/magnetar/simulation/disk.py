"""A disk in memory that forgets at a power cut what was not synced, tears what was being written, fills up and rots."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from magnetar.environment.disk import Buffer, replace_file
from magnetar.environment.errors import DiskFailed
from magnetar.simulation.process_loop import ProcessDied

SECTOR = 512


class _Node:
    """The bytes of a file: as programs see them, and as a power cut would leave them."""

    __slots__ = ("data", "durable", "pending")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.pending: list[tuple[int, bytes | None]] = []
        """Writes that no sync has covered; None: cut or extended to that size."""

    def sync(self) -> None:
        for at, data in self.pending:
            _apply(self.durable, at, data)
        self.pending.clear()

    def cut_power(self, dice: random.Random | None) -> None:
        """Keep what is durable, and of the rest what luck has it, sector by sector."""
        if dice is not None:
            for at, data in self.pending:
                if data is None:
                    if dice.random() < 0.5:
                        _apply(self.durable, at, None)
                    continue
                start = 0
                while start < len(data):
                    end = min(len(data), ((at + start) // SECTOR + 1) * SECTOR - at)
                    if dice.random() < 0.5:
                        _apply(self.durable, at + start, data[start:end])
                    start = end
        self.pending.clear()
        self.data = bytearray(self.durable)


class SimulatedDisk:
    """One machine's disk. It outlives processes; `life` tells which of them may use it now."""

    def __init__(self, dice: random.Random, *, capacity: int = 1 << 40) -> None:
        self._dice = dice
        self.capacity = capacity
        self.life = 0
        self.gone = False
        self.fail_syncs = 0
        """So many of the next syncs fail."""
        self.slow_until = 0.0
        self.slow_s = 0.0
        self.used = 0
        self.on_remove: Callable[[Path], None] | None = None
        self.directories: set[str] = set()
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._unsynced_names: list[tuple[str, str, _Node | None]] = []

    # What befalls it.

    def cut_power(self, *, worst: bool) -> None:
        """Lose what was not synced: all of it, or what luck has it."""
        dice = None if worst else self._dice
        for _, path, node in self._unsynced_names:
            if dice is not None and dice.random() < 0.5:
                _name(self._durable_names, path, node)
        self._unsynced_names.clear()
        self._names = dict(self._durable_names)
        for node in self._names.values():
            node.cut_power(dice)
        self._count()

    def flip(self, path: Path, offset: int, bit: int) -> None:
        node = self._names[str(path)]
        node.sync()
        for data in (node.data, node.durable):
            data[offset] ^= 1 << bit

    def files(self, below: Path) -> list[tuple[Path, int]]:
        """The files in a directory, and their sizes."""
        start = f"{below}/"
        return [
            (Path(path), len(self._names[path].data))
            for path in sorted(self._names)
            if path.startswith(start)
        ]

    def takes_s(self, now: float) -> float:
        """How long something takes of it."""
        quick = 0.0004 + self._dice.random() * 0.0008
        return quick + self._dice.random() * self.slow_s if now < self.slow_until else quick

    def durable(self, path: Path) -> bytes | None:
        """What a file would hold after a power cut that takes all it can. Nobody notices that somebody looked."""
        node = self._durable_names.get(str(path))
        return None if node is None else bytes(node.durable)

    def copy(self) -> dict[str, bytes]:
        """A backup: all files, as they are."""
        return {name: bytes(self._names[name].data) for name in sorted(self._names)}

    def become(self, backup: dict[str, bytes]) -> None:
        """Hold what a backup held, and nothing else."""
        self._unsynced_names.clear()
        self._names = {}
        for name, data in backup.items():
            node = self._names[name] = _Node()
            node.data, node.durable = bytearray(data), bytearray(data)
        self._durable_names = dict(self._names)
        self._count()

    # The disk.

    def create(self, path: Path) -> SimulatedFile:
        self._expect_alive()
        name = str(path)
        if name in self._names:
            raise FileExistsError(errno.EEXIST, "exists", name)
        node = _Node()
        self._name(path, node)
        return SimulatedFile(self, node, path)

    def open(self, path: Path, *, writable: bool = False) -> SimulatedFile:
        self._expect_alive()
        node = self._names.get(str(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return SimulatedFile(self, node, path)

    def list(self, directory: Path) -> list[str]:
        self._expect_alive()
        start = f"{directory}/"
        if str(directory) not in self.directories:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(directory))
        found = {name[len(start) :].partition("/")[0] for name in self._names if name.startswith(start)}
        found |= {name[len(start) :].partition("/")[0] for name in self.directories if name.startswith(start)}
        return sorted(found)

    def make_directory(self, path: Path) -> None:
        self._expect_alive()
        while str(path) not in self.directories:
            self.directories.add(str(path))
            path = path.parent

    def rename(self, source: Path, target: Path) -> None:
        self._expect_alive()
        node = self._names.get(str(source))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        if self.on_remove is not None:
            self.on_remove(source)
        self._name(target, node)
        self._name(source, None)

    def remove(self, path: Path) -> None:
        self._expect_alive()
        node = self._names.get(str(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        if self.on_remove is not None:
            self.on_remove(path)
        self.used -= len(node.data)
        self._name(path, None)

    def exists(self, path: Path) -> bool:
        self._expect_alive()
        return str(path) in self._names or str(path) in self.directories

    def sync_directory(self, path: Path) -> None:
        self._expect_alive()
        self.sync_or_fail(path)
        directory, kept = str(path), []
        for change in self._unsynced_names:
            if change[0] == directory:
                _name(self._durable_names, change[1], change[2])
            else:
                kept.append(change)
        self._unsynced_names = kept

    def free_bytes(self, path: Path) -> int:
        return max(0, self.capacity - self.used)

    def total_bytes(self, path: Path) -> int:
        return self.capacity

    def read_file(self, path: Path) -> bytes:
        file = self.open(path)
        return file.read(0, file.size())

    def replace_file(self, path: Path, data: bytes) -> None:
        replace_file(self, path, data)

    def sync_or_fail(self, path: Path) -> None:
        if self.fail_syncs:
            self.fail_syncs -= 1
            raise DiskFailed(path, "simulated")

    def _expect_alive(self) -> None:
        if self.gone:
            raise ProcessDied("the disk is gone")

    def _name(self, path: Path, node: _Node | None) -> None:
        name = str(path)
        _name(self._names, name, node)
        self._unsynced_names.append((name.rpartition("/")[0], name, node))

    def _count(self) -> None:
        self.used = sum(len(node.data) for node in self._names.values())


class SimulatedFile:
    """An open file. It ends with the process that opened it."""

    __slots__ = ("_disk", "_life", "_node", "_path")

    def __init__(self, disk: SimulatedDisk, node: _Node, path: Path) -> None:
        self._disk = disk
        self._life = disk.life
        self._node = node
        self._path = path

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        self._expect_alive()
        data = b"".join(buffers)
        self._grow(offset + len(data))
        node = self._node
        if offset > len(node.data):
            node.data.extend(bytes(offset - len(node.data)))
        node.data[offset : offset + len(data)] = data
        node.pending.append((offset, data))
        return len(data)

    def read(self, offset: int, size: int) -> bytes:
        self._expect_alive()
        return bytes(self._node.data[offset : offset + size])

    def sync(self) -> None:
        self._expect_alive()
        self._disk.sync_or_fail(self._path)
        self._node.sync()

    def allocate(self, offset: int, length: int) -> None:
        self.write(offset, [bytes(length)])

    def forget(self, offset: int, length: int) -> None:
        """Nothing is cached."""

    def truncate(self, size: int) -> None:
        self._expect_alive()
        self._disk.used += size - len(self._node.data)
        _apply(self._node.data, size, None)
        self._node.pending.append((size, None))

    def size(self) -> int:
        self._expect_alive()
        return len(self._node.data)

    def close(self) -> None:
        """Nothing is held."""

    def _grow(self, size: int) -> None:
        more = size - len(self._node.data)
        if more > 0:
            if self._disk.used + more > self._disk.capacity:
                raise OSError(errno.ENOSPC, "no space left on the simulated disk", str(self._path))
            self._disk.used += more

    def _expect_alive(self) -> None:
        if self._life != self._disk.life:
            raise ProcessDied("the process that opened this file is dead")


def _apply(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        if at <= len(content):
            del content[at:]
        else:
            content.extend(bytes(at - len(content)))
        return
    if at > len(content):
        content.extend(bytes(at - len(content)))
    content[at : at + len(data)] = data


def _name(names: dict[str, _Node], path: str, node: _Node | None) -> None:
    if node is None:
        names.pop(path, None)
    else:
        names[path] = node
