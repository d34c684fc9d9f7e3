"""Looking through all ledgers: whose bookies are lost, whose copies are bad, whose copies fail together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass

from magnetar.autorecovery.checker import NO_DOUBTS, LedgerChecker
from magnetar.autorecovery.extents import extents, names_open
from magnetar.autorecovery.records import RepairReports
from magnetar.autorecovery.verdicts import shared_domains
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import MetadataCorrupt, NoSuchLedger
from magnetar.ledger.metadata import LedgerMetadata
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.protocol.bookie import BookieProvider

log = get_logger("magnetar.autorecovery")

METADATA_AT_ONCE = 64
SHARING_NAMED_MAX = 100

GoOn = Callable[[], Awaitable[None]]
"""Asked between two ledgers; raises where the look is to end."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """Ledgers with copies that one failure takes together."""

    count: int
    some: tuple[int, ...]


class Audit:
    """What an auditor does to all ledgers. Nothing here needs to be done by one alone: marks merge."""

    def __init__(
        self,
        ledgers: LedgerClient,
        bookies: BookieProvider,
        marks: UnderreplicatedLedgers,
        reports: RepairReports,
    ) -> None:
        self._ledgers = ledgers
        self._bookies = bookies
        self._marks = marks
        self._reports = reports
        self._checker = LedgerChecker(ledgers.surroundings, bookies)

    async def mark_missing(
        self, go_on: GoOn, *, waited_for: Collection[str] = (), leaving: Collection[str] = ()
    ) -> int:
        """Mark every ledger that names a bookie which is not registered, or is to be emptied.

        Args:
            waited_for: bookies that are away and may still come back in time.
        Returns how many were marked.
        """
        good = {*await self._bookies.readable(), *waited_for} - set(leaving)
        marked = 0
        try:
            async for metadata in self._all(go_on):
                missing = {
                    bookie
                    for segment in metadata.segments
                    for bookie in segment.ensemble
                    if bookie not in good
                }
                if missing:
                    await self._marks.mark(metadata.ledger_id, missing, tell=False)
                    marked += 1
                    crash_point("autorecovery.marked_one")
        finally:
            if marked:
                await self._marks.tell()
        if marked:
            log.warning(
                "ledgers.marked", count=marked, reason="they name bookies that are away or to be emptied"
            )
        return marked

    async def check_all(
        self, go_on: GoOn, *, share: float, concurrency: int, leaving: Collection[str] = ()
    ) -> int:
        """Ask every replica of every ledger what it holds, read some of it, and mark what is bad."""
        marked = 0

        async def check(ledger_id: int) -> None:
            nonlocal marked
            try:
                checkup = await self._checker.check(ledger_id, leaving=leaving, share=share)
            except NoSuchLedger:
                return
            except MetadataCorrupt as error:
                log.error("ledger.not_checked", ledger_id=ledger_id, reason=str(error))
                return
            suspects = checkup.suspects()
            if suspects:
                await self._marks.mark(ledger_id, suspects)
                marked += 1

        ids = await self._ledgers.list()
        for start in range(0, len(ids), concurrency):
            await go_on()
            await asyncio.gather(*map(check, ids[start : start + concurrency]))
        log.info("ledgers.checked", count=len(ids), marked=marked)
        return marked

    async def find_sharing(self, go_on: GoOn) -> Sharing:
        """Which ledgers have copies of an entry in one failure domain."""
        domain_of = {
            bookie: address.failure_domain or bookie
            for bookie, address in (await self._bookies.readable()).items()
        }
        found: list[int] = []
        async for metadata in self._all(go_on):
            for extent in extents(metadata):
                shared = shared_domains(extent, domain_of)
                if shared:
                    if len(found) < SHARING_NAMED_MAX:
                        log.warning(
                            "ledger.copies_share_a_domain",
                            ledger_id=metadata.ledger_id,
                            first_entry=extent.first_entry,
                            bookies=" ".join("+".join(group) for group in shared),
                        )
                    found.append(metadata.ledger_id)
                    break
        return Sharing(len(found), tuple(found[:SHARING_NAMED_MAX]))

    async def revalidate(self, returned: Collection[str], owner: str, go_on: GoOn) -> int:
        """Some bookies are back: take away the marks that are no longer true. Returns how many."""
        cleared = 0
        for ledger_id in await self._marks.ids():
            await go_on()
            mark = await self._marks.get(ledger_id)
            if mark is None or not set(mark.missing) & set(returned):
                continue
            lock = await self._marks.lock(ledger_id, owner)
            if lock is None:
                continue  # Whoever repairs it looks by itself.
            try:
                mark = await self._marks.get(ledger_id)
                if mark is not None and await self._is_well(ledger_id, mark.missing):
                    await self._reports.drop(ledger_id)
                    cleared += lock.held and await self._marks.clear(mark)
            finally:
                await lock.release()
        if cleared:
            log.info("marks.cancelled", count=cleared, returned=",".join(sorted(returned)))
        return cleared

    async def _is_well(self, ledger_id: int, suspects: Collection[str]) -> bool:
        """What a bookie may lack of an open fragment is for the worker to look at, who fills it up."""
        report = await self._reports.get(ledger_id)
        doubted = NO_DOUBTS if report is None else report.doubts()
        try:
            checkup = await self._checker.check(ledger_id, doubted=doubted)
        except NoSuchLedger:
            return True
        return checkup.well and not names_open(checkup.metadata, suspects)

    async def _all(self, go_on: GoOn) -> AsyncIterator[LedgerMetadata]:
        """The metadata of all ledgers, but for those deleted meanwhile."""
        registry = self._ledgers.surroundings.registry
        ids = await self._ledgers.list()
        for start in range(0, len(ids), METADATA_AT_ONCE):
            await go_on()
            some = ids[start : start + METADATA_AT_ONCE]
            found = await asyncio.gather(*map(registry.get, some), return_exceptions=True)
            for ledger_id, each in zip(some, found, strict=True):
                if isinstance(each, MetadataCorrupt):
                    log.error("ledger.not_audited", ledger_id=ledger_id, reason=str(each))
                elif isinstance(each, BaseException):
                    raise each
                elif each is not None:
                    yield each[0]
