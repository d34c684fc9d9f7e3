"""Time to live: what is older is acknowledged for every subscription.

Found by binary search over the brokers' timestamps, so that a check reads a few entries however much has expired,
and none where the oldest message is still young.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.managed_ledger import Position

log = get_logger("magnetar.broker")


async def first_not_older(topic: PersistentTopic, timestamp_ms: int) -> Position:
    """The first entry not older than `timestamp_ms`. Where all are older it is the next one to come: what is
    published while others are searched, or acted upon, is not among them."""
    last = topic.ledger.last_confirmed
    found = await topic.ledger.position_at_time(timestamp_ms)
    return found if found is not None else last.following


async def expire_messages(topic: PersistentTopic) -> int:
    """Acknowledge what has outlived the topic's time to live. Returns how many entries that were, over all
    subscriptions."""
    ttl_s = topic.policies.message_ttl_s
    if ttl_s <= 0:
        return 0
    behind = [each for each in topic.subscriptions.values() if each.cursor.backlog]
    if not behind:
        return 0
    cutoff_ms = topic.clock.time_ms() - ttl_s * 1000
    oldest = await topic.backlog.look()
    if all(each.durable for each in behind) and (oldest is None or oldest.published_ms >= cutoff_ms):
        return 0
    first_kept = await first_not_older(topic, cutoff_ms)
    expired = 0
    for subscription in behind:
        if not subscription.closed:
            expired += await subscription.expire_before(first_kept)
    if expired:
        log.info("messages.expired", topic=str(topic.name), entries=expired, ttl_s=ttl_s)
    return expired
