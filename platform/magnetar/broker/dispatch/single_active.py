"""Exclusive and Failover: one consumer at a time gets everything, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.candidate import Candidate, Delivery
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.errors import ConsumerBusy

if TYPE_CHECKING:
    from magnetar.broker.dispatch.member import Member
    from magnetar.managed_ledger import Position


class SingleActiveDispatcher(Dispatcher):
    """The active consumer gets the entries from the first unacknowledged on; the others stand by.

    Failover chooses by priority, then by name; on partition `n` of a topic the `n`-th of the best
    priority, so that the partitions of a topic spread. Source: AbstractDispatcherSingleActiveConsumer.
    """

    individual = False

    def __init__(self, *, exclusive: bool, partition: int = -1) -> None:
        self._exclusive = exclusive
        self._partition = partition
        self._members: list[Member] = []
        self._ready: deque[Candidate] = deque()
        self._ready_messages = 0
        self._ordinals = 0
        self.active: Member | None = None
        """Who receives. Changes in `elect` only."""
        self.paused = False
        """Whether a change of the active consumer is under way, and nothing is sent until it is done."""

    @property
    def members(self) -> Sequence[Member]:
        return self._members

    def add(self, member: Member) -> None:
        if self._exclusive and self._members:
            raise ConsumerBusy("the exclusive subscription has a consumer already: close it, or share")
        self._ordinals += 1
        member.ordinal = self._ordinals
        self._members.append(member)
        self._members.sort(key=lambda each: (each.priority, each.name, each.ordinal))

    def remove(self, member: Member) -> None:
        self._members.remove(member)
        if member is self.active:
            self.active = None
            self.clear()

    def elect(self) -> bool:
        """Choose the active consumer. Returns whether it is another one than before.

        After a change the caller rewinds the cursor: what the last one had not acknowledged comes again.
        """
        chosen = self._choose()
        if chosen is self.active:
            return False
        self.active = chosen
        self.clear()
        return True

    def _choose(self) -> Member | None:
        if not self._members:
            return None
        if self._partition < 0:
            return self._members[0]
        best = self._members[0].priority
        level = [member for member in self._members if member.priority == best]
        return level[self._partition % len(level)]

    def room(self) -> int:
        if self.active is None or self.paused or not self.active.ready:
            return 0
        return max(0, self.active.permits - self._ready_messages)

    def offer(self, candidates: Iterable[Candidate], *, replayed: bool) -> None:
        for candidate in candidates:
            self._ready.append(candidate)
            self._ready_messages += candidate.messages

    def take(self) -> list[Delivery]:
        active = self.active
        if active is None or self.paused:
            return []
        deliveries: list[Delivery] = []
        ready = self._ready
        while ready and active.ready:
            candidate = ready.popleft()
            self._ready_messages -= candidate.messages
            active.permits -= candidate.messages
            deliveries.append(Delivery(active, candidate, 0))
        return deliveries

    def could_send(self) -> bool:
        return bool(self._ready) and self.active is not None and self.active.ready and not self.paused

    def clear(self) -> None:
        self._ready.clear()
        self._ready_messages = 0

    def redeliver(self, member: Member, positions: Collection[Position] | None) -> bool:
        """Order is the promise here, so that giving back one entry gives back all that follow."""
        if member is not self.active:
            return False
        self.clear()
        return True

    def acknowledged(self, position: Position, left: Sequence[int], by: Member) -> None:
        """The consumer that was active before may acknowledge what is ready for this one."""
        if not self._ready or position < self._ready[0].position:
            return
        if not left:
            self._ready = deque(each for each in self._ready if each.position != position)
        for each in self._ready:
            if each.position == position:
                each.keep(left)
        self._ready_messages = sum(each.messages for each in self._ready)

    def acknowledged_up_to(self, position: Position) -> None:
        while self._ready and self._ready[0].position <= position:
            self._ready_messages -= self._ready.popleft().messages
