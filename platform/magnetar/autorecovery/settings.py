"""How watchful and how quick autorecovery is. `runtime` reads these from files and the environment."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024
DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class AutorecoverySettings:
    lost_bookie_recovery_delay_s: float = 60.0
    """How long one bookie may be away before its ledgers are copied elsewhere: a restart should not move data. When
    more than one is away, nothing is waited for. A value set in the metadata store, at run time, wins."""
    open_ledger_grace_s: float = 30.0
    """How long the writer of an open ledger has to replace a lost bookie by itself. After that it is fenced, and the
    ledger closed: an idle one that loses bookies in silence could become unrecoverable."""
    copy_bytes_per_s: float = 64 * MIB
    """The most one worker copies in a second, so that clients keep disks and network to themselves. 0: no limit."""
    repairs_at_once: int = 4
    """Ledgers that one worker repairs side by side, within `copy_bytes_per_s` together. More: small ledgers, of which most
    of the time goes into looking, are done sooner; and more copies in memory."""
    copy_batch_entries: int = 1000
    """Entries read and written at once while copying. More: quicker, and more in memory."""
    copy_batch_bytes: int = 4 * MIB
    """A batch ends here too; the copies of one batch are in memory at once."""
    workers_idle_s: float = 30.0
    """How often a worker looks for marks it was not told of."""
    retry_s: float = 5.0
    """The first pause after a repair that failed, or for want of bookies; it doubles up to `retry_max_s`."""
    retry_max_s: float = 300.0
    bookie_check_interval_s: float = DAY_S
    """How often all ledgers' metadata are compared with the bookies there are, whatever was heard. 0: never."""
    ledger_check_interval_s: float = 7 * DAY_S
    """How often every ledger's replicas are asked what they hold, and some entries read and verified. 0: never."""
    ledger_check_share: float = 0.0
    """The share of entries read from each replica in that check, beside the first and the last, 0 to 1."""
    ledger_check_concurrency: int = 8
    """Ledgers checked at once."""
    placement_check_interval_s: float = DAY_S
    """How often fragments are looked for whose copies share a failure domain. They are counted and logged. 0: never."""
