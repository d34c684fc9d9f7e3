"""Disks: the interface all file I/O goes through, and the machine's own.

Calls are synchronous and may block for as long as a disk likes: rooms make them in threads, never on the
loop. A write is safe after `sync`, a new, renamed or removed name after `sync_directory`, and not before;
`recording.py` has a disk that proves whether its caller knew.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, Protocol, TypeAlias

from magnetar.environment import flight_recorder
from magnetar.environment.errors import DiskFailed
from magnetar.environment.logs import get_logger

Buffer: TypeAlias = bytes | bytearray | memoryview

EXIT_DISK_FAILED = 70  # EX_SOFTWARE: supervisors restart, and the restart replays what is truly on disk.

_log = get_logger("magnetar.environment")
_VECTORS_MAX = 1024  # Linux IOV_MAX.
_ZEROS = memoryview(bytes(1 << 20))


class DiskFile(Protocol):
    """An open file. Offsets are explicit: there is no current position to share by accident."""

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Write all of `buffers` one after the other from `offset` on; returns the number of bytes."""
        ...

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer only where the file ends."""
        ...

    def sync(self) -> None:
        """Make everything written, and the size, survive a power cut.

        Raises:
            DiskFailed: end the process (`fail_stop`), never try again.
        """
        ...

    def allocate(self, offset: int, length: int) -> None:
        """Fill `length` bytes from `offset` with zeros that are really on disk, growing the file.

        Real blocks, not a hole or an unwritten extent: a later sync of bytes written over them then has no
        file-system metadata to commit, which about halves its time.
        """
        ...

    def forget(self, offset: int, length: int) -> None:
        """These bytes, synced before, will hardly be read soon: memory that caches them may be given back.

        A hint without other effect. Memory that is used again and again is cheaper than new memory all the time.
        """
        ...

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes."""
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """Close without a sync. Closing twice does no harm."""
        ...


class Disk(Protocol):
    """A tree of files. Errors are the operating system's, save `DiskFailed` from the syncs."""

    def create(self, path: Path) -> DiskFile:
        """A new, writable file; FileExistsError where there is one. Its name is durable only after
        `sync_directory` of its parent."""
        ...

    def open(self, path: Path, *, writable: bool = False) -> DiskFile: ...

    def list(self, directory: Path) -> list[str]:
        """The names in `directory`, sorted."""
        ...

    def make_directory(self, path: Path) -> None:
        """Create `path` and its missing parents, durably. Nothing happens where it exists."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Atomically give `source` the name `target`, replacing what had it. Durable after
        `sync_directory`."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file's name. Durable after `sync_directory`."""
        ...

    def exists(self, path: Path) -> bool: ...

    def sync_directory(self, path: Path) -> None:
        """Make the names in `path` survive a power cut. Raises DiskFailed."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes an unprivileged process may still write where `path` lies."""
        ...

    def total_bytes(self, path: Path) -> int:
        """The size of the file system on which `path` lies."""
        ...

    def read_file(self, path: Path) -> bytes: ...

    def replace_file(self, path: Path, data: bytes) -> None:
        """Make `path` hold exactly `data`: after a power cut at any moment it is the old file or the new
        one, and the new one once this has returned."""
        ...


class SystemFile:
    """A file of the operating system."""

    __slots__ = ("_descriptor", "_path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def write(self, offset: int, buffers: Sequence[Buffer]) -> int:
        views = [view for view in map(_bytes_view, buffers) if len(view)]
        start, index = offset, 0
        while index < len(views):
            written = os.pwritev(self._descriptor, views[index : index + _VECTORS_MAX], offset)
            offset += written
            while index < len(views) and written >= len(views[index]):
                written -= len(views[index])
                index += 1
            if written:
                views[index] = views[index][written:]
        return offset - start

    def read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        missing = size - len(data)
        while missing:
            offset += len(pieces[-1])
            piece = os.pread(self._descriptor, missing, offset)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def sync(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise DiskFailed(self._path, str(error)) from error

    def allocate(self, offset: int, length: int) -> None:
        while length > 0:
            written = os.pwrite(self._descriptor, _ZEROS[:length], offset)
            offset += written
            length -= written

    def forget(self, offset: int, length: int) -> None:
        os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class SystemDisk:
    """The disks of this machine."""

    __slots__ = ()

    def create(self, path: Path) -> SystemFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return SystemFile(path, os.open(path, flags, 0o644))

    def open(self, path: Path, *, writable: bool = False) -> SystemFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        return SystemFile(path, os.open(path, flags))

    def list(self, directory: Path) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: Path) -> None:
        missing = []
        step = path
        while not step.is_dir():
            missing.append(step)
            step = step.parent
        for directory in reversed(missing):
            directory.mkdir(exist_ok=True)
            self.sync_directory(directory.parent)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise DiskFailed(path, str(error)) from error
        finally:
            os.close(descriptor)

    def free_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).free

    def total_bytes(self, path: Path) -> int:
        return shutil.disk_usage(path).total

    def read_file(self, path: Path) -> bytes:
        return path.read_bytes()

    def replace_file(self, path: Path, data: bytes) -> None:
        replace_file(self, path, data)


def replace_file(disk: Disk, path: Path, data: bytes) -> None:
    """`Disk.replace_file` in terms of the other operations, for any disk.

    One writer per path: the temporary name is fixed, so that a crash leaves at most one stray file, which
    the next replacement removes.
    """
    temporary = path.with_name(f".{path.name}.new")
    if disk.exists(temporary):
        disk.remove(temporary)
    file = disk.create(temporary)
    try:
        file.write(0, [data])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)


def fail_stop(error: BaseException) -> NoReturn:
    """End this process at once, because what it wrote is in doubt: no cleanup, no further answers.

    Anything politer (an exception that travels, a drain) could still acknowledge what the disk has lost.
    """
    _log.error("process.failed_stop", error=str(error), exit_code=EXIT_DISK_FAILED)
    os.write(2, f"magnetar: stopped at once: {error}\n".encode())
    flight_recorder.dump(last=200)
    os._exit(EXIT_DISK_FAILED)


def _bytes_view(buffer: Buffer) -> memoryview:
    view = memoryview(buffer)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
