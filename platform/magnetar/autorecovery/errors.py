"""AutorecoveryError: what operators are told.

AutorecoveryError
    NoAuditor                       nobody carried out the audit that was asked for
    DecommissionBlocked(bookie)     nothing has moved for long; `ledgers` says what stands in the way
    EntriesLost(ledger_id, ...)     no replica holds them; only their return, or an operator's consent, helps

    EntryUnreadable, NoTarget       within this room: a repair that cannot go on now
"""

from __future__ import annotations

from collections.abc import Collection


class AutorecoveryError(Exception):
    """The root of this room's errors."""


class NoAuditor(AutorecoveryError):
    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"no auditor carried out the audit within {waited_s:g} s: start `magnetar autorecovery`, or see why"
            " its processes do not lead (`magnetar autorecovery status`)"
        )


class EntryUnreadable(AutorecoveryError):
    """An entry that no source gave. `lost`: they all vouch that they do not have it, or have it damaged."""

    def __init__(self, ledger_id: int, entry_id: int, reason: str, *, lost: bool) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id} cannot be copied: {reason}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.lost = lost


class CopyFailed(AutorecoveryError):
    """A target did not take a copy."""

    def __init__(self, ledger_id: int, entry_id: int, bookie: str, reason: str) -> None:
        super().__init__(f"{bookie} did not take a copy of entry {ledger_id}:{entry_id}: {reason}")
        self.bookie = bookie


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
