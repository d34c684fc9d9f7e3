"""Disks that misbehave on demand, around a real one."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from magnetar.environment.disk import Buffer, Disk, DiskFile, SystemDisk, replace_file


class WrappedFile:
    def __init__(self, disk: WrappedDisk, path: Path, file: DiskFile) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        self._disk.before_write(self._path)
        return self._file.write(offset, buffers)

    def read(self, offset: int, size: int) -> bytes:
        self._disk.before_read(self._path, offset, size)
        return self._file.read(offset, size)

    def sync(self) -> None:
        if self._disk.before_sync(self._path):
            self._file.sync()

    def allocate(self, offset: int, length: int) -> None:
        self._disk.before_allocate(self._path)
        self._file.allocate(offset, length)

    def forget(self, offset: int, length: int) -> None:
        self._file.forget(offset, length)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class WrappedDisk:
    """Passes everything on. Subclasses override the hooks."""

    def __init__(self, inner: Disk | None = None) -> None:
        self.inner: Disk = inner if inner is not None else SystemDisk()

    # Hooks.

    def before_write(self, path: Path) -> None:
        """May raise instead of the write."""

    def before_read(self, path: Path, offset: int, size: int) -> None:
        """May raise instead of the read."""

    def before_allocate(self, path: Path) -> None:
        """May raise instead of laying zeros."""

    def before_sync(self, path: Path) -> bool:
        """May wait or raise; False leaves the sync out."""
        return True

    def before_sync_directory(self, path: Path) -> bool:
        return True

    # The disk.

    def create(self, path: Path) -> DiskFile:
        return WrappedFile(self, path, self.inner.create(path))

    def open(self, path: Path, *, writable: bool = False) -> DiskFile:
        return WrappedFile(self, path, self.inner.open(path, writable=writable))

    def list(self, directory: Path) -> list[str]:
        return self.inner.list(directory)

    def make_directory(self, path: Path) -> None:
        self.inner.make_directory(path)

    def rename(self, source: Path, target: Path) -> None:
        self.inner.rename(source, target)

    def remove(self, path: Path) -> None:
        self.inner.remove(path)

    def exists(self, path: Path) -> bool:
        return self.inner.exists(path)

    def sync_directory(self, path: Path) -> None:
        if self.before_sync_directory(path):
            self.inner.sync_directory(path)

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)

    def total_bytes(self, path: Path) -> int:
        return self.inner.total_bytes(path)

    def read_file(self, path: Path) -> bytes:
        return self.inner.read_file(path)

    def replace_file(self, path: Path, data: bytes) -> None:
        replace_file(self, path, data)


class GatedDisk(WrappedDisk):
    """Syncs of files in directories named `folder` wait while the gate is closed."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self._gate = threading.Event()
        self._gate.set()
        self.waiting = threading.Event()
        """Set when a sync has come to the closed gate."""

    def close_gate(self) -> None:
        self.waiting.clear()
        self._gate.clear()

    def open_gate(self) -> None:
        self._gate.set()

    def before_sync(self, path: Path) -> bool:
        if path.parent.name == self._folder and not self._gate.is_set():
            self.waiting.set()
            assert self._gate.wait(30), "the test never opened the gate"
        return True


class FullDisk(WrappedDisk):
    """Writes to files in directories named `folder` fail while the disk is full."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self.full = False

    def before_write(self, path: Path) -> None:
        if self.full and path.parent.name == self._folder:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def before_allocate(self, path: Path) -> None:
        self.before_write(path)


class ShortDisk(WrappedDisk):
    """Says that so many bytes are free."""

    def __init__(self, free: Callable[[], int]) -> None:
        super().__init__()
        self._free = free

    def free_bytes(self, path: Path) -> int:
        return self._free()
