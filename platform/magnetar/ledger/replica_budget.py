"""How far bookies may lag behind the others, and how much may wait for them. Pure.

An entry is confirmed once its ack quorum holds it; its other copies are still on their way then. A bookie that
answers slowly, or not at all, would have them pile up for as long as the ledger is written. So what waits is
counted, per bookie and over all ledgers of a client, and the worst bookie is told when there is too much of it,
or when it has not answered for too long while others have. Source: pain P1 and invariant I30 of the storage
fact sheet.
"""

from __future__ import annotations

from dataclasses import dataclass

_PEER_AHEAD = 4
"""Somebody else must answer this many times sooner: when all are slow, nobody lags."""


class BookieLag:
    """What one bookie has been sent, over all ledgers, and has not answered."""

    __slots__ = ("_advanced_at", "_mark", "_mark_at", "_seen", "answered", "bookie", "lagging_bytes", "sent")

    def __init__(self, bookie: str) -> None:
        self.bookie = bookie
        self.sent = 0
        """Copies, ever."""
        self.answered = 0
        self.lagging_bytes = 0
        """Of copies on their way, of entries that are confirmed without them."""
        self._mark = 0
        self._mark_at = 0.0
        self._seen = 0
        self._advanced_at = float("-inf")

    def look(self, now: float) -> float:
        """For how long, at least, its oldest unanswered copy has been waiting. To be asked again and again."""
        if self.answered != self._seen:
            self._seen, self._advanced_at = self.answered, now
        if self.answered >= self._mark:
            self._mark, self._mark_at = self.sent, now
        return now - self._mark_at if self.sent > self.answered else 0.0

    def start_anew(self, now: float) -> None:
        """Forget how long it has been waited for: nobody was there to hear its answers."""
        self._seen, self._mark, self._mark_at = self.answered, self.sent, now

    def answers_since(self, since: float) -> bool:
        return self._advanced_at >= since


@dataclass(frozen=True, slots=True)
class Laggard:
    """A bookie that has fallen too far behind."""

    bookie: str
    waiting_s: float
    lagging_bytes: int


class ReplicaBudget:
    """Counts for all ledgers of one client. Times are monotonic seconds, given by the caller."""

    __slots__ = ("_bookies", "_looked_at", "lagging_limit", "lagging_s", "pending_bytes", "pending_limit")

    def __init__(self, pending_limit: int, lagging_limit: int, lagging_s: float) -> None:
        self.pending_limit = pending_limit
        self.lagging_limit = lagging_limit
        self.lagging_s = lagging_s
        self.pending_bytes = 0
        """Appended and not confirmed."""
        self._bookies: dict[str, BookieLag] = {}
        self._looked_at = float("-inf")

    def of(self, bookie: str) -> BookieLag:
        lag = self._bookies.get(bookie)
        if lag is None:
            lag = self._bookies[bookie] = BookieLag(bookie)
        return lag

    def bookies(self) -> list[BookieLag]:
        """All that were ever sent anything."""
        return list(self._bookies.values())

    @property
    def lagging_bytes(self) -> int:
        return sum(lag.lagging_bytes for lag in self._bookies.values())

    @property
    def idle(self) -> bool:
        """Whether nothing is on its way."""
        return all(lag.sent == lag.answered for lag in self._bookies.values())

    def look(self, now: float) -> list[Laggard]:
        """Who is too far behind now. To be asked several times in `lagging_s`."""
        late, self._looked_at = now - self._looked_at > self.lagging_s / 2, now
        if late:
            # This process stood still, or had nothing to do: nobody is blamed for that.
            for lag in self._bookies.values():
                lag.start_anew(now)
            return []
        ages = {bookie: lag.look(now) for bookie, lag in self._bookies.items()}
        found = [
            bookie
            for bookie, age in ages.items()
            if age > self.lagging_s and self._others_answer(bookie, ages, now)
        ]
        worst = max(self._bookies.values(), key=lambda lag: lag.lagging_bytes, default=None)
        if worst is not None and worst.bookie not in found and self.lagging_bytes > self.lagging_limit:
            found.append(worst.bookie)
        return [Laggard(bookie, ages[bookie], self._bookies[bookie].lagging_bytes) for bookie in found]

    def _others_answer(self, bookie: str, ages: dict[str, float], now: float) -> bool:
        since = now - self.lagging_s / 2
        return any(
            age * _PEER_AHEAD < ages[bookie] and self._bookies[other].answers_since(since)
            for other, age in ages.items()
            if other != bookie
        )
