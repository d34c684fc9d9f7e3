"""Which copies on a bookie nobody names any more: `bookie.garbage.Surplus`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from magnetar.autorecovery.extents import names_any
from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import MetadataCorrupt
from magnetar.ledger.metadata import LedgerState
from magnetar.ledger.registry import LedgerRegistry
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.autorecovery")


class SurplusCopies:
    """For one bookie. Belongs to the loop of its metadata store."""

    def __init__(self, registry: LedgerRegistry, store: MetadataStore, bookie_id: str) -> None:
        self._registry = registry
        self._marks = UnderreplicatedLedgers(store)
        self._bookie_id = bookie_id

    async def is_unnamed(self, ledger_id: int) -> bool:
        """An open ledger may be on its way here: a recovery writes entries first, and names their bookies when it closes.

        Raises: MetadataUnavailable.
        """
        try:
            found = await self._registry.get(ledger_id)
        except MetadataCorrupt as error:
            log.warning("surplus.metadata_unreadable", ledger_id=ledger_id, reason=str(error))
            return False  # Nobody knows: the copy stays, and the others are looked at all the same.
        return (
            found is not None
            and found[0].state is LedgerState.CLOSED
            and not names_any(found[0], (self._bookie_id,))
        )

    @asynccontextmanager
    async def kept_unnamed(self, ledger_id: int) -> AsyncIterator[bool]:
        """False where the ledger is being repaired, or is to be: then this copy may serve to repair it from."""
        lock = await self._marks.lock(ledger_id, f"{self._bookie_id}-garbage")
        if lock is None:
            yield False
            return
        try:
            wanted = await self._marks.get(ledger_id) is not None
            yield not wanted and await self.is_unnamed(ledger_id) and lock.held
        finally:
            await lock.release()
