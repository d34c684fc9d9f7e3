"""How a bookie with several directories is divided: what each share of it is set up with, and the list of them. Format:
`docs/formats/bookie-directory.md`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from magnetar.bookie.errors import DirectoryDamaged, NewerFormat
from magnetar.bookie.settings import BookieSettings
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk

SHARES_FILE: Final = "shares.json"
SHARE_PREFIX: Final = "share-"
"""What a further share's folder in a directory is called, before its number."""
_VERSION: Final = 1
_READ_THREADS_MIN: Final = 2


def divided(settings: BookieSettings) -> list[BookieSettings]:
    """The settings of each share: directories of its own, and its part of memory."""
    ledgers = settings.ledger_directories or (settings.directory,)
    journals = settings.journal_directories
    count = max(len(ledgers), len(journals))
    return [
        replace(
            settings,
            directory=_turn(ledgers, number),
            ledger_directories=(),
            journal_directories=(_turn(journals, number),) if journals else (),
            journal_pending_bytes=settings.journal_pending_bytes // count,
            write_cache_bytes=settings.write_cache_bytes // count,
            waiting_adds_bytes=settings.waiting_adds_bytes // count,
            read_cache_bytes=settings.read_cache_bytes // count,
            entry_log_cached_bytes=settings.entry_log_cached_bytes // count,
            entry_log_read_cached_bytes=settings.entry_log_read_cached_bytes // count,
            read_threads=max(_READ_THREADS_MIN, settings.read_threads // count),
        )
        for number in range(count)
    ]


def _turn(directories: tuple[Path, ...], number: int) -> Path:
    """The directory whose turn it is; from the second turn on, a folder in it."""
    directory = directories[number % len(directories)]
    return directory if number < len(directories) else directory / f"{SHARE_PREFIX}{number}"


@dataclass(frozen=True, slots=True)
class ListedShare:
    instance_id: str
    directory: Path


class SharesFile:
    """In the first directory: which others there are. One that is listed may hold entries."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self.path = directory / SHARES_FILE

    def read(self) -> list[ListedShare]:
        """None are listed where the bookie is alone in its directory. Raises: DirectoryDamaged, NewerFormat."""
        try:
            fields = json.loads(self._disk.read_file(self.path))
            if fields["version"] > _VERSION:
                raise NewerFormat(self.path, fields["version"], _VERSION)
            return [
                ListedShare(str(each["instance_id"]), Path(each["directory"])) for each in fields["shares"]
            ]
        except FileNotFoundError:
            return []
        except (ValueError, KeyError, TypeError) as error:
            raise DirectoryDamaged(self.path, f"unreadable: {error}") from error

    def write(self, shares: list[ListedShare]) -> None:
        """Durable when this returns: before an entry goes to a directory that is new."""
        fields = {
            "version": _VERSION,
            "shares": [
                {"instance_id": each.instance_id, "directory": str(each.directory)} for each in shares
            ],
        }
        crash_point("bookie.shares.before_write")
        self._disk.replace_file(self.path, json.dumps(fields).encode() + b"\n")
        crash_point("bookie.shares.written")
