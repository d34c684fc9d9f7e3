"""LedgerError: all that can go wrong with a ledger.

LedgerError
    LedgerFenced(ledger_id)         another client has begun recovery: stop writing, never retry
    LedgerClosed(ledger_id)         it takes no more entries
    NoSuchLedger(ledger_id)         no metadata: it never was, or it is deleted
    NotEnoughBookies(needed, ...)   an ensemble cannot be filled now: retry with back-off
    QuorumLost(ledger_id, reason)   too many bookies fail for an append to be acknowledged: go on in a new ledger
    TooManyPending(pending, limit)  so much waits to be confirmed that nothing is taken: retry when there is room
    MetadataUnavailable(reason)     the metadata store cannot be reached, or the outcome of a write is unknown
    ReadFailed(ledger_id, ...)      no replica gave the entry; `absent` tells whether they vouch it is not there
    EntryTooLarge(size, limit)      refused before an id was given
    RecoveryFailed(ledger_id, ...)  too little is known to tell where the ledger ends: retry later
    MetadataCorrupt(path, reason)   the stored metadata makes no sense, or is of a newer format

`EntryCorrupt` of `magnetar.protocol.ledger_entry` never leaves this room: another replica is read instead.
"""

from __future__ import annotations

from collections.abc import Collection


class LedgerError(Exception):
    """The root of this room's errors."""


class LedgerFenced(LedgerError):
    def __init__(self, ledger_id: int, reason: str = "another client recovers or has recovered it") -> None:
        super().__init__(f"ledger {ledger_id} is fenced: {reason}")
        self.ledger_id = ledger_id


class LedgerClosed(LedgerError):
    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"ledger {ledger_id} is closed and takes no more entries")
        self.ledger_id = ledger_id


class NoSuchLedger(LedgerError):
    def __init__(self, ledger_id: int) -> None:
        super().__init__(f"there is no ledger {ledger_id}")
        self.ledger_id = ledger_id


class NotEnoughBookies(LedgerError):
    def __init__(
        self,
        needed: int,
        available: int,
        failed: Collection[str] = (),
        *,
        where: str = "",
        domains: int | None = None,
        write_quorum: int = 0,
    ) -> None:
        """
        Args:
            failed: those of an ensemble that nobody can stand in for.
            where: the groups of bookies to choose from, if not all.
            domains: how many failure domains there are, where these are too few.
        """
        within = f" in {where}" if where else ""
        short = f"{needed} writable bookies are needed and {available} can be had{within}"
        if failed:
            names = ", ".join(sorted(failed))
            reason = (
                f"{short}, but {names} just failed: see the bookie's log and its disk, or start another one"
            )
        elif domains is not None:
            reason = (
                f"{short}, but in {domains} failure domains, too few for {write_quorum} copies of each entry to"
                " share none: start bookies on other hosts, or turn ledger.placement_strict off"
            )
        else:
            reason = f"{short}: start more bookies or use a smaller ensemble"
        super().__init__(reason)
        self.needed = needed
        self.available = available


class QuorumLost(LedgerError):
    def __init__(self, ledger_id: int, reason: str) -> None:
        super().__init__(f"ledger {ledger_id} cannot be written any more: {reason}")
        self.ledger_id = ledger_id


class TooManyPending(LedgerError):
    def __init__(self, pending: int, limit: int) -> None:
        super().__init__(
            f"{pending} bytes wait to be confirmed by bookies, and no more than {limit} may: retry later"
        )
        self.pending = pending
        self.limit = limit


class MetadataUnavailable(LedgerError):
    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"{what}: the metadata store did not answer ({reason})")


class ReadFailed(LedgerError):
    def __init__(self, ledger_id: int, entry_id: int, reason: str, *, absent: bool = False) -> None:
        super().__init__(f"entry {ledger_id}:{entry_id} cannot be read: {reason}")
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.absent = absent


class EntryTooLarge(LedgerError):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"an entry of {size} bytes exceeds the limit of {limit} bytes")
        self.size = size
        self.limit = limit


class RecoveryFailed(LedgerError):
    def __init__(self, ledger_id: int, reason: str, missing: Collection[str] = ()) -> None:
        """`missing`: the bookies without which it cannot go on."""
        super().__init__(f"ledger {ledger_id} cannot be recovered now: {reason}; retry later")
        self.ledger_id = ledger_id
        self.reason = reason
        self.missing = tuple(missing)


class MetadataCorrupt(LedgerError):
    def __init__(self, what: str, reason: str) -> None:
        super().__init__(f"the metadata of {what} cannot be read: {reason}")
