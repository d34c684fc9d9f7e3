"""Which copies of a ledger are bad, given the bookies there are and what they say they hold. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from magnetar.autorecovery.entry_ranges import NOTHING, Ranges, subtract, union
from magnetar.autorecovery.extents import Extent


class Copy(Enum):
    """How a slot's copy of a fragment stands."""

    GONE = "gone"
    """Its bookie is not there, or is to be emptied: another must take its place, even where it holds no entry, since
    no ledger may go on naming it."""
    INCOMPLETE = "incomplete"
    """Its bookie is there and lacks entries, or has them damaged: they can be copied to it."""
    DOUBTFUL = "doubtful"
    """Its bookie did not say. Nothing is concluded from that; ask again."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one bookie says it holds of one ledger."""

    ranges: Ranges = NOTHING
    known: bool = True
    """False: it did not answer, or cannot vouch for what is missing."""
    damaged: Ranges = NOTHING
    """Listed, and wrong when read."""


@dataclass(frozen=True, slots=True)
class BadCopy:
    slot: int
    bookie: str
    state: Copy
    missing: Ranges = NOTHING
    """Of an INCOMPLETE copy."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with one fragment."""

    extent: Extent
    bad: tuple[BadCopy, ...] = ()
    lost: Ranges = NOTHING
    """Entries that no bookie of their write set has, among those that are there; all of these have answered."""

    @property
    def well(self) -> bool:
        return not self.bad

    @property
    def gone(self) -> tuple[BadCopy, ...]:
        return tuple(copy for copy in self.bad if copy.state is Copy.GONE)

    @property
    def incomplete(self) -> tuple[BadCopy, ...]:
        return tuple(copy for copy in self.bad if copy.state is Copy.INCOMPLETE)

    @property
    def doubtful(self) -> tuple[BadCopy, ...]:
        return tuple(copy for copy in self.bad if copy.state is Copy.DOUBTFUL)


def judge(
    extent: Extent,
    *,
    readable: Collection[str],
    leaving: Collection[str],
    holdings: Mapping[str, Holding],
) -> Verdict:
    """How one fragment stands.

    Args:
        readable: the bookies that are registered.
        leaving: those to be emptied: their copies are good to read and must be replaced.
        holdings: by bookie; not needed of an open fragment, of which only absent bookies are told.
    """
    bad: list[BadCopy] = []
    held: dict[int, Ranges] = {}
    sure = True
    for slot, bookie in enumerate(extent.ensemble):
        there = bookie in readable
        if not there or bookie in leaving:
            bad.append(BadCopy(slot, bookie, Copy.GONE))
        if not there or not extent.closed:
            continue
        holding = holdings.get(bookie, Holding(known=False))
        held[slot] = _good(holding)
        if bookie in leaving:
            sure = sure and holding.known
        elif not holding.known:
            sure = False
            bad.append(BadCopy(slot, bookie, Copy.DOUBTFUL))
        else:
            missing = extent.missing(slot, held[slot])
            if missing:
                bad.append(BadCopy(slot, bookie, Copy.INCOMPLETE, missing))
    lost = extent.unheld(held) if bad and sure and extent.closed else NOTHING
    return Verdict(extent, tuple(bad), lost)


def _good(holding: Holding) -> Ranges:
    if not holding.damaged:
        return holding.ranges

    return subtract(holding.ranges, holding.damaged)


def add_damage(holding: Holding, damaged: Ranges) -> Holding:
    return Holding(holding.ranges, holding.known, union([holding.damaged, damaged]))


def shared_domains(extent: Extent, domain_of: Mapping[str, str]) -> tuple[tuple[str, ...], ...]:
    """Groups of bookies of one write set that share a failure domain: one failure takes several copies."""
    size = len(extent.ensemble)
    shared: dict[tuple[str, ...], None] = {}
    for first in range(size):
        together: dict[str, list[str]] = {}
        for bookie in extent.fragment.write_set(first):
            if bookie in domain_of:
                together.setdefault(domain_of[bookie], []).append(bookie)
        for bookies in together.values():
            if len(bookies) > 1:
                shared[tuple(sorted(bookies))] = None
    return tuple(sorted(shared))
