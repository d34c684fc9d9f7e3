"""Emptying a bookie's data directory for good: `magnetar bookie format`.

A bookie that comes back empty under its id must not deny what it held. So its cookie in metadata stays: with
`on_lost_data: limbo` it then starts in limbo, gets back what it should hold from its peers, and serves. Only a bookie
that no ledger names any more may be forgotten (`forget_bookie`).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from magnetar.bookie.directory import COOKIE_FILE, INDEX, PARTS, read_cookie
from magnetar.bookie.errors import BookieError, ForeignDirectory, StillInUse
from magnetar.bookie.mark import FILE_NAME as MARK_FILE
from magnetar.bookie.shares import SHARE_PREFIX, SHARES_FILE
from magnetar.environment.directory_lock import LOCK_FILE, DirectoryLock
from magnetar.environment.disk import SystemDisk
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import NotFound
from magnetar.metadata.store import MetadataStore
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH

_OURS = frozenset({COOKIE_FILE, MARK_FILE, LOCK_FILE, *PARTS, INDEX, "limbo.json", SHARES_FILE})

log = get_logger("magnetar.bookie.format")


@dataclass(frozen=True, slots=True)
class Formatted:
    """What a format has removed."""

    files: int
    bytes: int


def format_directory(directory: Path) -> Formatted:
    """Remove all a bookie has kept in `directory`, with a journal that lies elsewhere; the directory itself stays.

    Raises:
        DirectoryInUse: a bookie runs on it.
        ForeignDirectory: it holds something that is no bookie's.
    """
    if not directory.is_dir():
        raise ForeignDirectory(directory, "it does not exist")
    for path in directory.iterdir():
        if path.name not in _OURS and not path.name.startswith((".", SHARE_PREFIX)):
            raise ForeignDirectory(directory, f"it holds {path.name!r}, which no bookie has put there")
    lock = DirectoryLock(directory)
    try:
        shares = sorted(path for path in directory.iterdir() if path.name.startswith(SHARE_PREFIX))
        inside = [format_directory(share) for share in shares]
        for share in shares:
            shutil.rmtree(share)
        found = [path for path in directory.rglob("*") if path.is_file() and path.name != LOCK_FILE]
        journal = _journal_elsewhere(directory)
        if journal is not None:
            found += [path for path in journal.rglob("*") if path.is_file()]
        formatted = Formatted(
            len(found) + sum(each.files for each in inside),
            sum(path.stat().st_size for path in found) + sum(each.bytes for each in inside),
        )
        # The cookie last: a format that is cut off is found out by the next start, or done again.
        names = sorted(_OURS - {LOCK_FILE, COOKIE_FILE})
        for name in (*names, COOKIE_FILE):
            path = directory / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if journal is not None:
            shutil.rmtree(journal)
            SystemDisk().sync_directory(journal.parent)
        SystemDisk().sync_directory(directory)
    finally:
        lock.release()
    log.warning(
        "bookie.directory_formatted", directory=str(directory), files=formatted.files, bytes=formatted.bytes
    )
    return formatted


def _journal_elsewhere(directory: Path) -> Path | None:
    """Where this directory's journal lies, if not inside and if it is this one's."""
    disk = SystemDisk()
    try:
        cookie = read_cookie(disk, directory / COOKIE_FILE)
        if cookie.journal is None:
            return None
        found = read_cookie(disk, cookie.journal / COOKIE_FILE)
    except BookieError as error:
        log.warning("bookie.journal_left_alone", reason=str(error))
        return None
    return cookie.journal if found.instance_id == cookie.instance_id else None


async def forget_bookie(metadata: MetadataStore, bookie_id: str) -> bool:
    """Remove a bookie's cookie from metadata: its id may be given to a new, empty bookie. False: there was none.

    Only for one that no ledger names any more: whoever takes its id vouches for never having held anything.

    Raises:
        StillInUse: it is registered.
    """
    if await metadata.get(f"{AVAILABLE_PATH}/{bookie_id}") is not None:
        raise StillInUse(bookie_id)
    try:
        await metadata.delete(f"{COOKIES_PATH}/{bookie_id}")
    except NotFound:
        return False
    log.warning("bookie.forgotten", bookie=bookie_id)
    return True
