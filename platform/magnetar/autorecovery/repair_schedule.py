"""Whose turn it is among the marked ledgers, and how long one waits after a failure. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Turn:
    not_before: float = 0.0
    failures: int = 0


class RepairSchedule:
    """What one worker remembers of the ledgers it has tried."""

    def __init__(self, *, retry_s: float, retry_max_s: float, grace_s: float) -> None:
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._grace_s = grace_s
        self._turns: dict[int, _Turn] = {}
        self._graces: dict[int, float] = {}
        """Ledger → when its writer has had its time."""

    def ready(self, marked: Iterable[int], now: float) -> list[int]:
        """Those of the marked ledgers that may be tried now. What is no longer marked is forgotten."""
        marked = list(marked)
        there = set(marked)
        for ledger_id in [each for each in self._turns if each not in there]:
            del self._turns[ledger_id]
        for ledger_id in [each for each in self._graces if each not in there]:
            del self._graces[ledger_id]
        return [each for each in marked if each not in self._turns or self._turns[each].not_before <= now]

    def next_turn(self, excluding: Collection[int] = ()) -> float | None:
        """When the first of those that wait may be tried; `excluding` are being tried now."""
        waiting = (turn.not_before for each, turn in self._turns.items() if each not in excluding)
        return min(waiting, default=None)

    def succeeded(self, ledger_id: int) -> None:
        self._turns.pop(ledger_id, None)
        self._graces.pop(ledger_id, None)

    def failed(self, ledger_id: int, now: float) -> float:
        """Try it again later, each time twice as late. Returns the pause."""
        turn = self._turns.setdefault(ledger_id, _Turn())
        pause_s = float(min(self._retry_s * 2.0 ** min(turn.failures, 30), self._retry_max_s))
        turn.failures += 1
        turn.not_before = now + pause_s
        return pause_s

    def again_at(self, ledger_id: int, when: float) -> None:
        """Try it again at a time of its own; that is no failure."""
        self._turns.setdefault(ledger_id, _Turn()).not_before = when

    def taken(self, ledger_id: int, now: float) -> None:
        """Another worker has it: look again, without haste."""
        self.again_at(ledger_id, now + self._retry_s)

    def grace_ends(self, ledger_id: int, now: float) -> float:
        """Until when the writer of an open ledger may help itself; counted from the first time this is asked."""
        return self._graces.setdefault(ledger_id, now + self._grace_s)

    def grace_is_over(self, ledger_id: int, now: float) -> bool:
        return self._graces.get(ledger_id, now + 1) <= now

    def end_grace(self, ledger_id: int) -> None:
        """The writer has helped itself, or there is none any more: another time it gets its time anew."""
        self._graces.pop(ledger_id, None)

    def hurry(self) -> None:
        """Try all that failed at once: something has changed for the better."""
        for ledger_id, turn in self._turns.items():
            if ledger_id not in self._graces:
                turn.not_before, turn.failures = 0.0, 0
