"""Entries that are held back until their time. Pure: the time comes in from outside.

One per subscription whose consumers share: elsewhere order comes first, and a delay is not heeded. Nothing of
this is stored. A held entry is an unacknowledged one, and who reads it again holds it back again.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from magnetar.broker.filters import Verdict

if TYPE_CHECKING:
    from magnetar.managed_ledger import Entry, Position
    from magnetar.protocol.pulsar_pb2 import MessageMetadata


class Delays:
    """A filter that says later, and knows when. Source: Pulsar PIP-26, `deliver_at_time`."""

    __slots__ = ("_held", "_limit", "_order", "now_ms")

    def __init__(self, limit: int) -> None:
        self.now_ms = 0
        """The time at which entries are judged; whoever asks sets it first."""
        self._limit = limit
        self._held: set[Position] = set()
        self._order: list[tuple[int, Position]] = []

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether so many are held that nothing further should be read."""
        return len(self._held) >= self._limit

    @property
    def next_due_ms(self) -> int | None:
        """When the soonest is due; None where nothing is held."""
        return self._order[0][0] if self._order else None

    @property
    def any_due(self) -> bool:
        return bool(self._order) and self._order[0][0] <= self.now_ms

    def judge(self, entry: Entry, metadata: MessageMetadata) -> Verdict:
        """Deliver what is due; hold back the rest."""
        if metadata.deliver_at_time <= self.now_ms:
            return Verdict.DELIVER
        self.hold(entry.position, metadata.deliver_at_time)
        return Verdict.LATER

    def hold(self, position: Position, due_ms: int) -> None:
        if position not in self._held:
            self._held.add(position)
            heappush(self._order, (due_ms, position))

    def take_due(self, limit: int) -> list[Position]:
        """Let go of up to `limit` that are due, in the order of the log."""
        taken: list[Position] = []
        while len(taken) < limit and self.any_due:
            taken.append(heappop(self._order)[1])
        self._held.difference_update(taken)
        return sorted(taken)

    def forget(self, gone: Callable[[Position], bool]) -> None:
        """Let go of what was acknowledged without having been delivered: skipped, or expired."""
        if any(map(gone, self._held)):
            self._order = [each for each in self._order if not gone(each[1])]
            heapify(self._order)
            self._held = {position for _, position in self._order}

    def clear(self) -> None:
        """Everything will be read again."""
        self._held.clear()
        self._order.clear()
