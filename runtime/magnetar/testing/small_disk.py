"""A file system with little room, which can be filled to the last byte and emptied again."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

from magnetar.testing.processes import ProcessFailed

_BALLAST = "BALLAST"
_CHUNK = 1 << 20


class SmallDisk:
    """A tmpfs mounted at a directory: only where this user may mount (`allowed`)."""

    def __init__(self, directory: Path, size_bytes: int) -> None:
        self.directory = directory
        self.size_bytes = size_bytes

    @staticmethod
    def allowed(scratch: Path) -> bool:
        """Whether this user may mount file systems; tried in `scratch`."""
        try:
            disk = SmallDisk(scratch / "may-mount", _CHUNK)
            disk.mount()
        except ProcessFailed:
            return False
        disk.unmount()
        return True

    def mount(self) -> None:
        """
        Raises:
            ProcessFailed: it is not allowed.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={self.size_bytes}", "magnetar-test", str(self.directory))

    def unmount(self) -> None:
        """All that is on it is gone. Processes that still use it keep it alive until they end."""
        _run("umount", "--lazy", str(self.directory))

    def fill(self) -> None:
        """Leave no byte."""
        with (self.directory / _BALLAST).open("ab", buffering=0) as ballast:
            size = _CHUNK
            while size:
                try:
                    ballast.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def relieve(self) -> None:
        """Give back what `fill` took."""
        (self.directory / _BALLAST).unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """What is left."""
        status = os.statvfs(self.directory)
        return status.f_bavail * status.f_frsize


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise ProcessFailed(f"there is no `{command[0]}` here") from error
    except subprocess.CalledProcessError as error:
        raise ProcessFailed(f"`{' '.join(command)}` failed: {error.stderr.strip()}") from error
