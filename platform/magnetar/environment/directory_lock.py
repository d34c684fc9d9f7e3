"""One process per data directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from magnetar.environment.errors import DirectoryInUse

LOCK_FILE = "LOCKED_BY"


class DirectoryLock:
    """Holds a directory for this process until `release` or death, however sudden.

    An advisory lock of the kernel's on the file `LOCKED_BY`, which names the holder for people; the file
    itself means nothing and stays behind.
    """

    __slots__ = ("_descriptor", "directory")

    def __init__(self, directory: Path) -> None:
        """Take the lock.

        Raises:
            DirectoryInUse: another process holds it, or this one through another object.
        """
        self.directory = directory
        self._descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 32, 0).decode("ascii", "replace").strip()
            self.release()
            raise DirectoryInUse(directory, owner) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let others in. Releasing twice does no harm."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
