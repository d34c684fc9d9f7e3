"""What every dispatcher can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from magnetar.broker.dispatch.candidate import Candidate, Delivery
    from magnetar.broker.dispatch.member import Member
    from magnetar.managed_ledger import Position


class Dispatcher(ABC):
    """Decides, for one subscription, who receives what, and remembers what is out.

    The shell asks `replays` and `room`, reads as much, passes what it read through the filters to `offer`,
    and sends what `take` returns. Nothing here waits, and nothing is forgotten: every candidate offered is
    either taken, still ready, or back among the replays.
    """

    individual: ClassVar[bool]
    """Whether consumers acknowledge entry by entry: Shared and Key_Shared."""

    @property
    @abstractmethod
    def members(self) -> Sequence[Member]:
        """The consumers, in the order this dispatcher prefers them."""

    @abstractmethod
    def add(self, member: Member) -> None:
        """Let a consumer join, without permits.

        Raises:
            ConsumerBusy, ConsumerNotAssignable: it cannot.
        """

    @abstractmethod
    def remove(self, member: Member) -> None:
        """Let a consumer leave. What it has not acknowledged will be delivered to others."""

    @abstractmethod
    def room(self) -> int:
        """How many more messages could be sent now, beyond those that are ready. 0: read nothing."""

    @abstractmethod
    def offer(self, candidates: Iterable[Candidate], *, replayed: bool) -> None:
        """Take over entries that were read."""

    @abstractmethod
    def take(self) -> list[Delivery]:
        """Everything that can be sent now, in order. Permits are taken."""

    @abstractmethod
    def could_send(self) -> bool:
        """Whether something that was read, or given back, could go out now."""

    @abstractmethod
    def clear(self) -> None:
        """Forget what is ready and what is to be replayed: the cursor was moved."""

    def replays(self, limit: int) -> list[Position]:
        """Up to `limit` entries to read again now. They are no longer replays; `offer` them, or `give_back`."""
        return []

    def give_back(self, positions: Iterable[Position]) -> None:
        """Entries that `replays` returned could not be read for now."""

    def forget(self, positions: Iterable[Position]) -> None:
        """Entries that `replays` returned are no more."""

    def redeliver(self, member: Member, positions: Collection[Position] | None) -> bool:
        """A consumer gives entries back (None: all it has). Returns whether the cursor must be rewound."""
        return True

    def acknowledged(self, position: Position, left: Sequence[int], by: Member) -> None:
        """An entry, or a part of it, was acknowledged by itself: `left` is the ack set of the rest, empty for none."""

    def acknowledged_up_to(self, position: Position) -> None:
        """Everything up to and with `position` is acknowledged, whoever had it."""

    def redeliveries(self, position: Position) -> int:
        """How often the entry was given back."""
        return 0

    @property
    def unacked(self) -> int:
        """Messages sent and not acknowledged."""
        return sum(member.unacked for member in self.members)
