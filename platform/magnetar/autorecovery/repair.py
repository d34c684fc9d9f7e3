"""Making one ledger whole: look, copy what is missing, name the new bookies, look again.

The metadata name a bookie only after it holds, durably, every entry of the slot it takes (invariant I18).
What is done twice does no harm: copies are the same bytes, and metadata change by compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum

from magnetar.autorecovery.checker import NO_DOUBTS, Checkup, LedgerChecker
from magnetar.autorecovery.copier import Copier, CopyCounts
from magnetar.autorecovery.copy_plan import CopyPlan, Filling
from magnetar.autorecovery.entry_ranges import NOTHING, Ranges, intersect, subtract, union
from magnetar.autorecovery.errors import CopyFailed, EntryUnreadable, LockLost
from magnetar.autorecovery.extents import Extent, extents, names_open
from magnetar.autorecovery.records import LostEntries, RepairReport
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.autorecovery.targets import choose_targets
from magnetar.autorecovery.verdicts import Verdict
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import NoSuchLedger, ReadFailed, RecoveryFailed
from magnetar.ledger.fragment import replace_slots
from magnetar.ledger.metadata import LedgerMetadata, Segment, replace_in_segments
from magnetar.ledger.underreplicated import LedgerLock
from magnetar.protocol.bookie import BookieProvider

log = get_logger("magnetar.autorecovery")


class Outcome(Enum):
    WHOLE = "whole"
    DELETED = "deleted"
    """There is no such ledger any more."""
    OPEN = "open"
    """An open fragment names a bookie that is gone: its writer is given time to replace it."""
    SUSPECTED = "suspected"
    """An open fragment names a bookie that may lack entries, and could not be given them: once more, later."""
    LEFT = "left"
    """Something could not be done; the report says what."""


@dataclass(frozen=True, slots=True)
class Repair:
    """How a repair ended."""

    outcome: Outcome
    report: RepairReport | None = None
    substitutions: int = 0
    open_bad: bool = False
    """Whether an open fragment still names a bookie that is gone."""


@dataclass(slots=True)
class _Problems:
    """Why a ledger cannot be made whole now."""

    reasons: dict[str, None] = field(default_factory=dict)
    lost: dict[int, LostEntries] = field(default_factory=dict)

    def add(self, reason: str) -> None:
        self.reasons[reason] = None

    def lose(self, verdict: Verdict, entries: Ranges) -> None:
        extent = verdict.extent
        self.lost[extent.first_entry] = LostEntries.of(extent.first_entry, extent.ensemble, entries)
        gone = ", ".join(sorted(copy.bookie for copy in verdict.gone)) or "its bookies"
        self.add(f"entries of which only {gone} had copies")

    def report(self, ledger_id: int) -> RepairReport:
        reason = "; ".join(self.reasons) or "it changed while it was repaired"
        lost = tuple(self.lost[first] for first in sorted(self.lost))
        return RepairReport(ledger_id, reason, lost)


class Repairer:
    """Repairs ledgers, one call each. Its owner holds the ledger's lock."""

    def __init__(
        self,
        ledgers: LedgerClient,
        bookies: BookieProvider,
        settings: AutorecoverySettings,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`pause` waits, e.g. to keep to a rate; it raises where the work is to end."""
        self._ledgers = ledgers
        self._surroundings = ledgers.surroundings
        self._bookies = bookies
        self._checker = LedgerChecker(self._surroundings, bookies)
        self.counts = CopyCounts()
        self._copier = Copier(self._surroundings, settings, self.counts, pause)

    async def repair(
        self,
        ledger_id: int,
        lock: LedgerLock,
        *,
        leaving: Collection[str] = (),
        suspects: Collection[str] = (),
        doubts: Mapping[str, Collection[int]] = NO_DOUBTS,
        fence_open: bool = False,
        accept_loss: bool = False,
    ) -> Repair:
        """Repair what can be repaired.

        Args:
            leaving: bookies whose copies are to be moved elsewhere.
            suspects: bookies that were marked. Where an open fragment names one, it is whole when all of that fragment's
                bookies have what any of them has.
            doubts: by bookie, entries to be read and verified: they were once missing or damaged.
            fence_open: take the ledger from its writer where an open fragment names a bookie that is gone.
            accept_loss: where entries are lost, have the rest moved to other bookies all the same. Should the lost
                bookies come back, nobody will ask them for these entries: for operators who know.
        Raises:
            LockLost, MetadataUnavailable, MetadataCorrupt
        """
        problems = _Problems()
        substitutions = 0

        async def look() -> Checkup:
            found = self._copier.damaged.get(ledger_id, {})
            doubted = {
                bookie: {*doubts.get(bookie, ()), *found.get(bookie, ())} for bookie in {*doubts, *found}
            }
            return await self._checker.check(ledger_id, leaving=leaving, doubted=doubted)

        try:
            checkup = await look()
            if checkup.open_bad and fence_open:
                try:
                    await self._ledgers.open(ledger_id, recover=True)
                except RecoveryFailed as error:
                    problems.add(str(error))
                else:
                    checkup = await look()
            if not checkup.well:
                for _ in range(2):  # Once more where copying found other copies damaged.
                    for verdict in checkup.bad:
                        if verdict.extent.closed:
                            substitutions += await self._mend(
                                checkup.metadata, verdict, lock, leaving, accept_loss, problems
                            )
                    checkup = await look()
                    if problems.reasons or not any(verdict.incomplete for verdict in checkup.bad):
                        break
        except NoSuchLedger:
            self._copier.damaged.pop(ledger_id, None)
            return Repair(Outcome.DELETED)
        if checkup.well or (accept_loss and not _needs_more(checkup)):
            self._copier.damaged.pop(ledger_id, None)
            suspected = names_open(checkup.metadata, suspects) and not await self._fill_open(ledger_id)
            return Repair(Outcome.SUSPECTED if suspected else Outcome.WHOLE, substitutions=substitutions)
        if checkup.open_bad and not fence_open:
            # Whatever else is wrong: what the closed fragments lack may be lacking for ever.
            return Repair(Outcome.OPEN, substitutions=substitutions, open_bad=True)
        return Repair(Outcome.LEFT, problems.report(ledger_id), substitutions, checkup.open_bad)

    async def check(self, ledger_id: int, *, leaving: Collection[str] = (), share: float = 0.0) -> Checkup:
        return await self._checker.check(ledger_id, leaving=leaving, share=share)

    async def move(
        self, ledger_id: int, lock: LedgerLock, *, onto: Collection[str], away_from: Collection[str]
    ) -> int:
        """Move copies of a closed ledger's fragments onto `onto`, from `away_from` or, if that is empty, from any
        other bookie; at most one slot of a fragment for each of `onto`. Returns how many slots were moved.

        Raises:
            EntryUnreadable, CopyFailed, LockLost, NoSuchLedger, MetadataUnavailable
        """
        metadata = await self._surroundings.registry.read(ledger_id)
        readable = tuple(sorted(await self._bookies.readable()))
        moved = 0
        for extent in _closed_extents(metadata):
            slots = [
                slot
                for slot, bookie in enumerate(extent.ensemble)
                if (bookie in away_from if away_from else bookie not in onto)
            ][: len(set(onto) - set(extent.ensemble))]
            targets = await choose_targets(
                self._surroundings, metadata, extent.ensemble, slots, excluding=away_from, among=onto
            )
            if not targets:
                continue
            fillings = {slot: Filling(new, tuple(extent.stripe(slot))) for slot, new in targets.items()}
            await self._copier.copy(ledger_id, CopyPlan(extent, fillings, readable))
            moved += await self._rename(ledger_id, extent.first_entry, extent.ensemble, targets, lock)
        return moved

    # One fragment.

    async def _fill_open(self, ledger_id: int) -> bool:
        """Give the bookies of an open ledger's last fragment what others have and they lack. Whether they have it all.

        Its writer goes on meanwhile. What it leaves out from here on is marked once more when the fragment ends: by
        itself, or by the recovery that closes the ledger after its death.
        """
        try:
            verdict = await self._checker.check_open(ledger_id)
            if verdict is None or verdict.gone or verdict.doubtful or verdict.lost:
                return False
            if verdict.well:
                return True
            fillings = {
                copy.slot: Filling(copy.bookie, copy.missing, in_place=True) for copy in verdict.incomplete
            }
            readable = tuple(sorted(await self._bookies.readable()))
            await self._copier.copy(ledger_id, CopyPlan(verdict.extent, fillings, readable))
            after = await self._checker.check_open(ledger_id, verdict.extent.last_entry)
        except (ReadFailed, EntryUnreadable, CopyFailed, NoSuchLedger) as error:
            log.info("open_fragment.not_filled", ledger_id=ledger_id, reason=str(error))
            return False
        # A fragment that ended meanwhile is looked at as a closed one, the next time.
        return after is not None and after.well and after.extent.first_entry == verdict.extent.first_entry

    async def _mend(
        self,
        metadata: LedgerMetadata,
        verdict: Verdict,
        lock: LedgerLock,
        leaving: Collection[str],
        accept_loss: bool,
        problems: _Problems,
    ) -> int:
        """Copy what is missing of one fragment; returns how many slots have another bookie now."""
        for copy in verdict.doubtful:
            problems.add(f"{copy.bookie} did not say what it holds")
        lost = verdict.lost
        unfit: set[str] = set()
        """Bookies that are there and do not take their own missing entries."""
        while True:
            plan, targets = await self._plan(metadata, verdict, leaving, lost, accept_loss, unfit, problems)
            if not plan.fillings:
                break
            try:
                await self._copier.copy(metadata.ledger_id, plan)
            except EntryUnreadable as error:
                if not error.lost:
                    problems.add(str(error))
                    break
                lost = union([lost, ((error.entry_id, error.entry_id),)])
                continue
            except CopyFailed as error:
                problems.add(str(error))
                now = self._surroundings.clock.monotonic()
                self._surroundings.placement.suspect(error.bookie, now)
                if error.bookie in verdict.extent.ensemble and error.bookie not in unfit:
                    unfit.add(error.bookie)
                    continue
                break
            if lost:
                problems.lose(verdict, lost)
            if not targets:
                return 0
            ensemble = verdict.extent.ensemble
            return await self._rename(metadata.ledger_id, verdict.extent.first_entry, ensemble, targets, lock)
        if lost:
            problems.lose(verdict, lost)
        return 0

    async def _plan(
        self,
        metadata: LedgerMetadata,
        verdict: Verdict,
        leaving: Collection[str],
        lost: Ranges,
        accept_loss: bool,
        unfit: Collection[str],
        problems: _Problems,
    ) -> tuple[CopyPlan, dict[int, str]]:
        """What to copy, and which slots get another bookie by it."""
        extent = verdict.extent
        readable = tuple(sorted(await self._bookies.readable()))
        fillings: dict[int, Filling] = {}
        slots: list[int] = []
        for copy in verdict.incomplete:
            if copy.bookie in unfit:
                if accept_loss or _to_be_had(extent, copy.slot, lost):
                    slots.append(copy.slot)
                continue
            entries = subtract(copy.missing, lost)
            if entries:
                fillings[copy.slot] = Filling(copy.bookie, entries, in_place=True)
        slots += [copy.slot for copy in verdict.gone if accept_loss or _to_be_had(extent, copy.slot, lost)]
        targets = await choose_targets(
            self._surroundings, metadata, extent.ensemble, slots, excluding=leaving
        )
        left = [extent.ensemble[slot] for slot in slots if slot not in targets]
        if left:
            problems.add(f"no writable bookie can take the place of {', '.join(left)}: start another one")
        for slot, bookie in targets.items():
            fillings[slot] = Filling(bookie, tuple(extent.stripe(slot)))
        return CopyPlan(extent, fillings, readable, lost), targets

    async def _rename(
        self,
        ledger_id: int,
        first_entry: int,
        ensemble: tuple[str, ...],
        targets: Mapping[int, str],
        lock: LedgerLock,
    ) -> int:
        def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
            # A bookie may drop copies that no metadata name, and takes the lock for that: without it they are no more.
            if not lock.held:
                raise LockLost(ledger_id)
            return replace_in_segments(metadata, first_entry, ensemble, targets)

        crash_point("autorecovery.before_rename")
        stored = await self._surroundings.registry.update(ledger_id, change)
        crash_point("autorecovery.renamed")
        # An answer that was lost: it may have been stored at the first try, and been found so at the second.
        if Segment(first_entry, replace_slots(ensemble, targets)) not in stored.segments:
            return 0
        log.info(
            "fragment.repaired",
            ledger_id=ledger_id,
            first_entry=first_entry,
            bookies=",".join(f"{ensemble[slot]}->{bookie}" for slot, bookie in sorted(targets.items())),
        )
        return len(targets)


def _to_be_had(extent: Extent, slot: int, lost: Ranges) -> bool:
    """Whether some bookie has every entry of a slot."""
    return next(intersect(extent.stripe(slot), lost), None) is None


def _needs_more(checkup: Checkup) -> bool:
    """Whether anything is wrong beside what was given up."""
    return any(
        verdict.gone
        or verdict.doubtful
        or any(subtract(copy.missing, verdict.lost) != NOTHING for copy in verdict.incomplete)
        for verdict in checkup.bad
    )


def _closed_extents(metadata: LedgerMetadata) -> list[Extent]:
    return [extent for extent in extents(metadata) if extent.closed and metadata.closed]
