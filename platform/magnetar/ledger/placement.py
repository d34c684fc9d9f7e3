"""Which bookies an ensemble is made of.

Among those that may be chosen, at random, by `arrangement.py`: copies of an entry share no failure domain while
another is free; then no region and no rack, where the policy looks at these. Bookies in quarantine are passed over
while others can be had. A namespace may be kept to groups of bookies: primary ones, and secondary ones where those
are too few.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from magnetar.ledger.arrangement import Arrangement, Site, arrange, neighbours
from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.errors import NotEnoughBookies
from magnetar.ledger.groups import NO_GROUPS, BookieGroups
from magnetar.protocol.bookie import BookieAddress

_GOALS_MAX = 1000


class PlacementPolicy(Enum):
    """What copies are spread over, beside failure domains."""

    RANDOM = "random"
    RACK = "rack"
    REGION = "region"
    """Regions, and racks within them."""


@dataclass(frozen=True, slots=True)
class PlacementRules:
    policy: PlacementPolicy = PlacementPolicy.RACK
    strict: bool = False
    """Whether no ensemble at all is better than one with two copies of an entry in one failure domain."""
    by_free_space: bool = False
    """Whether bookies with more free space are chosen more often."""
    weight_max: float = 3.0
    """By how much the free space of a bookie counts at most, as a multiple of the median."""


@dataclass(frozen=True, slots=True)
class RackPlace:
    """What an administrator has said of a bookie. It wins over what the bookie says of itself."""

    group: str
    rack: str


@dataclass(frozen=True, slots=True)
class Choice:
    """An ensemble, or bookies for some of its slots."""

    bookies: Mapping[int, str]
    """By slot."""
    shared_domains: int
    """How many pairs of slots hold copies of the same entries in one failure domain."""

    @property
    def ensemble(self) -> tuple[str, ...]:
        return tuple(self.bookies[slot] for slot in sorted(self.bookies))


NO_RACKS: Mapping[str, RackPlace] = {}


class Placement:
    """Chooses among the bookies it is given."""

    def __init__(
        self,
        dice: random.Random,
        *,
        health: BookieHealth | None = None,
        rules: PlacementRules | None = None,
    ) -> None:
        self._dice = dice
        self._health = health or BookieHealth(dice.random)
        self._rules = rules or PlacementRules()
        self._goals: dict[object, int] = {}
        """What the best arrangement of such a cluster costs: found once, not searched for again."""

    def suspect(self, bookie: str, now: float) -> None:
        """`bookie` has just failed."""
        self._health.failed(bookie, now)

    def new_ensemble(
        self,
        writable: Mapping[str, BookieAddress],
        size: int,
        write_quorum: int,
        now: float,
        *,
        groups: BookieGroups = NO_GROUPS,
        racks: Mapping[str, RackPlace] = NO_RACKS,
    ) -> Choice:
        """
        Raises:
            NotEnoughBookies: fewer than `size` may be chosen, or they stand in too few failure domains.
        """
        candidates = self._allowed(writable, size, groups, racks)
        if len(candidates) < size:
            raise NotEnoughBookies(size, len(candidates), where=str(groups))
        sites = self._sites(candidates, racks, now)
        slots: list[Site | None] = [None] * size
        found, chosen = self._choose(slots, sites, candidates, write_quorum)
        if found.shared_domains and self._rules.strict:
            domains = len({site.domain for site in sites.values()})
            raise NotEnoughBookies(size, len(candidates), domains=domains, write_quorum=write_quorum)
        return Choice(dict(enumerate(chosen)), found.shared_domains)

    def replacements(
        self,
        writable: Mapping[str, BookieAddress],
        ensemble: Sequence[str],
        failed: Iterable[int],
        now: float,
        *,
        write_quorum: int | None = None,
        groups: BookieGroups = NO_GROUPS,
        racks: Mapping[str, RackPlace] = NO_RACKS,
        registered: Mapping[str, BookieAddress] | None = None,
        exclude: Collection[str] = (),
        desperate: bool = False,
    ) -> Choice:
        """Another bookie for as many of the slots `failed` as possible; none is there already.

        Args:
            registered: where the bookies that stay stand; those it does not name count as domains of their own.
            exclude: bookies that will not do.
            desperate: whether one in quarantine is better than none. It failed lately, like the one it replaces.
        """
        slots = sorted(failed)
        others = {
            bookie: address
            for bookie, address in writable.items()
            if bookie not in ensemble
            and bookie not in exclude
            and (desperate or not self._health.quarantined(bookie, now))
        }
        candidates = self._allowed(others, len(slots), groups, racks)
        slots = slots[: len(candidates)]
        known = {**(registered or {}), **writable}
        staying = {
            bookie: known.get(bookie, BookieAddress("", "", domain=bookie))
            for slot, bookie in enumerate(ensemble)
            if slot not in slots
        }
        sites = self._sites({**staying, **candidates}, racks, now)
        quorum = len(ensemble) if write_quorum is None else write_quorum
        if self._rules.strict:
            return self._strict_replacements(ensemble, slots, sites, candidates, quorum)
        taken = [None if slot in slots else sites[bookie] for slot, bookie in enumerate(ensemble)]
        found, chosen = self._choose(taken, {each: sites[each] for each in candidates}, candidates, quorum)
        return Choice(dict(zip(slots, chosen, strict=True)), found.shared_domains)

    def shared_domains(
        self, ensemble: Sequence[str], write_quorum: int, addresses: Mapping[str, BookieAddress]
    ) -> int:
        """How many pairs of slots hold copies of the same entries in one failure domain, as far as is known."""
        domains = [
            (addresses[bookie].failure_domain if bookie in addresses else "") or bookie for bookie in ensemble
        ]
        return sum(
            domains[slot] == domains[other]
            for slot, near in enumerate(neighbours(len(ensemble), write_quorum))
            for other in near
            if other < slot
        )

    def _strict_replacements(
        self,
        ensemble: Sequence[str],
        slots: Sequence[int],
        sites: Mapping[str, Site],
        candidates: Mapping[str, BookieAddress],
        write_quorum: int,
    ) -> Choice:
        """One slot after the other, and none that would share a domain with a slot that stays."""
        found: dict[int, str] = {}
        left = dict(candidates)
        near = neighbours(len(ensemble), write_quorum)
        for slot in slots:
            around = {
                sites[found.get(other, ensemble[other])].domain
                for other in near[slot]
                if other in found or other not in slots
            }
            free = {each: address for each, address in left.items() if sites[each].domain not in around}
            if not free:
                continue
            taken: list[Site | None] = [
                sites[found.get(other, bookie)] if other in found or other not in slots else None
                for other, bookie in enumerate(ensemble)
            ]
            taken = [None if other == slot else site or Site("") for other, site in enumerate(taken)]
            _, chosen = self._choose(taken, {each: sites[each] for each in free}, free, write_quorum)
            found[slot] = chosen[0]
            del left[chosen[0]]
        return Choice(found, 0)

    # Who may be chosen.

    def _allowed(
        self,
        writable: Mapping[str, BookieAddress],
        needed: int,
        groups: BookieGroups,
        racks: Mapping[str, RackPlace],
    ) -> Mapping[str, BookieAddress]:
        if not groups:
            return writable
        allowed: dict[str, BookieAddress] = {}
        for names in (groups.primary, groups.secondary):
            for bookie, address in writable.items():
                place = racks.get(bookie)
                if place is not None and place.group in names:
                    allowed[bookie] = address
            if len(allowed) >= needed:
                break
        return allowed

    def _sites(
        self, bookies: Mapping[str, BookieAddress], racks: Mapping[str, RackPlace], now: float
    ) -> dict[str, Site]:
        """Where they stand, as far as it tells them apart."""
        policy = self._rules.policy
        sites: dict[str, Site] = {}
        for bookie, address in bookies.items():
            place = racks.get(bookie)
            rack = (place.rack if place is not None and place.rack else address.rack).strip("/")
            region = rack.rpartition("/")[0].partition("/")[0]
            sites[bookie] = Site(
                address.failure_domain or bookie,
                region if policy is PlacementPolicy.REGION else "",
                rack if policy is not PlacementPolicy.RANDOM else "",
                self._health.quarantined(bookie, now),
            )
        if len({site.region for site in sites.values()}) == 1:
            sites = {bookie: replace(site, region="") for bookie, site in sites.items()}
        if len({site.rack for site in sites.values()}) == 1:
            sites = {bookie: replace(site, rack="") for bookie, site in sites.items()}
        return sites

    # Who is chosen.

    def _choose(
        self,
        slots: Sequence[Site | None],
        sites: Mapping[str, Site],
        candidates: Mapping[str, BookieAddress],
        write_quorum: int,
    ) -> tuple[Arrangement, list[str]]:
        """Bookies for the slots that are None, of which there are enough."""
        standing: dict[Site, list[str]] = {}
        for bookie in self._in_random_order(candidates):
            standing.setdefault(sites[bookie], []).append(bookie)
        counts = {site: len(bookies) for site, bookies in standing.items()}
        kind = (tuple(slots), tuple(sorted(map(repr, counts.items()))), write_quorum)
        found = arrange(slots, counts, write_quorum, goal=self._goals.get(kind, 0))
        assert found is not None
        if found.cost:
            if len(self._goals) >= _GOALS_MAX:
                self._goals.clear()
            self._goals[kind] = min(found.cost, self._goals.get(kind, found.cost))
        return found, [standing[site].pop(0) for site in found.sites]

    def _in_random_order(self, candidates: Mapping[str, BookieAddress]) -> list[str]:
        """Shuffled; with weights, those with more free space come sooner more often."""
        order = sorted(candidates)
        if not self._rules.by_free_space:
            self._dice.shuffle(order)
            return order
        weights = self._weights(candidates)
        # Source: Efraimidis and Spirakis, weighted random sampling with a reservoir.
        keys = {bookie: self._dice.random() ** (1 / weights[bookie]) for bookie in order}
        return sorted(order, key=lambda bookie: -keys[bookie])

    def _weights(self, candidates: Mapping[str, BookieAddress]) -> dict[str, float]:
        """Free space in multiples of the median, no more than the cap; who does not say counts like the fullest."""
        said = [address.free_bytes for address in candidates.values() if address.free_bytes > 0]
        if not said:
            return dict.fromkeys(candidates, 1.0)
        middle, least = median(said), min(said)
        return {
            bookie: min((address.free_bytes or least) / middle, self._rules.weight_max)
            for bookie, address in candidates.items()
        }
