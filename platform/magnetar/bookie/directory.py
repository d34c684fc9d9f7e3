"""The data directory: whose it is, whether all of it is there, and making a new one. `docs/formats/bookie-directory.md`."""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from magnetar.bookie.errors import DirectoryDamaged, ForeignDirectory, NewerFormat
from magnetar.bookie.ledger_table import FIRST_TABLE, LedgerTableFile
from magnetar.bookie.limbo import Lost, refuse
from magnetar.bookie.mark import FILE_NAME as MARK_FILE
from magnetar.bookie.mark import Checkpoint, Mark, MarkFile
from magnetar.bookie.record import BLOCK, FIRST_BLOCK
from magnetar.bookie.segments import FIRST_SEGMENT, SUFFIX, Segments
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.directory_lock import LOCK_FILE
from magnetar.environment.disk import Disk
from magnetar.environment.logs import get_logger

VERSION: Final = 2
_VERSION_ALONE: Final = 1
"""A directory that is all its bookie has is written so that versions before the second open it, too."""
COOKIE_FILE: Final = "cookie.json"
JOURNAL: Final = "journal"
ENTRIES: Final = "entries"
LEDGERS: Final = "ledgers"
INDEX: Final = "index"
_FOLDERS: Final = (ENTRIES, LEDGERS)
PARTS: Final = (JOURNAL, *_FOLDERS)
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
    share: Share | None = None
    """Which of a bookie's several directories it is."""
    journal: Path | None = None
    """Where its journal lies, if not inside."""


@dataclass(frozen=True, slots=True)
class Share:
    """One of several directories of a bookie."""

    number: int
    of: str = ""
    """The instance id of the first of them; empty for that one itself."""


def open_directory(
    disk: Disk,
    directory: Path,
    bookie_id: str,
    clock: Clock,
    *,
    journal: Path | None = None,
    share: Share | None = None,
    dice: random.Random | None = None,
    lost: Lost = refuse,
) -> Cookie:
    """Check a data directory, or make one where there is nothing yet.

    `journal`: where its journal lies, if not inside.

    Raises:
        ForeignDirectory: it is another bookie's, or holds something else.
        NewerFormat: a newer version has written it.
        DirectoryDamaged: parts of it are gone: a disk is missing or was swapped.
    """
    path = directory / COOKIE_FILE
    if not disk.exists(path):
        _expect_nothing(disk, directory, journal)
        dice = dice or random.SystemRandom()
        instance_id = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        cookie = Cookie(bookie_id, instance_id, clock.time_ms(), True, share, journal)
        _make(disk, directory, cookie, clock, dice)
        return cookie
    cookie = read_cookie(disk, path)
    if cookie.bookie_id != bookie_id:
        raise ForeignDirectory(directory, f"it belongs to bookie {cookie.bookie_id}, this is {bookie_id}")
    _expect_share(directory, cookie, share)
    for folder in (*(directory / name for name in _FOLDERS), journal or directory / JOURNAL):
        if not disk.exists(folder):
            lost(
                DirectoryDamaged(folder, "missing: is a disk not mounted? The bookie would deny what it held")
            )
            disk.make_directory(folder)
    if journal is not None:
        _expect_journal(disk, journal, cookie, lost)
    if (cookie.share, cookie.journal) != (share, journal):
        cookie = replace(cookie, share=share, journal=journal)
        _write_cookie(disk, directory, cookie)
    return cookie


def _expect_share(directory: Path, cookie: Cookie, share: Share | None) -> None:
    """A first directory may be told that it is not alone any more; all else must be as it was."""
    if cookie.share == share or (cookie.share is None and share == Share(0)):
        return
    if share is None:
        reason = (
            "it is one of several: name all of them in `ledger_directories`, or `journal_directories`, again"
        )
    else:
        reason = f"it is not directory {share.number} of this bookie: directories are named in another order, or swapped"
    raise ForeignDirectory(directory, reason)


def _expect_journal(disk: Disk, journal: Path, cookie: Cookie, lost: Lost) -> None:
    """A journal that lies elsewhere says whose it is, and one that was brought here is told."""
    path = journal / COOKIE_FILE
    if disk.exists(path):
        found = read_cookie(disk, path)
        if found.instance_id != cookie.instance_id:
            raise ForeignDirectory(
                journal, f"this journal belongs to another directory, of bookie {found.bookie_id}"
            )
        return
    if not any(name.endswith(SUFFIX) for name in disk.list(journal)):
        lost(
            DirectoryDamaged(
                journal, "empty: is a disk not mounted, or was it swapped? Acknowledged entries were here"
            )
        )
    _write_cookie(disk, journal, cookie)


def read_cookie(disk: Disk, path: Path) -> Cookie:
    """Whose directory this is. Raises: ForeignDirectory, NewerFormat, DirectoryDamaged."""
    if not disk.exists(path):
        raise ForeignDirectory(path.parent, f"it has no {COOKIE_FILE}")
    try:
        fields = json.loads(disk.read_file(path))
        version = fields["version"]
        if not isinstance(version, int) or version > VERSION:
            raise NewerFormat(path, version, VERSION)
        share = fields.get("share")
        journal = fields.get("journal")
        return Cookie(
            str(fields["bookie_id"]),
            str(fields["instance_id"]),
            int(fields["created_ms"]),
            share=None if share is None else Share(int(share["number"]), str(share["of"])),
            journal=None if journal is None else Path(journal),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DirectoryDamaged(path, f"unreadable: {error}") from error


def _expect_nothing(disk: Disk, directory: Path, journal: Path | None) -> None:
    """Without a cookie only what an interrupted `_make` leaves may be there: no log, one journal segment."""
    for name in disk.list(directory):
        if name in (LOCK_FILE, MARK_FILE, *PARTS) or name.startswith("."):
            continue
        raise ForeignDirectory(
            directory, f"it holds {name!r} but no {COOKIE_FILE}; choose an empty directory"
        )
    if journal is not None and disk.exists(journal / COOKIE_FILE):
        raise ForeignDirectory(
            journal, f"it is the journal of another directory than {directory}, or of what was there"
        )
    entries, journal = directory / ENTRIES, journal or directory / JOURNAL
    used = disk.exists(entries) and disk.list(entries)
    if used or (disk.exists(journal) and len(disk.list(journal)) > 1):
        raise DirectoryDamaged(directory / COOKIE_FILE, "missing, though the directory has been in use")


def _make(disk: Disk, directory: Path, cookie: Cookie, clock: Clock, dice: random.Random) -> None:
    journal = cookie.journal or directory / JOURNAL
    for folder in (*(directory / name for name in _FOLDERS), journal):
        disk.make_directory(folder)
        for leftover in disk.list(folder):
            disk.remove(folder / leftover)
    segments = Segments(
        disk, journal, segment_bytes=2 * BLOCK, first_bytes=2 * BLOCK, clock=clock, salts=dice
    )
    segments.create(FIRST_SEGMENT, _FIRST_SEQUENCE).file.close()
    table = LedgerTableFile(disk, directory / LEDGERS)
    table.create(FIRST_TABLE, [])
    mark = Mark(FIRST_SEGMENT, FIRST_BLOCK, _FIRST_SEQUENCE)
    MarkFile(disk, directory).write(Checkpoint(mark, {}, FIRST_TABLE, table.end))
    _write_cookie(disk, directory, cookie)
    if cookie.journal is not None:  # Not before: a journal that has one is never overwritten.
        _write_cookie(disk, cookie.journal, cookie)
    crash_point("bookie.directory.made")
    log.info(
        "bookie.directory_made",
        directory=str(directory),
        bookie=cookie.bookie_id,
        instance=cookie.instance_id,
    )


def _write_cookie(disk: Disk, directory: Path, cookie: Cookie) -> None:
    fields: dict[str, object] = {
        "version": _VERSION_ALONE if cookie.share is None else VERSION,
        "bookie_id": cookie.bookie_id,
        "instance_id": cookie.instance_id,
        "created_ms": cookie.created_ms,
    }
    if cookie.share is not None:
        fields["share"] = {"number": cookie.share.number, "of": cookie.share.of}
    if cookie.journal is not None:
        fields["journal"] = str(cookie.journal)
    crash_point("bookie.directory.before_cookie")
    disk.replace_file(directory / COOKIE_FILE, json.dumps(fields).encode() + b"\n")
    crash_point("bookie.directory.cookie_written")
