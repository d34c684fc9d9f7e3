"""Spreading an ensemble over failure domains, racks and regions, so that copies of an entry share as little as they
must. Pure.

Two slots share entries if they are less than a write quorum apart, around the ring of the ensemble. Each such pair
that stands on the same site costs something: most if it shares a failure domain, less for a region, least for a
rack. The search takes the cheapest next step first and tries further only while something cheaper may be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_STEPS_MAX = 2000
"""Of one search; then the best found so far is taken. Small clusters are searched to the end."""

_QUARANTINED, _DOMAIN, _REGION, _RACK = 10**9, 10**6, 10**3, 1


@dataclass(frozen=True, slots=True)
class Site:
    """Where a bookie stands, as far as it matters to copies."""

    domain: str
    region: str = ""
    rack: str = ""
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A site for each slot that was open."""

    sites: tuple[Site, ...]
    cost: int

    @property
    def shared_domains(self) -> int:
        """How many pairs of slots share entries and a failure domain."""
        return self.cost % _QUARANTINED // _DOMAIN


def neighbours(size: int, write_quorum: int) -> tuple[tuple[int, ...], ...]:
    """For each slot, the others that hold copies of the same entries."""
    return tuple(
        tuple(
            other
            for other in range(size)
            if other != slot and min((slot - other) % size, (other - slot) % size) < write_quorum
        )
        for slot in range(size)
    )


def pair_cost(one: Site, other: Site) -> int:
    """What it costs if both hold a copy of the same entry. What is not told apart, "", costs nothing but a domain."""
    cost = _DOMAIN if one.domain == other.domain else 0
    if one.region and one.region == other.region:
        cost += _REGION
    if one.rack and one.rack == other.rack:
        cost += _RACK
    return cost


class _Search:
    """One arrangement in the making."""

    __slots__ = (
        "_alike",
        "_best",
        "_chosen",
        "_goal",
        "_left",
        "_near",
        "_open",
        "_order",
        "_slots",
        "_steps",
    )

    def __init__(
        self,
        slots: Sequence[Site | None],
        available: Mapping[Site, int],
        write_quorum: int,
        goal: int,
    ) -> None:
        self._slots = list(slots)
        self._open = [slot for slot, site in enumerate(slots) if site is None]
        self._near = neighbours(len(slots), write_quorum)
        self._order = list(available)
        self._left = dict(available)
        domains: dict[str, int] = {}
        for site in [*available, *(site for site in slots if site is not None)]:
            domains[site.domain] = domains.get(site.domain, 0) + 1
        # Sites that nobody stands on yet and that differ by name alone need not all be tried.
        self._alike = {
            site: (
                site.region,
                site.rack,
                site.quarantined,
                count,
                site.domain if domains[site.domain] > 1 else "",
            )
            for site, count in available.items()
        }
        self._chosen: list[Site] = []
        self._best: Arrangement | None = None
        self._goal = goal
        self._steps = 0

    def run(self) -> Arrangement | None:
        self._go_on(0)
        return self._best

    def _go_on(self, cost: int) -> None:
        if len(self._chosen) == len(self._open):
            self._best = Arrangement(tuple(self._chosen), cost)
            return
        self._steps += 1
        slot = self._open[len(self._chosen)]
        around = [site for near in self._near[slot] if (site := self._slots[near]) is not None]
        steps: list[tuple[int, int, Site]] = []
        tried: set[object] = set()
        for turn, site in enumerate(self._order):
            if not self._left[site]:
                continue
            if site not in self._chosen:
                alike = self._alike[site]
                if alike in tried:
                    continue
                tried.add(alike)
            step = _QUARANTINED if site.quarantined else 0
            for other in around:
                step += pair_cost(site, other)
            steps.append((step, turn, site))
        steps.sort(key=lambda step: step[:2])
        for step, _, site in steps:
            best = self._best
            if best is not None and (
                cost + step >= best.cost or best.cost <= self._goal or self._steps > _STEPS_MAX
            ):
                return
            self._left[site] -= 1
            self._slots[slot] = site
            self._chosen.append(site)
            self._go_on(cost + step)
            self._chosen.pop()
            self._slots[slot] = None
            self._left[site] += 1


def arrange(
    slots: Sequence[Site | None], available: Mapping[Site, int], write_quorum: int, *, goal: int = 0
) -> Arrangement | None:
    """The cheapest sites for the slots that are None; None if there are not enough bookies.

    Args:
        available: how many bookies stand on each site. Of equally good sites, earlier ones are taken.
        goal: a cost below which none can be, as far as is known: the search ends there.
    """
    return _Search(slots, available, write_quorum, goal).run()
