"""DiskError: what can go wrong with a disk that is more than an ordinary OSError.

    DiskFailed(path)        a sync failed: what was written is in doubt for ever. End the process, never retry
    DirectoryInUse(path)    another living process owns this data directory

Everything else a disk reports (no such file, no space left, input/output error on a read) stays the
OSError it is, because callers tell those apart by class and errno.
"""

from __future__ import annotations

from pathlib import Path


class DiskError(Exception):
    """Root of this room's errors."""


class DiskFailed(DiskError):
    """Bytes that were written may be lost, and asking again would say they are safe.

    After a failed fsync the kernel marks the pages clean and forgets them: a second call succeeds without
    having written anything. The only honest answer is to end the process and replay what is on disk.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"sync of {path} failed: {reason}; check the disk, then start again")
        self.path = path
        self.reason = reason


class DirectoryInUse(DiskError):
    """Two processes must never write to one data directory."""

    def __init__(self, path: Path, owner: str) -> None:
        by = f" by process {owner}" if owner else ""
        super().__init__(
            f"data directory {path} is in use{by}; stop that process or choose another directory"
        )
        self.path = path
        self.owner = owner
