"""How patient a ledger client is, and how much it keeps in memory. `runtime` reads these; here they are values."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.protocol.bookie import MAX_ENTRY_BYTES
from magnetar.protocol.ledger_entry import ENTRY_HEADER_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerClientSettings:
    max_entry_bytes: int = MAX_ENTRY_BYTES - ENTRY_HEADER_BYTES
    """The largest payload of an entry. Larger ones are refused before they get an id."""
    unacknowledged_bytes: int = 64 * MIB
    """What one ledger may have on its way to one bookie. A bookie further behind counts as failing."""
    ensemble_retry_s: float = 5.0
    """How long a failing bookie is kept where no other could be found, before one is looked for again."""
    quarantine_s: float = 30.0
    """How long a bookie that failed is not chosen again while others can be."""
    metadata_retry_s: float = 30.0
    """How long a change of a ledger's metadata is tried while the store gives no answer."""
    metadata_backoff_s: float = 0.05
    metadata_backoff_max_s: float = 2.0
    recovery_window: int = 32
    """Entries of a ledger's tail read at once in a recovery."""
    read_run_bytes: int = 4 * MIB
    """The most asked of a bookie in one read."""
    read_window: int = 16
    """Entries read at once from a ledger that is striped."""
