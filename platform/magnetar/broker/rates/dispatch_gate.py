"""The limits on what one subscription sends, asked before each read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.rates.dispatch_limit import Allowance, DispatchLimit, allowance

if TYPE_CHECKING:
    from magnetar.broker.rates.rate import TwinBucket
    from magnetar.environment.clock import Clock

CAUGHT_UP_ENTRIES: Final = 1000
"""A subscription with no more behind it counts as caught up. Source: Pulsar managedLedgerCursorBackloggedThreshold."""


class DispatchGate:
    """Says how much may go out, and wakes the subscription when that is something again."""

    __slots__ = ("_by_entry", "_clock", "_limits", "_per_entry", "_timer", "_wake", "own", "times_limited")

    def __init__(
        self,
        clock: Clock,
        own: DispatchLimit | None,
        shared: Sequence[TwinBucket],
        wake: Callable[[], None],
        *,
        by_entry: bool,
    ) -> None:
        """`own` is the subscription's; with `by_entry` a batch counts as one message."""
        self._clock = clock
        self.own = own
        self._limits: tuple[TwinBucket, ...] = (*shared, own) if own is not None else tuple(shared)
        self._wake = wake
        self._by_entry = by_entry
        self._per_entry = 0.0
        """Messages in each entry of the last read; 0: none was read yet."""
        self._timer: asyncio.TimerHandle | None = None
        self.times_limited = 0

    @property
    def waiting(self) -> bool:
        """Whether nothing may go out before it wakes the subscription."""
        return self._timer is not None

    def ask(self) -> Allowance | None:
        """What may go out now; None: nothing, and the subscription will be woken."""
        allowed = allowance(self._limits, self._clock.monotonic())
        if allowed.wait_s <= 0:
            return allowed
        if self._timer is None:
            self.times_limited += 1
            self._timer = asyncio.get_running_loop().call_later(allowed.wait_s, self._again)
        return None

    def _again(self) -> None:
        self._timer = None
        self._wake()

    def entries(self, allowed: Allowance, messages_per_entry: float) -> int:
        """How many entries make up what is allowed."""
        if self._by_entry:
            return allowed.messages
        if not self._per_entry:
            return 1  # One entry tells how many messages the others are about to have.
        return max(1, round(allowed.messages / max(1.0, messages_per_entry, self._per_entry)))

    def went_out(self, entries: int, messages: int, size: int) -> None:
        """So much was sent."""
        now = self._clock.monotonic()
        self._per_entry = messages / entries
        counted = entries if self._by_entry else messages
        for limit in self._limits:
            limit.take(counted, size, now)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
