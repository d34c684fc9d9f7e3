"""Shared: consumers take turns. Order holds for nobody; what is given back goes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.candidate import Candidate, Delivery
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.replay import ReplayQueue
from magnetar.protocol import ack_sets

if TYPE_CHECKING:
    from magnetar.broker.dispatch.member import Member, Outstanding
    from magnetar.broker.dispatch.unacked_share import UnackedShare
    from magnetar.managed_ledger import Position


class Turns:
    """Round robin over the consumers of the best priority that has any ready."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[int, deque[Member]] = {}

    def rebuild(self, members: Iterable[Member]) -> None:
        self._levels = {}
        for member in members:
            self._levels.setdefault(member.priority, deque()).append(member)
        self._levels = dict(sorted(self._levels.items()))

    def next(self) -> Member | None:
        for level in self._levels.values():
            for _ in range(len(level)):
                member = level[0]
                level.rotate(-1)
                if member.ready:
                    return member
        return None


class SharedDispatcher(Dispatcher):
    """Any consumer with permits gets the next entry.

    All chunks of one message go to the consumer that got the first of them, for it alone can put them
    together. Redeliveries are counted here, and only here: by entry, when a consumer asks for them, not when
    it disconnects, so that dead-letter policies count what the application gave back.
    """

    individual = True

    def __init__(self, *, max_unacked: int = 0, share: UnackedShare | None = None) -> None:
        """`share` is its part of what all subscriptions of the broker may have unacknowledged."""
        self._members: list[Member] = []
        self._ordinals = 0
        self._turns = Turns()
        self._ready: deque[Candidate] = deque()
        self._replay = ReplayQueue()
        self._counts: dict[Position, int] = {}
        self._chunk_owners: dict[str, Member] = {}
        self._unacked = 0
        self.max_unacked = max_unacked
        """Unacknowledged messages of all consumers at which delivery stops. 0: no limit."""
        self._full = False
        """Whether `max_unacked` was reached, and half of it is not yet acknowledged."""
        self._share = share

    @property
    def stalled(self) -> bool:
        """Whether nothing goes out until more is acknowledged: here, or in the broker as a whole."""
        return self._full or (self._share is not None and self._share.blocked)

    @property
    def members(self) -> Sequence[Member]:
        return self._members

    @property
    def unacked(self) -> int:
        return self._unacked

    @property
    def replay_count(self) -> int:
        """Entries waiting to be delivered again."""
        return len(self._replay)

    def add(self, member: Member) -> None:
        self._ordinals += 1
        member.ordinal = self._ordinals
        self._members.append(member)
        self._members.sort(key=lambda each: (each.priority, each.ordinal))
        self._turns.rebuild(self._members)

    def remove(self, member: Member) -> None:
        self._members.remove(member)
        self._turns.rebuild(self._members)
        for position, outstanding in member.pending.items():
            self._replay_later(position, outstanding.key_hash)
        self._released(member.unacked)
        member.pending.clear()
        member.unacked = 0
        orphaned = {uuid for uuid, owner in self._chunk_owners.items() if owner is member}
        self._chunk_owners = {
            uuid: owner for uuid, owner in self._chunk_owners.items() if owner is not member
        }
        if orphaned:  # Their first chunks are replays now: the rest must not overtake them.
            for candidate in self._ready:
                if candidate.chunk_of in orphaned:
                    self._replay_later(candidate.position, candidate.key_hash)
            self._ready = deque(each for each in self._ready if each.chunk_of not in orphaned)
        if not self._members:
            self.clear()

    def room(self) -> int:
        if self.stalled:
            return 0
        permits = sum(member.permits for member in self._members if member.ready)
        return max(
            0, permits - sum(each.messages for each in self._ready if not self._waits_for_its_owner(each))
        )

    def _waits_for_its_owner(self, candidate: Candidate) -> bool:
        """Whether it is a chunk whose consumer cannot take it now: then it takes up nobody's permits."""
        if candidate.chunk_of is None:
            return False
        owner = self._chunk_owners.get(candidate.chunk_of)
        return owner is not None and not owner.ready

    def replays(self, limit: int) -> list[Position]:
        if not self._replay or self.room() == 0:
            return []
        return self._replay.pop(limit)

    def give_back(self, positions: Iterable[Position]) -> None:
        self._replay.extend(positions)

    def forget(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self._counts.pop(position, None)

    def offer(self, candidates: Iterable[Candidate], *, replayed: bool) -> None:
        if replayed:
            self._ready.extendleft(reversed(list(candidates)))
        else:
            self._ready.extend(candidates)

    def take(self) -> list[Delivery]:
        deliveries: list[Delivery] = []
        passed: deque[Candidate] = deque()
        while self._ready and not self.stalled:
            candidate = self._ready.popleft()
            member = self._choose(candidate)
            if member is not None:
                deliveries.append(self._assign(member, candidate))
            elif candidate.chunk_of in self._chunk_owners:
                passed.append(candidate)  # Its consumer is busy; others may go on with what follows.
            else:
                passed.append(candidate)
                break
        self._ready.extendleft(reversed(passed))
        return deliveries

    def could_send(self) -> bool:
        if self.stalled or not any(member.ready for member in self._members):
            return False
        return not all(map(self._waits_for_its_owner, self._ready)) or (
            bool(self._replay) and self.room() > 0
        )

    def _choose(self, candidate: Candidate) -> Member | None:
        if candidate.chunk_of is None:
            return self._turns.next()
        owner = self._chunk_owners.get(candidate.chunk_of)
        if owner is not None:
            return owner if owner.ready else None
        return self._turns.next()

    def _assign(self, member: Member, candidate: Candidate) -> Delivery:
        member.permits -= candidate.messages
        member.sent(candidate.position, candidate.messages, candidate.key_hash)
        self._unacked += candidate.messages
        if self.max_unacked and self._unacked >= self.max_unacked:
            self._full = True
        if self._share is not None:
            self._share.taken(candidate.messages)
        if candidate.chunk_of is not None:
            if candidate.chunk_last:
                self._chunk_owners.pop(candidate.chunk_of, None)
            else:
                self._chunk_owners[candidate.chunk_of] = member
        return Delivery(member, candidate, self._counts.get(candidate.position, 0))

    def clear(self) -> None:
        self._ready.clear()
        self._replay.clear()
        self._counts.clear()
        self._chunk_owners.clear()
        for member in self._members:
            member.pending.clear()
            member.unacked = 0
            member.stalled = False
        self._released(self._unacked)
        self._full = False

    def redeliver(self, member: Member, positions: Collection[Position] | None) -> bool:
        for position in list(member.pending) if positions is None else positions:
            outstanding = member.settle(position)
            if outstanding is not None:
                self._settled(position, outstanding)
                self._released(outstanding.messages)
                self._counts[position] = self._counts.get(position, 0) + 1
                self._replay_later(position, outstanding.key_hash)
        return False

    def acknowledged(self, position: Position, left: Sequence[int], by: Member) -> None:
        remaining = ack_sets.count(left)
        if not remaining:
            self._counts.pop(position, None)
            self._forget(position)
        holders = [by] if position in by.pending else self._members
        for member in holders:
            before = member.settle(position, remaining)
            if before is not None:
                self._released(max(0, before.messages - remaining))
                if not remaining:
                    self._settled(position, before)
                return
        self._acknowledged_while_ready(position, left)

    def _acknowledged_while_ready(self, position: Position, left: Sequence[int]) -> None:
        """It was given back, and is acknowledged all the same."""
        if not ack_sets.count(left):
            self._ready = deque(each for each in self._ready if each.position != position)
        for each in self._ready:
            if each.position == position:
                each.keep(left)

    def acknowledged_up_to(self, position: Position) -> None:
        for member in self._members:
            for held in [held for held in member.pending if held <= position]:
                before = member.settle(held)
                assert before is not None
                self._released(before.messages)
                self._settled(held, before)
        for counted in [counted for counted in self._counts if counted <= position]:
            del self._counts[counted]
        self._forget_up_to(position)
        self._ready = deque(candidate for candidate in self._ready if candidate.position > position)

    def redeliveries(self, position: Position) -> int:
        return self._counts.get(position, 0)

    def _released(self, messages: int) -> None:
        self._unacked -= messages
        if self._full and self._unacked < max(1, self.max_unacked // 2):
            self._full = False
        if self._share is not None:
            self._share.released(messages)

    # What Key_Shared does differently.

    def _replay_later(self, position: Position, key_hash: int) -> None:
        self._replay.add(position)

    def _forget(self, position: Position) -> None:
        self._replay.discard(position)

    def _forget_up_to(self, position: Position) -> None:
        self._replay.discard_up_to(position)

    def _settled(self, position: Position, outstanding: Outstanding) -> None:
        """An entry is no longer with the consumer it was sent to."""
