"""Which bookies an ensemble is made of.

Random for now, over failure domains: members of one write set are taken from different domains (racks, zones)
for as long as there are any. A bookie that has just failed is passed over while others can be had: its
registration may outlive it by a session's time-out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable

from magnetar.ledger.bookie_health import BookieHealth
from magnetar.ledger.errors import NotEnoughBookies


def own_domain(bookie: str) -> str:
    """Every bookie is a failure domain of its own."""
    return bookie


class Placement:
    """Chooses among the writable bookies it is given."""

    def __init__(
        self,
        dice: random.Random,
        *,
        domain_of: Callable[[str], str] = own_domain,
        health: BookieHealth | None = None,
    ) -> None:
        self._dice = dice
        self._domain_of = domain_of
        self._health = health or BookieHealth(dice.random)

    def suspect(self, bookie: str, now: float) -> None:
        """`bookie` has just failed."""
        self._health.failed(bookie, now)

    def new_ensemble(
        self, writable: Collection[str], size: int, write_quorum: int, now: float
    ) -> tuple[str, ...]:
        """
        Raises:
            NotEnoughBookies: fewer than `size` are writable.
        """
        if len(writable) < size:
            raise NotEnoughBookies(size, len(writable))
        left = self._in_random_order(writable, now)
        chosen: list[str] = []
        for _ in range(size):
            near = {self._domain_of(bookie) for bookie in chosen[-(write_quorum - 1) :]} if chosen else set()
            chosen.append(self._take(left, near))
        return tuple(chosen)

    def replacements(
        self,
        writable: Collection[str],
        ensemble: tuple[str, ...],
        failed: Iterable[int],
        now: float,
    ) -> dict[int, str]:
        """Another bookie for as many of the slots `failed` as possible; none is there already."""
        slots = sorted(failed)
        left = self._in_random_order([bookie for bookie in writable if bookie not in ensemble], now)
        # One that failed a moment ago is no better than the one it would replace.
        left = [bookie for bookie in left if not self._is_suspect(bookie, now)]
        staying = {self._domain_of(bookie) for slot, bookie in enumerate(ensemble) if slot not in slots}
        found: dict[int, str] = {}
        for slot in slots:
            if not left:
                break
            found[slot] = self._take(left, staying)
            staying.add(self._domain_of(found[slot]))
        return found

    def _take(self, left: list[str], avoid: Collection[str]) -> str:
        """Remove and return the first outside the domains `avoid`, or else the first."""
        at = next((at for at, bookie in enumerate(left) if self._domain_of(bookie) not in avoid), 0)
        return left.pop(at)

    def _in_random_order(self, writable: Collection[str], now: float) -> list[str]:
        """Shuffled, with those that failed lately behind the others."""
        order = sorted(writable)
        self._dice.shuffle(order)
        order.sort(key=lambda bookie: self._is_suspect(bookie, now))
        return order

    def _is_suspect(self, bookie: str, now: float) -> bool:
        return self._health.quarantined(bookie, now)
