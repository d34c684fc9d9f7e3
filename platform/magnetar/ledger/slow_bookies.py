"""Which bookies answer adds so much later than their peers that they are better not written to. Pure.

One that is steadily slow and keeps up never lags by `replica_budget.py`'s rules, and every entry whose quorum needs it waits
for it. How long adds take is told without a clock for each: on average as many are on their way as are answered in that
time (Little's law), so that a look now and then is enough.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

WINDOW_S = 10.0
"""Bookies are judged by so long at a time."""
_ANSWERS_MIN = 20
"""One that has answered fewer in that time is not judged, nor compared with."""


@dataclass(frozen=True, slots=True)
class SlowBookie:
    """A bookie that was found slow."""

    bookie: str
    latency_s: float
    peers_s: float
    """What its peers need."""


class _Seen:
    __slots__ = ("answered", "answered_before", "area")

    def __init__(self, answered: int) -> None:
        self.answered_before = answered
        self.answered = 0
        self.area = 0.0
        """Adds on their way, times seconds."""


class SlowBookies:
    """To be told of all bookies several times a second. Times are monotonic seconds."""

    __slots__ = ("_looked_at", "_passed_s", "_ratio", "_seen", "_slow_s")

    def __init__(self, slow_s: float, ratio: float) -> None:
        """
        Args:
            slow_s: nobody is slow who answers sooner.
            ratio: so many times as long as its peers a slow one takes. 0: nobody is slow.
        """
        self._slow_s = slow_s
        self._ratio = ratio
        self._seen: dict[str, _Seen] = {}
        self._passed_s = 0.0
        self._looked_at = float("-inf")

    def start_anew(self) -> None:
        """Nobody was there to hear answers, or nothing was on its way."""
        self._seen.clear()
        self._passed_s = 0.0
        self._looked_at = float("-inf")

    def look(self, bookies: Iterable[tuple[str, int, int]], now: float) -> list[SlowBookie]:
        """Who is slow; told at the end of each window.

        Args:
            bookies: each with how many adds it was ever sent, and how many it has answered.
        """
        if not self._ratio:
            return []
        step_s = now - self._looked_at if self._passed_s or self._seen else 0.0
        self._looked_at = now
        self._passed_s += step_s
        for bookie, sent, answered in bookies:
            seen = self._seen.get(bookie)
            if seen is None:
                self._seen[bookie] = _Seen(answered)
                continue
            seen.answered = answered - seen.answered_before
            seen.area += (sent - answered) * step_s
        if self._passed_s < WINDOW_S:
            return []
        latencies = {
            bookie: seen.area / seen.answered
            for bookie, seen in self._seen.items()
            if seen.answered >= _ANSWERS_MIN
        }
        self.start_anew()
        found = []
        for bookie, latency_s in latencies.items():
            peers = [each for other, each in latencies.items() if other != bookie]
            peers_s = statistics.median(peers) if peers else latency_s
            if latency_s > self._slow_s and latency_s > self._ratio * peers_s:
                found.append(SlowBookie(bookie, latency_s, peers_s))
        return found
