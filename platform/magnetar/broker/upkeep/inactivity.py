"""When topics and subscriptions count as unused. Pure, but for what it looks at.

Source: Pulsar PersistentTopic.checkGC and checkInactiveSubscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.compaction.state import COMPACTION_CURSOR
from magnetar.policies.storage import InactiveTopicDeleteMode

if TYPE_CHECKING:
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.broker.subscription import Subscription


def is_active(topic: PersistentTopic) -> bool:
    """Whether somebody uses the topic, or may come back for what it holds."""
    if topic.has_clients or topic.subscribing or topic.policies.compaction_threshold_bytes > 0:
        return True
    if COMPACTION_CURSOR in topic.ledger.cursors:
        return True  # A table: its readers come and go, and leave no subscription.
    subscriptions = [each for each in topic.subscriptions.values() if each.durable]
    if topic.policies.inactive_topic_delete_mode is InactiveTopicDeleteMode.delete_when_no_subscriptions:
        return bool(subscriptions)
    return any(not each.caught_up for each in subscriptions)


class Idleness:
    """Since when a topic is unused. It is looked at now and then, and a use between two looks is told by `used`."""

    __slots__ = ("since",)

    def __init__(self, now: float) -> None:
        self.since = now

    def used(self, now: float) -> None:
        self.since = now

    def overdue(self, topic: PersistentTopic, now: float) -> bool:
        """Whether the topic has been unused for so long that it may be deleted."""
        policies = topic.policies
        if is_active(topic):
            self.since = now
            return False
        if not policies.delete_inactive_topics or topic.name.is_system:
            return False
        if policies.retention_time_s < 0 or policies.retention_size_bytes < 0:
            return False  # What is kept for ever has a reader yet to come.
        return now - self.since >= max(policies.inactive_topic_s, policies.retention_time_s)


def expired_subscriptions(topic: PersistentTopic, now: float) -> list[Subscription]:
    """The durable subscriptions that nobody has used for as long as the namespace allows."""
    limit_s = topic.policies.subscription_expiration_s
    if limit_s <= 0 or topic.name.is_system:
        return []
    return [
        each
        for each in topic.subscriptions.values()
        if each.durable and each.deserted_at is not None and now - each.deserted_at >= limit_s
    ]
