"""What a bookie is told of metadata and of other bookies, so that it can mend itself: `bookie.integrity.Peers`."""

from __future__ import annotations

from collections.abc import AsyncIterator

from magnetar.autorecovery.entry_ranges import union
from magnetar.autorecovery.extents import extents, names_any
from magnetar.bookie.integrity import Holdings
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry

_ANY_LAC = 2**62
"""The fragment before an open ledger's last one counts as closed: the last begins right behind what was confirmed."""


class BookiePeers:
    """For one bookie. Belongs to the loop of the ledger client whose surroundings these are."""

    def __init__(self, surroundings: Surroundings, bookie_id: str) -> None:
        self._surroundings = surroundings
        self._bookie_id = bookie_id
        self._last: LedgerMetadata | None = None
        """Of the ledger that was asked for last: entries are fetched one after the other."""

    async def ledgers(self) -> set[int]:
        """All ledgers of which any fragment names this bookie. Raises: MetadataUnavailable, MetadataCorrupt."""
        return {metadata.ledger_id async for metadata in self._named()}

    async def fenceable(self) -> set[int]:
        """Those of which the last fragment names it. Raises: MetadataUnavailable, MetadataCorrupt."""
        return {
            metadata.ledger_id
            async for metadata in self._named()
            if self._bookie_id in metadata.last_fragment.ensemble
        }

    async def _named(self) -> AsyncIterator[LedgerMetadata]:
        registry = self._surroundings.registry
        for ledger_id in await registry.list():
            found = await registry.get(ledger_id)
            if found is not None and names_any(found[0], (self._bookie_id,)):
                yield found[0]

    async def holdings(self, ledger_id: int) -> Holdings | None:
        found = await self._surroundings.registry.get(ledger_id)
        if found is None:
            return None
        metadata = self._last = found[0]
        settled, stripes = True, []
        for extent in extents(metadata, _ANY_LAC):
            for slot, bookie in enumerate(extent.ensemble):
                if bookie == self._bookie_id:
                    settled &= extent.closed
                    if extent.closed:
                        stripes.append(tuple(extent.stripe(slot)))
        return Holdings(union(stripes), settled, self._surroundings.master_key)

    async def fetch(self, ledger_id: int, entry_id: int) -> bytes | None:
        known = self._last
        if known is not None and known.ledger_id == ledger_id:
            entry = await self._fetch(known, entry_id)
            if entry is not None:
                return entry
        found = await self._surroundings.registry.get(ledger_id)  # Others may have its copies by now.
        self._last = None if found is None else found[0]
        if found is None or found[0] == known:
            return None
        return await self._fetch(found[0], entry_id)

    async def _fetch(self, metadata: LedgerMetadata, entry_id: int) -> bytes | None:
        ledger_id = metadata.ledger_id
        for bookie in metadata.fragment_of(entry_id).write_set(entry_id):
            if bookie == self._bookie_id:
                continue
            connection = self._surroundings.bookies.connection(bookie)
            status, entries = await connection.read_entries(ledger_id, entry_id, 1, 1, background=True)
            if status is BookieStatus.OK and entries:
                try:
                    decode_entry(entries[0], expect_ledger=ledger_id, expect_entry=entry_id)
                except EntryCorrupt:
                    continue
                return entries[0]
        return None
