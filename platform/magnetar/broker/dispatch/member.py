"""A consumer as dispatch sees it: permits, priority, and what it has not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from magnetar.managed_ledger import Position


class Outstanding(NamedTuple):
    """An entry that was sent and not acknowledged."""

    messages: int
    """How many of its messages are still unacknowledged."""
    key_hash: int
    """The slot of its key, 0 outside Key_Shared."""


class Member:
    """One consumer of a subscription.

    Permits count messages, not entries: a batch may take them below zero, and FLOW brings them back.
    """

    __slots__ = (
        "max_unacked",
        "name",
        "ordinal",
        "pending",
        "permits",
        "priority",
        "stalled",
        "unacked",
        "writable",
    )

    def __init__(self, name: str, *, priority: int = 0, max_unacked: int = 0) -> None:
        self.name = name
        self.priority = priority
        """Lower is served first."""
        self.max_unacked = max_unacked
        """Unacknowledged messages at which delivery stops until half are acknowledged. 0: no limit."""
        self.ordinal = 0
        """Told apart by this where names are equal; given by the dispatcher, in the order of joining."""
        self.permits = 0
        self.unacked = 0
        self.pending: dict[Position, Outstanding] = {}
        """What was sent and not acknowledged, in the order sent. Shared and Key_Shared only."""
        self.stalled = False
        """Whether `max_unacked` was reached and half of it is not yet acknowledged."""
        self.writable = True
        """Whether its connection takes more bytes."""

    @property
    def ready(self) -> bool:
        """Whether an entry may be sent now."""
        return self.permits > 0 and self.writable and not self.stalled

    def sent(self, position: Position, messages: int, key_hash: int) -> None:
        """Remember an entry until it is acknowledged."""
        self.pending[position] = Outstanding(messages, key_hash)
        self.unacked += messages
        if self.max_unacked and self.unacked >= self.max_unacked:
            self.stalled = True

    def settle(self, position: Position, remaining: int = 0) -> Outstanding | None:
        """Keep only `remaining` messages of an entry unacknowledged. Returns what there was before."""
        before = self.pending.get(position)
        if before is None:
            return None
        if remaining <= 0:
            del self.pending[position]
            self._release(before.messages)
        elif remaining < before.messages:
            self.pending[position] = Outstanding(remaining, before.key_hash)
            self._release(before.messages - remaining)
        return before

    def _release(self, messages: int) -> None:
        self.unacked -= messages
        if self.stalled and self.unacked <= self.max_unacked // 2:
            self.stalled = False
