"""Which bookies are better left alone for a while. Pure.

One that had to be replaced, or lagged too far behind, is quarantined: not chosen while others can be had. If it
fails again soon after its quarantine has ended, the next one is twice as long. One that answers with errors now
and then is quarantined once there are too many of them. A bookie that let a reader wait is read from last.
Source: BookKeeper `BookieHealth`, section 4 of the storage fact sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_SLOW_READ_S = 10.0


@dataclass(frozen=True, slots=True)
class HealthRules:
    quarantine_s: float = 30.0
    quarantine_max_s: float = 1800.0
    errors_max: int = 100
    errors_interval_s: float = 60.0
    quarantine_ratio: float = 1.0


class _Record:
    __slots__ = ("errors", "interval_began", "length_s", "slow_until", "until")

    def __init__(self) -> None:
        self.until = float("-inf")
        self.length_s = 0.0
        self.slow_until = float("-inf")
        self.errors = 0
        self.interval_began = float("-inf")


class BookieHealth:
    """What one client has seen of the bookies. Times are monotonic seconds."""

    __slots__ = ("_chance", "_records", "_rules")

    def __init__(self, chance: Callable[[], float], rules: HealthRules | None = None) -> None:
        """`chance`: draws from 0 to 1."""
        self._chance = chance
        self._rules = rules or HealthRules()
        self._records: dict[str, _Record] = {}

    def failed(self, bookie: str, now: float) -> None:
        """It had to be replaced, or fell too far behind."""
        record = self._record(bookie)
        if now < record.until:
            return  # Another ledger tells of the same failure.
        again = now < record.until + record.length_s
        rules = self._rules
        record.length_s = (
            min(2 * record.length_s, rules.quarantine_max_s)
            if again
            else min(rules.quarantine_s, rules.quarantine_max_s)
        )
        record.until = now + record.length_s

    def error(self, bookie: str, now: float) -> None:
        """It answered a write with an error, or not at all."""
        record, rules = self._record(bookie), self._rules
        if now >= record.interval_began + rules.errors_interval_s:
            record.errors, record.interval_began = 0, now
        record.errors += 1
        # Not all clients are to drop the same bookie: each draws for itself.
        if record.errors == rules.errors_max + 1 and self._chance() < rules.quarantine_ratio:
            record.length_s = rules.quarantine_max_s
            record.until = now + record.length_s

    def read_slowly(self, bookie: str, now: float) -> None:
        """It let a reader wait, or could not be reached."""
        self._record(bookie).slow_until = now + _SLOW_READ_S

    def quarantined(self, bookie: str, now: float) -> bool:
        record = self._records.get(bookie)
        return record is not None and now < record.until

    def reads_slowly(self, bookie: str, now: float) -> bool:
        record = self._records.get(bookie)
        return record is not None and now < record.slow_until

    def in_quarantine(self, now: float) -> list[str]:
        """All that are in quarantine."""
        return [bookie for bookie, record in self._records.items() if now < record.until]

    def _record(self, bookie: str) -> _Record:
        record = self._records.get(bookie)
        if record is None:
            record = self._records[bookie] = _Record()
        return record
