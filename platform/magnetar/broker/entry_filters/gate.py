"""A subscription's filters: asked for each batch, until they answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.entry_filters import frames
from magnetar.broker.entry_filters.host import FilterFailed
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.broker.entry_filters.host import EntryFilterHost
    from magnetar.broker.subscription import Subscription
    from magnetar.managed_ledger import Entry

log = get_logger("magnetar.broker")

_RETRY_S: Final = 0.5
_RETRY_MAX_S: Final = 30.0


class FilterGate:
    """What lies between the reading and the dispatching of one subscription."""

    def __init__(self, host: EntryFilterHost, names: tuple[str, ...], subscription: Subscription) -> None:
        self.names = names
        self._host = host
        self._subscription = subscription
        self._interrupted = asyncio.Event()
        self.accepted = 0
        self.rejected = 0
        self.rescheduled = 0
        self.failures = 0

    def interrupt(self) -> None:
        """Whoever waits for an answer need not wait any longer."""
        self._interrupted.set()

    async def judge(self, entries: Sequence[Entry]) -> str | None:
        """A verdict for each entry, however long that takes; None: it was interrupted."""
        self._interrupted.clear()
        pause_s = _RETRY_S
        while True:
            verdicts = await self._ask(entries)
            if verdicts is not None or self._interrupted.is_set():
                return verdicts
            await self.rest(pause_s)
            if self._interrupted.is_set():
                return None
            pause_s = min(pause_s * 2, _RETRY_MAX_S)

    async def rest(self, seconds: float) -> None:
        """Wait, but not longer than until it is interrupted."""
        waiting = asyncio.ensure_future(self._interrupted.wait())
        await asyncio.wait((waiting,), timeout=seconds)
        waiting.cancel()

    async def _ask(self, entries: Sequence[Entry]) -> str | None:
        subscription = self._subscription
        asking = asyncio.ensure_future(
            self._host.judge(
                self.names,
                entries,
                topic=str(subscription.topic.name),
                subscription=subscription.name,
                properties=subscription.properties,
            )
        )
        waiting = asyncio.ensure_future(self._interrupted.wait())
        await asyncio.wait((asking, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not asking.done():
            asking.cancel()
            await asyncio.wait((asking,))
            return None
        try:
            verdicts = asking.result()
        except FilterFailed as error:
            self.failures += 1
            log.warning(
                "entry_filter.failed",
                topic=str(subscription.topic.name),
                subscription=subscription.name,
                filters=",".join(self.names),
                reason=str(error),
            )
            return None
        self.accepted += verdicts.count(frames.ACCEPT)
        self.rejected += verdicts.count(frames.REJECT)
        self.rescheduled += verdicts.count(frames.RESCHEDULE)
        return verdicts

    def stats(self) -> dict[str, int]:
        """The part of SubscriptionStats that is about filters, in entries."""
        return {
            "filterProcessedMsgCount": self.accepted + self.rejected + self.rescheduled,
            "filterAcceptedMsgCount": self.accepted,
            "filterRejectedMsgCount": self.rejected,
            "filterRescheduledMsgCount": self.rescheduled,
        }
