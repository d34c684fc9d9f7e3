"""How much all shared consumers of a broker may have unacknowledged together. Pure.

When they have more, the subscriptions with most of it are blocked and the small ones go on: a subscription whose
consumers hoard must not be everybody's trouble. Source: Pulsar `maxUnackedMessagesPerBroker` and
`maxUnackedMessagesPerSubscriptionOnBrokerBlocked`; Pulsar looks every five seconds, this at every message.
"""

from __future__ import annotations

from collections.abc import Callable


class UnackedBudget:
    """What all subscriptions of a broker have out, and who is blocked for it."""

    __slots__ = ("_blocked_shares", "_most_each", "blocked", "blocks", "limit", "used")

    def __init__(self, limit: int, share: float) -> None:
        """`share` is the part of `limit` that a subscription may have while the broker is over it."""
        self.limit = limit
        """Messages. 0: no limit."""
        self.used = 0
        self.blocked = False
        """Whether the limit was reached, and half of it is not yet acknowledged."""
        self.blocks = 0
        """How often subscriptions were blocked for it."""
        self._most_each = max(1, int(limit * share))
        self._blocked_shares: dict[UnackedShare, None] = {}

    def share(self, unblocked: Callable[[], None]) -> UnackedShare | None:
        """A subscription's part; None where there is no limit. `unblocked` is called when it may go on."""
        return UnackedShare(self, unblocked) if self.limit else None

    def taken(self, share: UnackedShare, messages: int) -> None:
        """Messages went out."""
        self.used += messages
        share.used += messages
        if self.used >= self.limit:
            self.blocked = True
        if self.blocked and share.used > self._most_each and not share.blocked:
            share.blocked = True
            self.blocks += 1
            self._blocked_shares[share] = None

    def released(self, share: UnackedShare, messages: int) -> None:
        """Messages are acknowledged, or nobody's any more."""
        self.used -= messages
        share.used -= messages
        if self.blocked and self.used < max(1, self.limit // 2):
            self.blocked = False
            free, self._blocked_shares = list(self._blocked_shares), {}
        elif share.blocked and share.used < self._most_each / 2:
            free = [share]
            self._blocked_shares.pop(share, None)
        else:
            return
        for each in free:
            each.blocked = False
            each.unblocked()


class UnackedShare:
    """One subscription's part of the budget."""

    __slots__ = ("blocked", "budget", "unblocked", "used")

    def __init__(self, budget: UnackedBudget, unblocked: Callable[[], None]) -> None:
        self.budget = budget
        self.used = 0
        self.blocked = False
        """Whether nothing more may go out until some of it is acknowledged."""
        self.unblocked = unblocked

    def taken(self, messages: int) -> None:
        self.budget.taken(self, messages)

    def released(self, messages: int) -> None:
        self.budget.released(self, messages)
