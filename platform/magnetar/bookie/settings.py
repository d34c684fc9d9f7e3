"""How a bookie is set up. `runtime` reads these from files and the environment; here they are values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from magnetar.bookie.space import Watermarks

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class BookieSettings:
    directory: Path
    """Where everything lies that no other directory is named for."""
    ledger_directories: tuple[Path, ...] = ()
    """Where entries, their index and the ledger tables lie: one directory for each disk. A ledger is in one of them, for
    ever; new ones are spread over those with room. Directories may be added at the end, and none may be missing. The
    first may be `directory` of a bookie that had only that. Empty: `directory`."""
    journal_directories: tuple[Path, ...] = ()
    """Where journals lie, each best on a device that does nothing else. There are as many as there are directories of the
    kind that has more; they take turns in the fewer. Empty: beside the entries."""

    on_lost_data: Literal["refuse", "limbo"] = "refuse"
    """What to do where data is missing that was acknowledged: refuse to start, or start in limbo: read-only, denying
    nothing, until it has got back from other bookies what metadata says it should hold."""

    journal_segment_bytes: int = 64 * MIB
    """Size of a journal segment. Larger: fewer rolls; a restart reads at most one segment it does not need."""
    journal_first_bytes: int = 4 * MIB
    """Zeros laid down where no prepared segment is at hand, and steps in which such a segment grows."""
    journal_pending_bytes: int = 64 * MIB
    """Entries that may wait for the disk. Beyond it adds wait at the door, and no longer count on memory."""

    write_cache_bytes: int = 64 * MIB
    """Both halves of the write cache together: one is filled while the other is flushed."""
    waiting_adds_bytes: int = 32 * MIB
    """Adds that may wait at the door while cache and journal are full; more are refused at once."""
    add_wait_s: float = 10.0
    """How long an add may wait at the door before it is refused with TOO_MANY_REQUESTS."""
    flush_interval_s: float = 60.0
    """Longest time an entry stays only in cache and journal. Shorter: quicker restarts, smaller flushes."""

    read_cache_bytes: int = 32 * MIB
    read_ahead_bytes: int = 256 * 1024
    """How much of an entry log is read at once, in the hope that the next entries are asked for next."""
    read_threads: int = 4

    entry_log_bytes: int = 256 * MIB
    """An entry log is sealed at this size. Smaller: space comes back sooner, more files."""
    entry_log_cached_bytes: int = 128 * MIB
    """How much of the newest entry logs the page cache should keep, for readers that are not far behind. A bound keeps a
    bookie's memory the same memory: new pages for every flush cost more processor time than writing to them."""
    entry_log_read_cached_bytes: int = 16 * MIB
    """As much as that of older entry logs stays in the page cache after it was read: for readers that go side by side.
    What they read a moment ago makes room for what they read next, instead of new pages for all of a backlog."""
    compaction_threshold: float = 0.5
    """Logs with less than this share of live bytes are rewritten by garbage collection."""
    gc_interval_s: float = 900.0
    gc_grace_s: float = 120.0
    """How long a ledger must be missing from metadata before it is forgotten, and its fence with it. Longer than any
    client keeps a connection on which nothing comes: a broker that sleeps longer has nobody left to acknowledge to."""

    gc_over_replicated_interval_s: float = 86400.0
    """How often copies are looked for that no metadata names, because their ledgers were copied elsewhere meanwhile."""

    scrub_bytes_per_s: int = 4 * MIB
    """How fast all stored entries are read again and verified. 0: not at all."""
    scrub_interval_s: float = 86400.0
    """Time between two such rounds."""

    free_bytes_min: int = 64 * MIB
    """Below this much free space the bookie is read-only, save for adds of recoveries."""
    reserve_bytes: int = 32 * MIB
    """Below this much not even those are taken: it is for checkpoints and compaction, which give space back."""
    disk_warn_usage: float = 0.90
    """Above this share of the disk in use garbage is collected more eagerly."""
    disk_full_usage: float = 0.95
    """Above this share the bookie is read-only, whatever is free."""
    disk_low_usage: float = 0.92
    """And writable again below this one."""
    lac_waits_max: int = 20_000
    """Long-polls of tail readers that may be parked here at a time; more are refused at once."""
    domain: str = ""
    """What fails together with this bookie: a machine, a power line. No two copies go into one while another is free.
    Empty: the host it is reached by."""
    rack: str = ""
    """Its place in the network as a path, `/region/rack`, for placement."""
    stop_wait_s: float = 20.0
    """How long a stop may take to flush. What is not flushed then is in the journal, and replayed at the next start."""
    fence_wait_s: float = 10.0
    """How long an answer may wait for its fence to become durable; then it is TIMEOUT."""

    @property
    def journal(self) -> Path:
        """Where the segments lie, of a bookie with one journal."""
        return (self.journal_directories[0] if self.journal_directories else self.directory) / "journal"

    @property
    def watermarks(self) -> Watermarks:
        return Watermarks(
            self.disk_warn_usage,
            self.disk_full_usage,
            self.disk_low_usage,
            self.free_bytes_min,
            min(self.reserve_bytes, self.free_bytes_min),
        )
