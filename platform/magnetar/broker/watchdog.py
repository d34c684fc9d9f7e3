"""Finds subscriptions that stand still though somebody wants what there is; says why, and heals them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.dispatch.standstill import Remedy, Standstill
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.broker.subscription import Subscription

log = get_logger("magnetar.broker")


class Watchdog:
    """Looks at one subscription now and then."""

    __slots__ = ("_standstill", "_subscription", "healed", "last_reason")

    def __init__(self, subscription: Subscription, patience_s: float) -> None:
        self._subscription = subscription
        self._standstill = Standstill(patience_s)
        self.healed = 0
        """How often it stood still and was set going again."""
        self.last_reason = ""
        """Why it stood still the last time."""

    def look(self, now: float) -> None:
        """Heal it if it has stood still for long."""
        subscription = self._subscription
        remedy = self._standstill.look(
            could_move=not self.idle_because(), moved=subscription.progress, now=now
        )
        if remedy is Remedy.NONE:
            return
        self.healed += 1
        self.last_reason = subscription.stands_still_because()
        log.warning(
            "subscription.stuck",
            topic=str(subscription.topic.name),
            subscription=subscription.name,
            reason=self.last_reason,
            remedy=remedy.name.lower(),
            backlog=subscription.cursor.backlog,
        )
        if remedy is Remedy.WAKE:
            subscription.wake()
        else:
            subscription.begin_anew()

    def idle_because(self) -> str:
        """Why nothing goes out just now, as it should be; empty where something should."""
        subscription = self._subscription
        dispatcher = subscription.dispatcher
        if subscription.closed:
            return "it is being closed"
        if subscription.resetting:
            return "its cursor is being moved"
        if dispatcher is None or not subscription.consumers:
            return "no consumers"
        if not subscription.topic.ours:
            return "it is in doubt whether the topic is served here"
        if subscription.gate is not None and subscription.gate.waiting:
            return "a dispatch rate is used up"
        if subscription.filtering:
            return "entry filters are asked, or want to see it later"
        if subscription.retrying:
            return "reads fail, and are tried again"
        if subscription.something_to_send():
            return ""
        if subscription.caught_up:
            return "everything is acknowledged"
        if isinstance(dispatcher, SharedDispatcher) and dispatcher.stalled:
            return "consumers have too much unacknowledged"
        if isinstance(dispatcher, SingleActiveDispatcher):
            if dispatcher.paused:
                return "the active consumer is changing"
            members = [dispatcher.active] if dispatcher.active is not None else []
        else:
            members = list(dispatcher.members)
        if all(member.stalled for member in members):
            return "consumers have too much unacknowledged"
        if all(member.permits <= 0 for member in members):
            return "no permits"
        if not any(member.writable for member in members):
            return "consumers do not read what they are sent"
        return "everything is sent, held back, or waits for acknowledgements"

    def told(self, now: float) -> dict[str, str | int | float]:
        """For stats: names of our own, beside Pulsar's."""
        idle = self.idle_because()
        still_s = self._standstill.since(now)
        return {
            "idleReason": idle,
            "stuckSeconds": 0 if idle else round(still_s, 1),
            "stuckReason": self.last_reason,
            "stuckHealed": self.healed,
        }
