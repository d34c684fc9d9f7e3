"""Goes from topic to topic and does what is due. One task for the whole broker.

A topic's trouble is logged and costs no other topic its turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.upkeep.chores import Chore, Chores, Rota
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.topics import TopicRegistry

log = get_logger("magnetar.broker")

TOPIC_TIMEOUT_S: Final = 30.0
"""A topic whose storage does not answer has no more time than this; the others are waiting."""

_LONGEST_SLEEP_S: Final = 5.0


class Housekeeper:
    """Does the chores of one broker."""

    def __init__(self, context: BrokerContext, topics: TopicRegistry) -> None:
        self._context = context
        self._topics = topics
        settings = context.settings
        self._intervals_s = {
            Chore.EXPIRY: settings.message_expiry_check_interval_s,
            Chore.QUOTAS: settings.backlog_quota_check_interval_s,
            Chore.INACTIVITY: settings.inactive_topic_check_interval_s,
            Chore.SUBSCRIPTIONS: settings.subscription_expiry_check_interval_s,
            Chore.COMPACTION: settings.compaction_check_interval_s,
        }
        self.topics_deleted = 0
        """Topics that were deleted because nobody used them."""

    async def run(self) -> None:
        """Do what is due, for ever."""
        clock = self._context.clock
        rota = Rota(self._intervals_s, clock.monotonic())
        while True:
            await asyncio.sleep(min(_LONGEST_SLEEP_S, max(0.0, rota.next_at - clock.monotonic())))
            due = rota.take(clock.monotonic())
            if due:
                await self.keep(due)

    async def keep(self, chores: Chores) -> None:
        """Do `chores` for every topic that is loaded."""
        for topic in self._topics.loaded():
            if not isinstance(topic, PersistentTopic) or topic.closing or not topic.ours:
                continue
            try:
                async with asyncio.timeout(TOPIC_TIMEOUT_S):
                    await topic.housekeeping(chores)
                    if Chore.INACTIVITY in chores:
                        await self._delete_if_unused(topic)  # What it has begun goes on without us.
            except Exception as error:
                log.warning(
                    "housekeeping.topic_failed",
                    topic=str(topic.name),
                    reason=f"{type(error).__name__}: {error}",
                )
            await asyncio.sleep(0)  # Others have a turn, however many topics there are.

    async def _delete_if_unused(self, topic: PersistentTopic) -> None:
        if not topic.idleness.overdue(topic, self._context.clock.monotonic()):
            return
        if await self._topics.delete_unused(topic):
            self.topics_deleted += 1
            log.info("topic.deleted_unused", topic=str(topic.name))
