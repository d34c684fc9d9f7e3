"""Which ledgers a log may drop. Pure. Source: Pulsar `ManagedLedgerImpl.internalTrimLedgers`."""

from __future__ import annotations

from itertools import islice

from magnetar.managed_ledger.config import UNLIMITED, ManagedLedgerConfig
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import Position


def droppable(ledgers: LedgerList, slowest: Position | None, config: ManagedLedgerConfig, now_ms: int) -> int:
    """How many ledgers at the front of `ledgers` may go.

    A ledger goes once every durable cursor has passed it (`slowest` is the lowest mark; None: there are no
    cursors) and it is older than the retention time, or what follows it alone fills the retention size. The
    last one always stays. The first that stays keeps all behind it, so that a log never has holes.
    """
    left = ledgers.size
    number = 0
    for span in islice(ledgers, len(ledgers) - 1):
        if not span.closed_ms:
            break
        if slowest is not None and ledgers.ordinal(slowest) < span.entries_before + span.entries:
            break
        age_s = (now_ms - span.closed_ms) / 1000
        too_old = config.retention_time_s != UNLIMITED and age_s >= config.retention_time_s
        too_much = (
            config.retention_size_bytes != UNLIMITED and left - span.size >= config.retention_size_bytes
        )
        if not _expired(config, too_old=too_old, too_much=too_much):
            break
        left -= span.size
        number += 1
    return number


def _expired(config: ManagedLedgerConfig, *, too_old: bool, too_much: bool) -> bool:
    if config.retention_time_s == 0 or config.retention_size_bytes == 0:
        return True  # A limit of 0 in either dimension keeps nothing.
    return too_old or too_much
