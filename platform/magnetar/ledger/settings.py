"""How patient a ledger client is, and how much it keeps in memory. `runtime` reads these; here they are values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magnetar.protocol.bookie import MAX_ENTRY_BYTES
from magnetar.protocol.ledger_entry import ENTRY_HEADER_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class LedgerClientSettings:
    max_entry_bytes: int = MAX_ENTRY_BYTES - ENTRY_HEADER_BYTES
    """The largest payload of an entry. Larger ones are refused before they get an id."""
    pending_bytes: int = 192 * MIB
    """Appended and not yet confirmed, over all ledgers. With more, appends are refused until there is room."""
    unacknowledged_bytes: int = 64 * MIB
    """Confirmed, but still on the way to bookies that lag, over all ledgers. Beyond it the slowest is replaced."""
    replica_lag_s: float = 3.0
    """A bookie that has not answered for this long while others have is replaced."""
    slow_replica_s: float = 0.1
    """A bookie is also replaced, and chosen no more for a while, whose adds take longer than this for ten seconds,"""
    slow_replica_ratio: float = 20.0
    """and so many times as long as its peers', though it keeps up. 0: never."""
    close_patience_s: float = 0.1
    """How long a ledger that is closed waits for copies still on their way, before it says that they may be missing."""
    explicit_lac_s: float = 0.0
    """How often bookies are told of the last entry confirmed where no later entry tells them. 0: never."""
    delay_ensemble_change: bool = False
    """Whether a failing bookie is kept for as long as the others make up the ack quorum."""
    ensemble_retry_s: float = 5.0
    """How long a failing bookie is kept where no other could be found, before one is looked for again."""
    quarantine_s: float = 30.0
    """How long a bookie that failed is not chosen again while others can be; doubled if it soon fails again."""
    quarantine_max_s: float = 1800.0
    """The longest quarantine, and the one of a bookie with too many errors."""
    quarantine_errors: int = 100
    """A bookie that fails more writes than this within `quarantine_interval_s` is quarantined."""
    quarantine_interval_s: float = 60.0
    quarantine_ratio: float = 1.0
    """How likely this client is to quarantine a bookie for its errors: below 1, not all clients drop the same one."""
    placement_policy: Literal["random", "rack", "region"] = "rack"
    """What copies of an entry are spread over, beside failure domains: nothing, racks, or regions and their racks."""
    placement_strict: bool = False
    """Whether no ledger is better than one with two copies of an entry in one failure domain."""
    placement_by_free_space: bool = False
    """Whether bookies with more free disk are chosen more often."""
    placement_weight_max: float = 3.0
    """By how much free disk counts at most, as a multiple of the median."""
    metadata_retry_s: float = 30.0
    """How long a change of a ledger's metadata is tried while the store gives no answer."""
    metadata_backoff_s: float = 0.05
    metadata_backoff_max_s: float = 2.0
    recovery_window: int = 32
    """Entries of a ledger's tail read at once in a recovery."""
    read_run_bytes: int = 4 * MIB
    """The most asked of a bookie in one read."""
    speculative_read_s: float = 2.0
    """A replica that has not answered a read for this long is not waited for alone. 0: it is."""
    tail_read_s: float = 1.5
    """The same for readers that wait for an open ledger's next entry: they ask one bookie more each time."""
    local_rack: str = ""
    """Where this process stands, `/region/rack`: replicas nearby are read first. Empty: all are equally near."""
    read_window: int = 16
    """Entries read at once from a ledger that is striped."""
