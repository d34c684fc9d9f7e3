"""ManagedLedgerError: all that can go wrong with a topic's log.

ManagedLedgerError
    NoSuchManagedLedger(name)       there is none, and none was to be made
    ManagedLedgerFenced(name)       another owner has the log: drop everything and open again
    ManagedLedgerClosed(name)       it was closed or deleted here
    ManagedLedgerTerminated(name)   it takes no more entries, for good; reading goes on
    AppendFailed(name, reason)      the entry may or may not be stored; later ones were not tried
    EntryTooLarge(size, limit)      refused before anything was sent
    StorageUnavailable(name, ...)   bookies or metadata cannot be reached now: retry with back-off
    EntryUnreadable(name, ...)      no replica could be read; the rest of the log can
    RecordUnreadable(what, reason)  a record in metadata or a cursor ledger is corrupt or of a newer format
    NoSuchCursor(name)
    CursorClosed(name)
    NoSuchLedgerInLog(name, id)     no closed ledger of this log, nor of one of its cursors
"""

from __future__ import annotations

from typing import Literal


class ManagedLedgerError(Exception):
    """The root of this room's errors."""


class NoSuchManagedLedger(ManagedLedgerError):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no log named {name!r}")
        self.name = name


class ManagedLedgerFenced(ManagedLedgerError):
    """Ownership is lost. Nothing more is appended, trimmed or acknowledged through this object."""

    def __init__(self, name: str, reason: str = "another owner has taken it over") -> None:
        super().__init__(f"log {name!r} is fenced: {reason}; open it again where it is owned")
        self.name = name


class ManagedLedgerClosed(ManagedLedgerError):
    def __init__(self, name: str) -> None:
        super().__init__(f"log {name!r} is closed; open it again")
        self.name = name


class ManagedLedgerTerminated(ManagedLedgerError):
    def __init__(self, name: str) -> None:
        super().__init__(f"log {name!r} is terminated and takes no more entries")
        self.name = name


class AppendFailed(ManagedLedgerError):
    """The entry may or may not be stored. Whoever sends it again should have it deduplicated."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"append to log {name!r} failed: {reason}; its outcome is unknown, retry")
        self.name = name


class EntryTooLarge(ManagedLedgerError):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"an entry of {size} bytes exceeds the limit of {limit} bytes")
        self.size = size
        self.limit = limit


class StorageUnavailable(ManagedLedgerError):
    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the storage of log {name!r} cannot be reached: {reason}; retry")
        self.name = name


class EntryUnreadable(ManagedLedgerError):
    """`lost`: what no bookie may have yet, or again: its ledger does not exist, or all its replicas deny the entry."""

    def __init__(self, name: str, reason: str, *, lost: Literal["ledger", "entry"] | None = None) -> None:
        super().__init__(f"log {name!r} cannot be read: {reason}")
        self.name = name
        self.lost = lost


class RecordUnreadable(ManagedLedgerError):
    """What is stored is corrupt, or was written by a newer version of this software."""

    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what} cannot be read: {reason}")
        self.what = what


class NoSuchCursor(ManagedLedgerError):
    def __init__(self, ledger: str, name: str) -> None:
        super().__init__(f"log {ledger!r} has no cursor {name!r}")
        self.name = name


class CursorClosed(ManagedLedgerError):
    def __init__(self, name: str) -> None:
        super().__init__(f"cursor {name!r} is closed")
        self.name = name


class NoSuchLedgerInLog(ManagedLedgerError):
    def __init__(self, name: str, ledger_id: int) -> None:
        super().__init__(f"log {name!r} has no closed ledger {ledger_id}, nor has one of its cursors")
        self.name = name
        self.ledger_id = ledger_id
