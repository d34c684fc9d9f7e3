"""The data directory: whose it is, whether all of it is there, and making a new one. `docs/formats/bookie-directory.md`."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from magnetar.bookie.errors import DirectoryDamaged, ForeignDirectory, NewerFormat
from magnetar.bookie.ledger_table import FIRST_TABLE, LedgerTableFile
from magnetar.bookie.limbo import Lost, refuse
from magnetar.bookie.mark import FILE_NAME as MARK_FILE
from magnetar.bookie.mark import Checkpoint, Mark, MarkFile
from magnetar.bookie.record import BLOCK, FIRST_BLOCK
from magnetar.bookie.segments import FIRST_SEGMENT, Segments
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.directory_lock import LOCK_FILE
from magnetar.environment.disk import Disk
from magnetar.environment.logs import get_logger

VERSION: Final = 1
COOKIE_FILE: Final = "cookie.json"
JOURNAL: Final = "journal"
ENTRIES: Final = "entries"
LEDGERS: Final = "ledgers"
INDEX: Final = "index"
PARTS: Final = (JOURNAL, ENTRIES, LEDGERS)
_FIRST_SEQUENCE = 1

log = get_logger("magnetar.bookie")


@dataclass(frozen=True, slots=True)
class Cookie:
    """Who the directory belongs to."""

    bookie_id: str
    instance_id: str
    created_ms: int
    fresh: bool = False
    """Whether the directory was made just now: it has never held an entry."""


def open_directory(
    disk: Disk,
    directory: Path,
    bookie_id: str,
    clock: Clock,
    *,
    dice: random.Random | None = None,
    lost: Lost = refuse,
) -> Cookie:
    """Check a data directory, or make one where there is nothing yet.

    Raises:
        ForeignDirectory: it is another bookie's, or holds something else.
        NewerFormat: a newer version has written it.
        DirectoryDamaged: parts of it are gone: a disk is missing or was swapped.
    """
    path = directory / COOKIE_FILE
    if not disk.exists(path):
        _expect_nothing(disk, directory)
        return _make(disk, directory, bookie_id, clock, dice or random.SystemRandom())
    cookie = read_cookie(disk, path)
    if cookie.bookie_id != bookie_id:
        raise ForeignDirectory(directory, f"it belongs to bookie {cookie.bookie_id}, this is {bookie_id}")
    for part in PARTS:
        if not disk.exists(directory / part):
            lost(
                DirectoryDamaged(
                    directory / part, "missing: is a disk not mounted? The bookie would deny what it held"
                )
            )
            disk.make_directory(directory / part)
    return cookie


def read_cookie(disk: Disk, path: Path) -> Cookie:
    """Whose directory this is. Raises: ForeignDirectory, NewerFormat, DirectoryDamaged."""
    if not disk.exists(path):
        raise ForeignDirectory(path.parent, f"it has no {COOKIE_FILE}")
    try:
        fields = json.loads(disk.read_file(path))
        version = fields["version"]
        if not isinstance(version, int) or version > VERSION:
            raise NewerFormat(path, version, VERSION)
        return Cookie(str(fields["bookie_id"]), str(fields["instance_id"]), int(fields["created_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DirectoryDamaged(path, f"unreadable: {error}") from error


def _expect_nothing(disk: Disk, directory: Path) -> None:
    """Without a cookie only what an interrupted `_make` leaves may be there: no log, one journal segment."""
    for name in disk.list(directory):
        if name in (LOCK_FILE, MARK_FILE, *PARTS) or name.startswith("."):
            continue
        raise ForeignDirectory(
            directory, f"it holds {name!r} but no {COOKIE_FILE}; choose an empty directory"
        )
    entries, journal = directory / ENTRIES, directory / JOURNAL
    used = disk.exists(entries) and disk.list(entries)
    if used or (disk.exists(journal) and len(disk.list(journal)) > 1):
        raise DirectoryDamaged(directory / COOKIE_FILE, "missing, though the directory has been in use")


def _make(disk: Disk, directory: Path, bookie_id: str, clock: Clock, dice: random.Random) -> Cookie:
    for part in PARTS:
        disk.make_directory(directory / part)
        for leftover in disk.list(directory / part):
            disk.remove(directory / part / leftover)
    segments = Segments(
        disk, directory / JOURNAL, segment_bytes=2 * BLOCK, first_bytes=2 * BLOCK, clock=clock, salts=dice
    )
    segments.create(FIRST_SEGMENT, _FIRST_SEQUENCE).file.close()
    table = LedgerTableFile(disk, directory / LEDGERS)
    table.create(FIRST_TABLE, [])
    mark = Mark(FIRST_SEGMENT, FIRST_BLOCK, _FIRST_SEQUENCE)
    MarkFile(disk, directory).write(Checkpoint(mark, {}, FIRST_TABLE, table.end))
    instance_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
    cookie = Cookie(bookie_id, instance_id, clock.time_ms(), fresh=True)
    fields = {
        "version": VERSION,
        "bookie_id": cookie.bookie_id,
        "instance_id": cookie.instance_id,
        "created_ms": cookie.created_ms,
    }
    crash_point("bookie.directory.before_cookie")
    disk.replace_file(directory / COOKIE_FILE, json.dumps(fields).encode() + b"\n")
    crash_point("bookie.directory.made")
    log.info("bookie.directory_made", directory=str(directory), bookie=bookie_id, instance=cookie.instance_id)
    return cookie
