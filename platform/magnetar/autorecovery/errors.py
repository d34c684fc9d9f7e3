"""AutorecoveryError: what operators are told.

AutorecoveryError
    NoAuditor                       nobody carried out the audit that was asked for
    AuditPaused                     an audit was asked for, and nothing is audited now
    UnknownBookie(bookie)           no ledger, cookie or registration names it

    EntryUnreadable, CopyFailed, LockLost     within this room: a repair that cannot go on now
"""

from __future__ import annotations

from magnetar.protocol.bookie import BookieStatus


class AutorecoveryError(Exception):
    """The root of this room's errors."""


class NoAuditor(AutorecoveryError):
    def __init__(self, waited_s: float) -> None:
        super().__init__(
            f"no auditor carried out the audit within {waited_s:g} s: start `magnetar autorecovery`, or see why"
            " its processes do not lead (`magnetar autorecovery status`)"
        )


class AuditPaused(AutorecoveryError):
    def __init__(self) -> None:
        super().__init__("autorecovery is paused: resume it first (`magnetar autorecovery resume`)")


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


class LockLost(AutorecoveryError):
    """Someone else may be repairing the ledger by now."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"the lock of ledger {ledger_id} was lost with the metadata store's session")
