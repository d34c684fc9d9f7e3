"""How a topic's log is kept."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.ledger.groups import NO_GROUPS, BookieGroups

UNLIMITED = -1
"""As a retention: no limit in this dimension."""


@dataclass(frozen=True, slots=True)
class ManagedLedgerConfig:
    """The settings of one log; may be replaced while it is open. Names and defaults after Pulsar's broker."""

    ensemble_size: int = 1
    write_quorum: int = 1
    ack_quorum: int = 1
    bookie_groups: BookieGroups = NO_GROUPS
    """What the bookies of new ledgers are chosen from."""
    max_entries_per_ledger: int = 50_000
    max_size_bytes: int = 2048 * 1024 * 1024
    max_rollover_s: float = 240 * 60.0
    """The age at which a ledger is closed whatever it holds, if it holds anything; up to 5 % later by chance."""
    inactive_rollover_s: float = 0.0
    """A ledger to which nothing was appended for so long is closed; 0: never."""
    min_rollover_s: float = 600.0
    """A ledger younger than this is never closed for its size or entries; 0: no such limit."""
    retention_time_s: float = 0.0
    """How long entries are kept that every subscription has acknowledged. `UNLIMITED`: not limited by time."""
    retention_size_bytes: int = 0
    """How much of them is kept. 0 in either dimension keeps nothing. `UNLIMITED`: not limited by size."""
    mark_delete_rate_per_s: float = 1.0
    """How often a cursor is written at most, unless somebody waits for it by `flush`."""
    max_entries_per_cursor_ledger: int = 50_000
    max_cursor_rollover_s: float = 240 * 60.0
    storage_retry_s: float = 15.0
    """How long appends wait for bookies or metadata that cannot be reached, before they fail."""
    auto_skip_lost: bool = False
    """Whether readers pass over what is lost for good without being told to by an operator."""
    max_entry_bytes: int = 5 * 1024 * 1024 + 10 * 1024

    def __post_init__(self) -> None:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ValueError(
                f"ensemble {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum {self.ack_quorum}:"
                " expected ensemble >= write quorum >= ack quorum >= 1"
            )
        if (
            self.max_entries_per_ledger < 1
            or self.max_size_bytes < 1
            or self.max_entries_per_cursor_ledger < 1
        ):
            raise ValueError("a ledger must be allowed at least one entry and one byte")
        if self.mark_delete_rate_per_s <= 0:
            raise ValueError("mark_delete_rate_per_s must be positive")
