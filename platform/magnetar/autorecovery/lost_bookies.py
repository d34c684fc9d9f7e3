"""When a bookie that is away counts as lost. Pure.

One that is away may only be restarting: it is given time. When more than one is away the time is up: the
next failure may cost data. Source: BookKeeper `AuditorBookieCheckTask`, `lostBookieRecoveryDelay`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sighting:
    """What changed since the last look."""

    left: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()
    """They were away, and are back. What was marked because of them may be untrue by now."""


@dataclass(slots=True)
class LostBookies:
    """Which bookies are away, since when, and whether their ledgers have been marked."""

    delay_s: float
    away: dict[str, float] = field(default_factory=dict)
    """Bookie → since when."""
    audited: set[str] = field(default_factory=set)
    """Those of them whose ledgers have been marked."""
    _nobody: bool = False

    def seen(self, known: Collection[str], readable: Collection[str], now: float) -> Sighting:
        """Take in which bookies exist and which of them are registered."""
        missing = set(known) - set(readable)
        self._nobody = not readable
        left = tuple(sorted(missing - self.away.keys()))
        gone_for_good = sorted(self.away.keys() - missing)
        returned = tuple(bookie for bookie in gone_for_good if bookie in readable)
        for bookie in gone_for_good:  # Back, or no longer known: its cookie was removed.
            del self.away[bookie]
            self.audited.discard(bookie)
        for bookie in left:
            self.away[bookie] = now
        return Sighting(left, returned)

    def due(self, now: float) -> tuple[str, ...]:
        """The bookies whose ledgers are to be marked now."""
        waiting = self._waiting()
        if not waiting or self._nobody:  # With no bookie left nothing can be repaired, and all may come back.
            return ()
        if len(self.away) > 1 or self.delay_s <= 0:
            return waiting
        return tuple(bookie for bookie in waiting if self.away[bookie] + self.delay_s <= now)

    def next_due(self) -> float | None:
        """When to ask again, if nothing else happens."""
        waiting = self._waiting()
        if not waiting or self._nobody:
            return None
        return min(self.away[bookie] for bookie in waiting) + self.delay_s

    def lost(self, now: float) -> tuple[str, ...]:
        """All that count as lost: marked already, or due."""
        return tuple(sorted({*self.audited, *self.due(now)}))

    def marked(self, bookies: Collection[str]) -> None:
        """The ledgers of `bookies` have been marked."""
        self.audited |= self.away.keys() & set(bookies)

    def _waiting(self) -> tuple[str, ...]:
        return tuple(sorted(self.away.keys() - self.audited))
