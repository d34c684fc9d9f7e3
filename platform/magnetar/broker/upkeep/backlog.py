"""A topic's backlog under its quotas: measured, told, and kept within them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from magnetar.broker.errors import (
    BacklogExceeded,
    BacklogHeld,
    BrokerError,
    MessageNotFound,
)
from magnetar.broker.upkeep import backlog_quota
from magnetar.broker.upkeep.backlog_quota import Breach
from magnetar.broker.upkeep.expiry import first_not_older
from magnetar.environment.logs import get_logger
from magnetar.policies.quotas import BacklogQuotaPolicy, BacklogQuotaType
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import read_metadata

if TYPE_CHECKING:
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.broker.subscription import Subscription
    from magnetar.managed_ledger import Entry, Position

log = get_logger("magnetar.broker")


class Oldest(NamedTuple):
    """The oldest message that some durable subscription has not acknowledged."""

    subscription: str
    position: Position
    published_ms: int


class Backlog:
    """What the durable subscriptions of one topic have not acknowledged."""

    def __init__(self, topic: PersistentTopic) -> None:
        self._topic = topic
        self.oldest: Oldest | None = None
        """As of the last look."""
        self._seen: dict[str, tuple[Position, Oldest | None]] = {}
        """By subscription: what was found after its mark, so that a mark that stands is looked behind once."""
        self.size_evictions = 0
        self.time_evictions = 0
        """How often backlogs were cut short for a quota."""

    # Measuring.

    @property
    def size_bytes(self) -> int:
        """Of the slowest durable subscription."""
        return max((each.cursor.backlog_bytes for each in self._durable()), default=0)

    @property
    def oldest_age_s(self) -> float | None:
        """Of the oldest message as of the last look; None if there was none."""
        if self.oldest is None:
            return None
        return max(0, self._topic.clock.time_ms() - self.oldest.published_ms) / 1000

    def _durable(self) -> list[Subscription]:
        return [each for each in self._topic.subscriptions.values() if each.durable]

    async def look(self) -> Oldest | None:
        """Find the oldest message that is not acknowledged."""
        found: list[Oldest] = []
        seen: dict[str, tuple[Position, Oldest | None]] = {}
        for subscription in self._durable():
            mark = subscription.cursor.mark_delete
            before = self._seen.get(subscription.name)
            if before is None or before[0] != mark or before[1] is None:
                before = (mark, await self._oldest_of(subscription))
            seen[subscription.name] = before
            if before[1] is not None:
                found.append(before[1])
        self._seen = seen
        self.oldest = min(found, key=lambda each: each.published_ms, default=None)
        return self.oldest

    async def _oldest_of(self, subscription: Subscription) -> Oldest | None:
        if not subscription.cursor.backlog:
            return None
        try:
            entry = await subscription.peek(1)
        except MessageNotFound:
            return None  # Acknowledged since.
        return Oldest(subscription.name, entry.position, published_ms(entry))

    # Keeping to the quotas.

    def refusal(self) -> BrokerError | None:
        """Why the topic takes no producers just now, if it does not."""
        quotas = self._topic.policies.backlog_quotas
        for breach in backlog_quota.breaches(quotas, self.size_bytes, self.oldest_age_s):
            if breach.policy is BacklogQuotaPolicy.producer_request_hold:
                return BacklogHeld(
                    f"topic {self._topic.name} takes no messages for now: {breach}; retry later"
                )
            if breach.policy is BacklogQuotaPolicy.producer_exception:
                return BacklogExceeded(
                    f"topic {self._topic.name} takes no messages: {breach}; consume or skip some first"
                )
        return None

    async def check(self) -> None:
        """Measure, and act where a quota is exceeded."""
        await self.look()
        quotas = self._topic.policies.backlog_quotas
        for breach in backlog_quota.breaches(quotas, self.size_bytes, self.oldest_age_s):
            log.warning(
                "backlog_quota.exceeded",
                topic=str(self._topic.name),
                quota=breach.kind.value,
                policy=breach.policy.value,
                limit=breach.limit,
                measured=breach.measured,
            )
            if breach.policy is BacklogQuotaPolicy.consumer_backlog_eviction:
                await self._evict(breach)
            else:
                self._topic.halt_producers()

    async def _evict(self, breach: Breach) -> None:
        if breach.kind is BacklogQuotaType.message_age:
            self.time_evictions += 1
            cutoff_ms = self._topic.clock.time_ms() - breach.limit * 1000
            first_kept = await first_not_older(self._topic, cutoff_ms)
            for subscription in self._durable():
                await subscription.expire_before(first_kept)
        else:
            self.size_evictions += 1
            for subscription in self._durable():
                await self._cut(subscription, breach.limit)
        await self.look()
        # The saved sequence ids pin what was evicted: save them anew, so that its room is given back too.
        self._topic.deduplication.save_now()

    async def _cut(self, subscription: Subscription, limit_bytes: int) -> None:
        cursor = subscription.cursor
        while skip := backlog_quota.entries_to_evict(limit_bytes, cursor.backlog_bytes, cursor.backlog):
            before = cursor.backlog
            await subscription.evict_up_to(self._topic.ledger.position_after(cursor.mark_delete, skip))
            if cursor.backlog >= before:
                return  # Only what was acknowledged already lay there; the next look goes on.

    # Figures.

    def stats(self) -> dict[str, object]:
        """The part of TopicStats that is about quotas."""
        quotas = self._topic.policies.backlog_quotas
        age_s = self.oldest_age_s
        told: dict[str, object] = {
            "backlogQuotaLimitSize": backlog_quota.size_limit(quotas) or -1,
            "backlogQuotaLimitTime": backlog_quota.time_limit_s(quotas) or -1,
            "oldestBacklogMessageAgeSeconds": -1 if age_s is None else int(age_s),
            "earliestMsgPublishTimeInBacklogs": 0 if self.oldest is None else self.oldest.published_ms,
        }
        if self.oldest is not None:
            told["oldestBacklogMessageSubscriptionName"] = self.oldest.subscription
        return told

    def earliest_ms(self, subscription: str) -> int:
        """When the oldest message of one backlog was published, as of the last look; 0 if there was none."""
        _, found = self._seen.get(subscription, (None, None))
        return 0 if found is None else found.published_ms


def published_ms(entry: Entry) -> int:
    """When an entry was published: by the broker's clock, or else by its producer's."""
    if entry.broker_timestamp >= 0:
        return entry.broker_timestamp
    try:
        return int(read_metadata(entry.data).publish_time)
    except ProtocolError:
        return 0  # No message at all: as old as can be.
