"""AutorecoveryError: what operators are told.

AutorecoveryError
    NoAuditor                       nobody carried out the audit that was asked for
    UnknownBookie(bookie)           no ledger, cookie or registration names it

    EntryUnreadable, CopyFailed, NoTarget, LockLost     within this room: a repair that cannot go on now
"""

from __future__ import annotations

from collections.abc import Collection

from magnetar.protocol.bookie import BookieStatus


class AutorecoveryError(Exception):
    """The root of this room's errors."""


class NoAuditor(AutorecoveryError):
    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"no auditor carried out the audit within {waited_s:g} s: start `magnetar autorecovery`, or see why"
            " its processes do not lead (`magnetar autorecovery status`)"
        )


class UnknownBookie(AutorecoveryError):
    def __init__(self, bookie: str) -> None:
        super().__init__(f"no bookie {bookie!r}: neither a cookie nor a registration nor a ledger names it")
        self.bookie = bookie


class EntryUnreadable(AutorecoveryError):
    """An entry that no source gave. `lost`: they all vouch that they do not have it, or have it damaged."""

    def __init__(self, ledger_id: int, entry_id: int, reason: str, *, lost: bool) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id} cannot be copied: {reason}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.lost = lost


class CopyFailed(AutorecoveryError):
    """A target did not take a copy."""

    def __init__(self, ledger_id: int, entry_id: int, bookie: str, status: BookieStatus) -> None:
        super().__init__(f"{bookie} did not take a copy of entry {ledger_id}:{entry_id}: {status.name}")
        self.bookie = bookie
        self.status = status


class NoTarget(AutorecoveryError):
    """No bookie can take the place of those that are missing."""

    def __init__(self, ledger_id: int, bookies: Collection[str]) -> None:
        names = ", ".join(sorted(bookies))
        super().__init__(
            f"no writable bookie can take the place of {names} in ledger {ledger_id}: start another one"
        )


class LockLost(AutorecoveryError):
    """Someone else may be repairing the ledger by now."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"the lock of ledger {ledger_id} was lost with the metadata store's session")
