"""How ledgers of logs and cursors are made, and what holds until a record names them.

A ledger that no record names is an orphan, which the sweeper deletes when it is old. So whoever has made one
and then slept for long, before or while it was named, must look whether it is still there.
"""

from __future__ import annotations

from magnetar.environment.clock import Clock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoSuchLedger
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import StorageUnavailable

LONG_S = 300.0
"""Far less than the age at which the sweeper takes a ledger for an orphan."""


class NewLedger:
    """A ledger that is made and not yet named."""

    __slots__ = ("_clock", "_made_at", "_made_ms", "writer")

    def __init__(self, writer: LedgerWriter, clock: Clock, made_at: float, made_ms: int) -> None:
        self.writer = writer
        self._clock = clock
        self._made_at = made_at
        self._made_ms = made_ms

    async def check(self, client: LedgerClient, log_name: str) -> None:
        """Call this once it is named, before the first entry is sent.

        Raises:
            StorageUnavailable: it is gone; take another.
        """
        took_s = self._clock.monotonic() - self._made_at
        took_ms = self._clock.time_ms() - self._made_ms  # Shows sleep of the machine, too.
        if took_s < LONG_S and took_ms < LONG_S * 1000:
            return
        try:
            metadata = await client.metadata_of(self.writer.ledger_id)
        except NoSuchLedger as error:
            raise StorageUnavailable(log_name, f"{error}: it took too long to name it") from error
        if metadata.closed:
            raise StorageUnavailable(
                log_name, f"ledger {self.writer.ledger_id} was closed while it was being named"
            )


async def new_ledger(
    client: LedgerClient,
    clock: Clock,
    config: ManagedLedgerConfig,
    log_name: str,
    *,
    cursor: str | None = None,
    above: int = -1,
) -> NewLedger:
    """
    Raises:
        LedgerError
    """
    custom = {
        "application": b"magnetar",
        "component": b"managed-ledger",
        "managed-ledger": log_name.encode(),
    }
    if cursor is not None:
        custom["cursor"] = cursor.encode()
    made_at, made_ms = clock.monotonic(), clock.time_ms()
    writer = await client.create(
        config.ensemble_size,
        config.write_quorum,
        config.ack_quorum,
        custom_metadata=custom,
        above=above,
        groups=config.bookie_groups,
    )
    return NewLedger(writer, clock, made_at, made_ms)
