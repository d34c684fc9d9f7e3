"""The log of one component's process: what it writes to standard error, turned over at a size. All of it blocks.

The process appends to the file itself, so that its last words survive it and the worker. To turn a log over while it
is being written, it is copied and cut; a line written just between the two may be lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

TAIL_BYTES = 4096


class LogFile:
    def __init__(self, path: Path, bytes_max: int, kept: int) -> None:
        self.path = path
        self._bytes_max = bytes_max
        self._kept = kept

    def open(self) -> int:
        """A descriptor to append to, the caller's to close."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.turn_over()
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def turn_over(self) -> None:
        """If it is too large, keep it under a number and go on with an empty file."""
        if not self.path.exists() or self.path.stat().st_size < self._bytes_max:
            return
        for number in range(self._kept - 1, 0, -1):
            older = self._numbered(number)
            if older.exists():
                older.replace(self._numbered(number + 1))
        shutil.copyfile(self.path, self._numbered(1))
        os.truncate(self.path, 0)

    def tail(self, bytes_max: int = TAIL_BYTES) -> list[str]:
        """The last whole lines."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - bytes_max))
                data = file.read()
        except FileNotFoundError:
            return []
        lines = data.decode("utf-8", "replace").splitlines()
        return lines[1:] if size > bytes_max else lines

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
