"""A file on its way in: written aside, synced, and moved to its place whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO

from magnetar.worker.errors import PackageTooLarge

PIECE_BYTES = 1024 * 1024


class Draft:
    """Bytes are hashed and written in threads, a good piece at a time, and no more than `bytes_max` of them."""

    def __init__(self, directory: Path, what: str, bytes_max: int) -> None:
        self.size = 0
        self._directory = directory
        self._what = what
        self._bytes_max = bytes_max
        self._hash = hashlib.sha256()
        self._piece = bytearray()
        self._file: BinaryIO | None = None
        self._path: Path | None = None

    async def write(self, data: bytes) -> None:
        """Raises PackageTooLarge."""
        self.size += len(data)
        if self.size > self._bytes_max:
            raise PackageTooLarge(f"{self._what} is larger than {self._bytes_max} bytes")
        self._piece += data
        if len(self._piece) >= PIECE_BYTES:
            await asyncio.to_thread(self._flush)

    async def complete(self) -> str:
        """Sync what was written. Returns its SHA-256 in hex."""
        await asyncio.to_thread(self._complete)
        return self._hash.hexdigest()

    async def move_to(self, path: Path) -> None:
        """Put the complete file in its place, durably."""
        await asyncio.to_thread(self._move_to, path)

    async def discard(self) -> None:
        """Leave nothing behind, unless it was moved."""
        await asyncio.to_thread(self._discard)

    def _flush(self) -> None:
        if self._file is None:
            descriptor, name = tempfile.mkstemp(dir=self._directory)
            self._path = Path(name)
            self._file = os.fdopen(descriptor, "wb")
        self._hash.update(self._piece)
        self._file.write(self._piece)
        self._piece.clear()

    def _complete(self) -> None:
        self._flush()
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def _move_to(self, path: Path) -> None:
        assert self._path is not None
        self._path.rename(path)
        self._path = None
        sync_directory(path.parent)

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


def make_directory(path: Path) -> None:
    """Make a directory, and those above it that are missing, so that each outlives a loss of power. Blocks."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
