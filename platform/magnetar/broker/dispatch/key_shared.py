"""Key_Shared: each key has one consumer at a time, and its messages come in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from magnetar.broker.dispatch.candidate import Candidate, Delivery
from magnetar.broker.dispatch.key_ranges import HashRing, KeySelector, Range, StickyRanges
from magnetar.broker.dispatch.replay import ReplayQueue
from magnetar.broker.dispatch.shared import SharedDispatcher

if TYPE_CHECKING:
    from magnetar.broker.dispatch.member import Member, Outstanding
    from magnetar.broker.dispatch.unacked_share import UnackedShare
    from magnetar.managed_ledger import Position


class KeySharedDispatcher(SharedDispatcher):
    """Shared, with two rules more for each slot of keys.

    While a consumer has unacknowledged messages of a slot, nobody else gets any of it, even if the slot
    became another's by someone's joining or leaving. And an entry is held back while an earlier one of its
    slot is. `out_of_order` gives both rules up. Sources: PIP-34, PIP-379.
    """

    def __init__(
        self,
        *,
        sticky: bool = False,
        out_of_order: bool = False,
        look_ahead: int = 2000,
        max_unacked: int = 0,
        share: UnackedShare | None = None,
    ) -> None:
        super().__init__(max_unacked=max_unacked, share=share)
        self.sticky = sticky
        self.out_of_order = out_of_order
        self._look_ahead = look_ahead
        self._selector: KeySelector = StickyRanges() if sticky else HashRing()
        self._wanted_ranges: dict[int, Sequence[Range]] = {}
        self._held: dict[int, ReplayQueue] = {}
        """Entries to be read again, by slot."""
        self._held_count = 0
        self._slots: dict[Position, int] = {}
        """The slot of every entry that is held, or was and is being read."""
        self._holders: dict[int, tuple[Member, int]] = {}
        """Who has unacknowledged entries of a slot, and how many."""

    def join(self, member: Member, ranges: Sequence[Range]) -> None:
        """`add`, with the ranges a sticky consumer asks for."""
        self._ordinals += 1
        member.ordinal = self._ordinals
        self._selector.add(member, ranges)  # Raises before anything else changed.
        self._members.append(member)
        self._members.sort(key=lambda each: (each.priority, each.ordinal))

    def add(self, member: Member) -> None:
        self.join(member, ())

    def remove(self, member: Member) -> None:
        self._selector.remove(member)
        for slot in [slot for slot, (holder, _) in self._holders.items() if holder is member]:
            del self._holders[slot]
        super().remove(member)

    def ranges_of(self, member: Member) -> list[Range]:
        """The slots that are a consumer's own, for stats."""
        return self._selector.ranges_of(member)

    @property
    def replay_count(self) -> int:
        return self._held_count

    def room(self) -> int:
        return super().room() if self._held_count < self._look_ahead else 0

    def replays(self, limit: int) -> list[Position]:
        if self.stalled:
            return []
        positions: list[Position] = []
        budget = {member.ordinal: member.permits for member in self._members if member.ready}
        for slot, held in list(self._held.items()):
            if len(positions) >= limit or not budget:
                break
            member = self._owner(slot)
            if member is None or budget.get(member.ordinal, 0) <= 0:
                continue
            taken = held.pop(min(limit - len(positions), budget[member.ordinal]))
            budget[member.ordinal] -= len(taken)
            positions.extend(taken)
            self._held_count -= len(taken)
            if not held:
                del self._held[slot]
        positions.sort()
        return positions

    def give_back(self, positions: Iterable[Position]) -> None:
        for position in positions:
            if (slot := self._slots.get(position)) is not None:
                self._replay_later(position, slot)

    def forget(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self._forget(position)

    def offer(self, candidates: Iterable[Candidate], *, replayed: bool) -> None:
        self._ready.extend(candidates)

    def take(self) -> list[Delivery]:
        deliveries: list[Delivery] = []
        ready = sorted(self._ready, key=lambda candidate: candidate.position)
        self._ready.clear()
        for candidate in ready:
            member = None if self.stalled else self._choose(candidate)
            if member is None:
                self._replay_later(candidate.position, candidate.key_hash)
                continue
            self._slots.pop(candidate.position, None)
            if not self.out_of_order:
                _, count = self._holders.get(candidate.key_hash, (member, 0))
                self._holders[candidate.key_hash] = (member, count + 1)
            deliveries.append(self._assign(member, candidate))
        return deliveries

    def could_send(self) -> bool:
        if self.stalled:
            return False  # What was read and could not be sent is held by its key: nothing stays ready.
        return any((owner := self._owner(slot)) is not None and owner.ready for slot in self._held)

    def _choose(self, candidate: Candidate) -> Member | None:
        member = self._owner(candidate.key_hash)
        if member is None or not member.ready:
            return None
        if not self.out_of_order:
            held = self._held.get(candidate.key_hash)
            lowest = held.lowest() if held is not None else None
            if lowest is not None and lowest < candidate.position:
                return None
        return member

    def _owner(self, slot: int) -> Member | None:
        """Who may get entries of a slot now: nobody while one it used to belong to still has some."""
        member = self._selector.select(slot)
        if member is not None and not self.out_of_order:
            holder = self._holders.get(slot)
            if holder is not None and holder[0] is not member:
                return None
        return member

    def clear(self) -> None:
        super().clear()
        self._held.clear()
        self._held_count = 0
        self._slots.clear()
        self._holders.clear()

    def _replay_later(self, position: Position, key_hash: int) -> None:
        held = self._held.setdefault(key_hash, ReplayQueue())
        if position not in held:
            held.add(position)
            self._held_count += 1
            self._slots[position] = key_hash

    def _forget(self, position: Position) -> None:
        slot = self._slots.pop(position, None)
        held = self._held.get(slot) if slot is not None else None
        if slot is not None and held is not None and position in held:
            held.discard(position)
            self._held_count -= 1
            if not held:
                del self._held[slot]

    def _forget_up_to(self, position: Position) -> None:
        for held in [held for held in self._slots if held <= position]:
            self._forget(held)

    def _settled(self, position: Position, outstanding: Outstanding) -> None:
        holder = self._holders.get(outstanding.key_hash)
        if holder is not None:
            member, count = holder
            if count > 1:
                self._holders[outstanding.key_hash] = (member, count - 1)
            else:
                del self._holders[outstanding.key_hash]
