"""Looking at one ledger: what its bookies say they hold, and whether what they give is right."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from magnetar.autorecovery.entry_ranges import Ranges, count, from_ids, intersect
from magnetar.autorecovery.extents import Extent, extents
from magnetar.autorecovery.verdicts import Holding, Verdict, add_damage, judge
from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import ReadFailed
from magnetar.ledger.last_confirmed import read_last_confirmed
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.surroundings import Surroundings
from magnetar.protocol.bookie import BookieProvider, BookieStatus
from magnetar.protocol.ledger_entry import EntryCorrupt, decode_entry

log = get_logger("magnetar.autorecovery")

SAMPLES_AT_ONCE = 8
NO_DOUBTS: Mapping[str, Collection[int]] = {}


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was found of one ledger."""

    metadata: LedgerMetadata
    bad: tuple[Verdict, ...]
    """Of the fragments that are not well."""

    @property
    def well(self) -> bool:
        return not self.bad

    @property
    def open_bad(self) -> bool:
        """Whether an open fragment names a bookie that is not there."""
        return any(not verdict.extent.closed for verdict in self.bad)

    def suspects(self) -> tuple[str, ...]:
        """The bookies to name in a mark: those that are gone, or lack entries. Not those that did not answer."""
        found = {copy.bookie for verdict in self.bad for copy in (*verdict.gone, *verdict.incomplete)}
        return tuple(sorted(found))


class LedgerChecker:
    """Asks every bookie that a ledger's metadata name for the list of its entries, and reads some of them."""

    def __init__(self, surroundings: Surroundings, bookies: BookieProvider) -> None:
        self._surroundings = surroundings
        self._bookies = bookies

    async def check(
        self,
        ledger_id: int,
        *,
        leaving: Collection[str] = (),
        share: float = 0.0,
        doubted: Mapping[str, Collection[int]] = NO_DOUBTS,
    ) -> Checkup:
        """
        Args:
            share: of the entries of each copy, read and verify so many, beside the first and the last.
            doubted: by bookie, entries to read and verify too: they were found damaged before.
        Raises:
            NoSuchLedger, MetadataUnavailable, MetadataCorrupt
        """
        metadata = await self._surroundings.registry.read(ledger_id)
        readable = frozenset(await self._bookies.readable())
        confirmed = -1
        if not metadata.closed and len(metadata.segments) > 1:
            confirmed = await self._last_confirmed(metadata)
        parts = extents(metadata, confirmed)
        asked = sorted(
            {bookie for part in parts if part.entries() for bookie in part.ensemble if bookie in readable}
        )
        holdings = dict(
            zip(asked, await asyncio.gather(*(self._ask(ledger_id, each) for each in asked)), strict=True)
        )
        for part in parts:
            await self._sample(ledger_id, part, holdings, share, doubted)
        verdicts = [
            judge(
                part, readable=readable, leaving=leaving, holdings=holdings if part.entries() else _all(part)
            )
            for part in parts
        ]
        return Checkup(metadata, tuple(verdict for verdict in verdicts if not verdict.well))

    async def check_open(self, ledger_id: int, last_entry: int | None = None) -> Verdict | None:
        """How the last fragment of an open ledger stands; None if it is closed by now.

        Args:
            last_entry: look so far. None: up to what is confirmed, or held by any of its bookies if that is more. Bookies
                hear late what is confirmed, and an entry that nobody was told of yet may well be stored once more.
        Raises:
            NoSuchLedger, MetadataUnavailable, MetadataCorrupt
            ReadFailed: nobody says what is confirmed.
        """
        metadata = await self._surroundings.registry.read(ledger_id)
        if metadata.closed:
            return None
        fragment = metadata.last_fragment
        readable = frozenset(await self._bookies.readable())
        asked = [bookie for bookie in fragment.ensemble if bookie in readable]
        found = await asyncio.gather(*(self._ask(ledger_id, each) for each in asked))
        if last_entry is None:
            held = [holding.ranges[-1][1] for holding in found if holding.ranges]
            last_entry = max(await read_last_confirmed(metadata, self._surroundings), *held, -1)
        part = Extent(fragment, last_entry)
        holdings = dict(zip(asked, found, strict=True)) if part.entries() else _all(part)
        return judge(part, readable=readable, leaving=(), holdings=holdings)

    async def _last_confirmed(self, metadata: LedgerMetadata) -> int:
        try:
            return await read_last_confirmed(metadata, self._surroundings)
        except ReadFailed as error:
            # None of the last fragment's bookies is there: that must not keep the fragments before from repair. They
            # are confirmed, since it begins right behind what was.
            log.info("ledger.end_unknown", ledger_id=metadata.ledger_id, reason=str(error))
            return metadata.segments[-1].first_entry - 1

    async def _ask(self, ledger_id: int, bookie: str) -> Holding:
        answer = await self._surroundings.bookies.connection(bookie).list_entries(ledger_id)
        vouches = answer.status is BookieStatus.OK or answer.status.is_negative
        return Holding(answer.ranges, known=vouches)

    async def _sample(
        self,
        ledger_id: int,
        part: Extent,
        holdings: dict[str, Holding],
        share: float,
        doubted: Mapping[str, Collection[int]],
    ) -> None:
        """Read the first, the last and some more of each slot's entries; note what is damaged."""
        if not part.entries():
            return
        wanted: list[tuple[str, int]] = []
        for slot, bookie in enumerate(part.ensemble):
            holding = holdings.get(bookie)
            if holding is None:
                continue
            held = tuple(intersect(part.stripe(slot), holding.ranges))
            asked = {*self._drawn(held, share)}
            for entry_id in doubted.get(bookie, ()):
                if next(intersect(((entry_id, entry_id),), held), None) is not None:
                    asked.add(entry_id)
            wanted += [(bookie, entry_id) for entry_id in sorted(asked)]
        damaged: dict[str, list[int]] = {}
        for start in range(0, len(wanted), SAMPLES_AT_ONCE):
            some = wanted[start : start + SAMPLES_AT_ONCE]
            good = await asyncio.gather(*(self._is_good(ledger_id, bookie, each) for bookie, each in some))
            for (bookie, entry_id), fine in zip(some, good, strict=True):
                if not fine:
                    damaged.setdefault(bookie, []).append(entry_id)
        for bookie, ids in damaged.items():
            holdings[bookie] = add_damage(holdings[bookie], from_ids(ids))

    def _drawn(self, held: Ranges, share: float) -> list[int]:
        total = count(held)
        if not total:
            return []
        dice = self._surroundings.dice
        ranks = {0, total - 1, *(dice.randrange(total) for _ in range(round(total * share)))}
        ids: list[int] = []
        at, passed = 0, 0
        for rank in sorted(ranks):
            while rank - passed > held[at][1] - held[at][0]:
                passed += held[at][1] - held[at][0] + 1
                at += 1
            ids.append(held[at][0] + rank - passed)
        return ids

    async def _is_good(self, ledger_id: int, bookie: str, entry_id: int) -> bool:
        """False if the bookie gives something else, or owns that it has lost it. Silence says nothing."""
        connection = self._surroundings.bookies.connection(bookie)
        status, run = await connection.read_entries(ledger_id, entry_id, 1, 1, background=True)
        if status is BookieStatus.OK and run:
            try:
                decode_entry(run[0], expect_ledger=ledger_id, expect_entry=entry_id)
            except EntryCorrupt as error:
                log.warning("replica.corrupt", bookie=bookie, ledger_id=ledger_id, reason=str(error))
                return False
            return True
        if status.is_negative or status is BookieStatus.IO_ERROR:
            log.warning(
                "replica.missing", bookie=bookie, ledger_id=ledger_id, entry_id=entry_id, status=status.name
            )
            return False
        return True


def _all(part: Extent) -> dict[str, Holding]:
    """Of a fragment without entries, every bookie holds all there is."""
    return {bookie: Holding() for bookie in part.ensemble}
