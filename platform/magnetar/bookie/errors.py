"""BookieError: why a bookie cannot run, or cannot start on a directory.

BookieError
    ForeignDirectory(path)         the directory belongs to another bookie, or to something else
    NewerFormat(path, version)     written by a newer version: start that one
    DirectoryDamaged(path)         parts of the directory are missing or unreadable: bring back the disk, or re-replicate
        JournalCorrupt(file, offset)   records that were acknowledged are damaged
        EntryLogCorrupt(file, offset)  one stored record is; other records and other bookies are not concerned
    CookieMismatch(bookie_id)      metadata knows this bookie id with another data directory
    BookieAlreadyRegistered(bookie_id)   a living session holds the bookie id
    StillInUse(bookie_id)          it is registered, and may not be forgotten
    BookieNotRunning               asked before start or after stop

A directory in use is `magnetar.environment.errors.DirectoryInUse`; a failed sync ends the process.
"""

from __future__ import annotations

from pathlib import Path


class BookieError(Exception):
    """The root of this room's errors."""


class ForeignDirectory(BookieError):
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} is not a data directory of this bookie: {reason}")
        self.path = path


class NewerFormat(BookieError):
    def __init__(self, path: Path, version: object, known: int) -> None:
        super().__init__(
            f"{path} has format version {version}, this program knows up to {known}: start the newer version"
        )
        self.path = path


class DirectoryDamaged(BookieError):
    """What the bookie once wrote is not there any more. Starting would deny entries it has acknowledged."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path


class JournalCorrupt(DirectoryDamaged):
    """Records are damaged and later ones are not: this is no torn write, acknowledged entries are lost here."""

    def __init__(self, file: Path, offset: int, reason: str) -> None:
        super().__init__(file, f"journal corrupt at offset {offset}: {reason}")
        self.offset = offset


class EntryLogCorrupt(DirectoryDamaged):
    def __init__(self, file: Path, offset: int, reason: str) -> None:
        super().__init__(file, f"entry log corrupt at offset {offset}: {reason}")
        self.offset = offset


class CookieMismatch(BookieError):
    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(f"bookie {bookie_id} must not serve: {reason}")
        self.bookie_id = bookie_id


class BookieAlreadyRegistered(BookieError):
    def __init__(self, bookie_id: str) -> None:
        super().__init__(
            f"bookie {bookie_id} is registered by another living session; stop it, or wait until that session expires"
        )
        self.bookie_id = bookie_id


class StillInUse(BookieError):
    def __init__(self, bookie_id: str) -> None:
        super().__init__(f"bookie {bookie_id} is registered: stop it first, and let its session expire")
        self.bookie_id = bookie_id


class BookieNotRunning(BookieError):
    def __init__(self) -> None:
        super().__init__("the bookie is not running")
