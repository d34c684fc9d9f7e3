"""A topic whose messages are stored: a managed ledger, its producers, its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from magnetar.broker import stats
from magnetar.broker.compaction.state import COMPACTION_CURSOR
from magnetar.broker.compaction.topic_compaction import TopicCompaction
from magnetar.broker.dedup_cursor import DEDUPLICATION_CURSOR, DeduplicationCursor
from magnetar.broker.errors import (
    InvalidSubscription,
    MessageNotFound,
    NotAllowed,
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicTerminated,
)
from magnetar.broker.publishing import PublishPath
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.broker.transactions.topic_side import TransactionalTopic
from magnetar.broker.upkeep.backlog import Backlog
from magnetar.broker.upkeep.chores import Chore, Chores
from magnetar.broker.upkeep.expiry import expire_messages
from magnetar.broker.upkeep.inactivity import Idleness, expired_subscriptions
from magnetar.environment.logs import get_logger
from magnetar.ledger.groups import NO_GROUPS, BookieGroups
from magnetar.managed_ledger import EARLIEST, LATEST, Position
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import ManagedLedgerError
from magnetar.protocol.frames import FRAME_SLACK_BYTES
from magnetar.protocol.ids import MessageId

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.latency import LatencyBuckets
    from magnetar.broker.membership import SubscriptionBase
    from magnetar.broker.producer import Producer, Publish
    from magnetar.broker.settings import BrokerSettings
    from magnetar.managed_ledger import Cursor, Entry, ManagedLedger
    from magnetar.naming import TopicName
    from magnetar.policies.effective import EffectivePolicies
    from magnetar.policies.storage import BookieAffinity
    from magnetar.protocol.pulsar_pb2 import CommandSend

log = get_logger("magnetar.broker")

EPOCH_PROPERTY: Final = "magnetar.topic-epoch"
_OWN_PROPERTIES: Final = "magnetar."
"""So begin the names of properties that say something to the broker: of ledgers that end with a cursor, say."""
RESERVED_CURSORS: Final = ("pulsar.dedup", "pulsar.repl", "__compaction", "__transaction")

_DRAIN_S = 10.0
_DESERTED_S = 60.0


class PersistentTopic(TransactionalTopic, Topic):
    """Stores what producers send, and lets subscriptions deliver it."""

    subscriptions: dict[str, Subscription]

    def __init__(
        self,
        name: TopicName,
        ledger: ManagedLedger,
        context: BrokerContext,
        policies: EffectivePolicies,
        *,
        reload: Callable[[], None],
    ) -> None:
        """`reload` is to have the topic unloaded soon, and so loaded anew by whoever asks for it next."""
        super().__init__(name, context, policies)
        self.ledger = ledger
        self.subscriptions = {}
        self.deduplication = DeduplicationCursor(ledger, context)
        self._publishing = PublishPath(self, ledger, self.deduplication)
        self.compaction = TopicCompaction(self, ledger, context)
        self.backlog = Backlog(self)
        self.idleness = Idleness(self.clock.monotonic())
        self._reload = reload
        self._subscribing = asyncio.Lock()
        self._applying = asyncio.Lock()
        self._half_deleted: dict[str, Subscription] = {}
        """Subscriptions whose deletion has begun, and is not stored yet, or failed: it can be asked for again."""
        self._temporary_cursors = 0
        self._last_message: tuple[Position, MessageId] | None = None

    async def recover(self) -> None:
        """Bring back what the topic was. Nobody may use it before this is done."""
        epoch = self.ledger.properties.get(EPOCH_PROPERTY)
        if epoch is not None:
            self.exclusivity.epoch = int(epoch)
        self.terminated = self.ledger.terminated
        if self.policies.deduplication_enabled:
            await self.deduplication.enable()
        await self.compaction.recover()
        await self._recover_transactions()
        for name, cursor in list(self.ledger.cursors.items()):
            if not name.startswith(RESERVED_CURSORS):
                self._attach(name, cursor, durable=True, properties=cursor.cursor_properties)
        await self._recover_pending_acks()
        self.ledger.on_append(self._appended)

    # Publishing.

    def publish(self, producer: Producer, command: CommandSend, payload: memoryview) -> None:
        if not self.closing:
            self._publishing.take(producer, command, payload)
            if self.rates.publish:
                self.rates.came_in(producer.peer, command.num_messages, len(payload))
        # Else its producer is told so when what came before is stored, and sends it again.

    def published(self, publish: Publish, position: Position | None, error: Exception | None) -> None:
        self._publishing.ended(publish, position, error)

    @property
    def write_latency(self) -> LatencyBuckets:
        """How long storing took."""
        return self._publishing.write_latency

    def check_publishable(self) -> None:
        """
        Raises:
            TopicTerminated: the topic takes no more messages.
        """
        if self.terminated:
            raise TopicTerminated(f"topic {self.name} is terminated: it takes no more messages")

    def marks_in_doubt(self) -> None:
        """A write failed of which nobody knows whether it is stored, and deduplication must know.

        The log knows, once it has been recovered: the topic is loaded anew. Until then it takes nothing.
        """
        if not self.closing:
            self.closing = True
            log.warning("topic.reloaded", topic=str(self.name), reason="a write's outcome is unknown")
            self._reload()

    def _appended(self) -> None:
        """Entries were appended, however many: wake every subscription once."""
        for subscription in self.subscriptions.values():
            subscription.wake()

    def last_sequence_id(self, producer_name: str) -> int:
        return self.deduplication.marks.last_sequence_id(producer_name) if self.deduplication.enabled else -1

    async def store_epoch(self, epoch: int) -> None:
        await self.ledger.put_property(EPOCH_PROPERTY, str(epoch))

    # Subscriptions.

    async def subscription(
        self,
        name: str,
        *,
        durable: bool,
        initial: Literal["earliest", "latest"] = "latest",
        start: Position | None = None,
        properties: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> Subscription:
        """The subscription of that name, made if need be.

        `start` is the first entry that a non-durable one delivers; `initial` where there is none.

        Raises:
            SubscriptionNotFound: it is not there and `create` is not set.
            NotAllowed: it is there, but durable where this is not, or the other way round; or its properties are not
                for clients to set.
        """
        check_subscription_name(name)
        check_subscription_properties(properties or {})
        async with self._subscribing:
            self.check_open()
            existing = self.subscriptions.get(name)
            if existing is not None and not existing.closed:
                if existing.durable is not durable:
                    raise NotAllowed(
                        f"subscription {name!r} exists and is {'' if existing.durable else 'not '}durable: "
                        f"use another name"
                    )
                return existing
            if durable and not create:
                raise SubscriptionNotFound(
                    f"subscription {name!r} does not exist on {self.name}: create it first"
                )
            limit = self.policies.max_subscriptions_per_topic
            if durable and limit and sum(each.durable for each in self.subscriptions.values()) >= limit:
                raise NotAllowed(f"topic {self.name} has its {limit} subscriptions already: delete one first")
            cursor = await self.ledger.open_cursor(
                name,
                initial=initial,
                properties=properties if durable else None,
                durable=durable,
                start=start,
            )
            return self._attach(name, cursor, durable=durable, properties=properties)

    def _attach(
        self, name: str, cursor: Cursor, *, durable: bool, properties: Mapping[str, str] | None
    ) -> Subscription:
        subscription = Subscription(self, name, cursor, durable=durable, properties=properties)
        if self.transactions is not None:
            subscription.hide_with(self.transactions)
        self.subscriptions[name] = subscription
        self._half_deleted.pop(name, None)
        return subscription

    async def create_subscription(
        self, name: str, position: Position = LATEST, *, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """Make a durable subscription whose first message is the one at `position`.

        Raises:
            SubscriptionExists: there is one.
        """
        if name in self.subscriptions:
            raise SubscriptionExists(f"subscription {name!r} exists on {self.name}")
        initial: Literal["earliest", "latest"] = "earliest" if position == EARLIEST else "latest"
        made = await self.subscription(name, durable=True, initial=initial, properties=properties)
        if position not in (EARLIEST, LATEST):
            await made.reset(position)
        return made

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        async with self._subscribing:
            if name == COMPACTION_CURSOR and self.compaction.keeps:
                await self.compaction.end()
                return
            subscription = self.subscriptions.get(name) or self._half_deleted.get(name)
            if subscription is None:
                raise SubscriptionNotFound(f"subscription {name!r} does not exist on {self.name}")
            if subscription.consumers and not force:
                raise SubscriptionBusy(
                    f"subscription {name!r} has {len(subscription.consumers)} consumers: close them, or force it"
                )
            await self._forget(subscription)

    async def _forget(self, subscription: Subscription) -> None:
        name = subscription.name
        self.subscriptions.pop(name, None)
        if subscription.durable:
            self._half_deleted[name] = subscription
        await subscription.close()
        if subscription.durable:
            if name not in self.ledger.cursors:  # An earlier try got so far; its record may be there still.
                await self.ledger.open_cursor(name)
            if subscription.pending_acks is not None:  # First, or a new one of that name would find it.
                await subscription.pending_acks.delete()
            await self.ledger.delete_cursor(name)
            del self._half_deleted[name]

    def consumer_left(self, subscription: SubscriptionBase) -> None:
        """A subscription that is not durable ends with its last consumer, unless that is to come back from a seek."""
        assert isinstance(subscription, Subscription)
        self.idleness.used(self.clock.monotonic())
        if subscription.resetting:
            # A reader that sought a time names its old beginning when it comes back: only the cursor knows better.
            return
        if not subscription.durable and not subscription.consumers and not subscription.closed:
            self.context.tasks.start(
                self._end(subscription), f"end subscription {subscription.name} of {self.name}"
            )

    async def _end(self, subscription: Subscription) -> None:
        async with self._subscribing:
            if not subscription.consumers and not subscription.resetting and not subscription.closed:
                await self._forget(subscription)

    @asynccontextmanager
    async def temporary_cursor(self, start: Position) -> AsyncIterator[Cursor]:
        """A reader of the ledger from `start` on, for a moment."""
        self._temporary_cursors += 1
        cursor = await self.ledger.open_cursor(
            f"__temporary-{self._temporary_cursors}", durable=False, start=start
        )
        try:
            yield cursor
        finally:
            await cursor.close()

    # Reading by position.

    async def read_entry(self, position: Position) -> Entry:
        """
        Raises:
            MessageNotFound: there is no entry at `position`.
        """
        try:
            return await self.ledger.read_entry(position)
        except ManagedLedgerError as error:
            raise MessageNotFound(
                f"no message at {position.ledger_id}:{position.entry_id}: {error}"
            ) from error

    @property
    def subscribing(self) -> bool:
        """Whether a subscription is being made, or ended: nobody sees it among them yet, or still."""
        return self._subscribing.locked()

    @property
    def untouched(self) -> bool:
        consumers = any(each.consumers for each in self.subscriptions.values())
        return not self.producers and not consumers and not self.ledger.number_of_entries

    async def last_message_id(self) -> MessageId:
        position = self.max_read_position
        if self._last_message is not None and self._last_message[0] == position:
            return self._last_message[1]
        found = await self._last_deliverable(position, self.partition)
        self._last_message = (position, found)
        return found

    # Ending.

    async def terminate(self) -> MessageId:
        """Take no more messages, for ever. Returns the id of the last."""
        self.closing = True
        try:
            await self._publishing.drained(_DRAIN_S)
            last = await self.ledger.terminate()
            self.terminated = True
        finally:
            self.closing = False
        self.disconnect_producers()
        for subscription in self.subscriptions.values():
            if subscription.caught_up:
                subscription.tell_end()
        log.info("topic.terminated", topic=str(self.name), last=f"{last.ledger_id}:{last.entry_id}")
        return MessageId(last.ledger_id, last.entry_id, self.partition)

    async def add_producer(self, producer: Producer, topic_epoch: int | None = None) -> bool:
        self.check_publishable()
        refusal = self.backlog.refusal()
        if refusal is not None:
            raise refusal
        return await super().add_producer(producer, topic_epoch)

    def remove_producer(self, producer: Producer) -> None:
        super().remove_producer(producer)
        self.idleness.used(self.clock.monotonic())

    async def close(self) -> None:
        self.closing = True
        await self.compaction.close()
        if (
            self.lost
        ):  # What is on its way is for the next owner to find, or not: its producers send it again there.
            self.disconnect_producers()
            self.ledger.fence("the topic's bundle was lost")
        else:
            await self._publishing.drained(_DRAIN_S)
            self.disconnect_producers()
        async with self._subscribing:
            for subscription in list(self.subscriptions.values()):
                await subscription.close()
        await self.deduplication.close()
        if self.transactions is not None:
            await self.transactions.close()
        await self.ledger.close()

    # What is done now and then.

    async def housekeeping(self, chores: Chores) -> None:
        """Do what is due. Whether the topic itself is to go is for the registry to see to."""
        if Chore.EXPIRY in chores:
            await expire_messages(self)
        if Chore.QUOTAS in chores:
            await self.backlog.check()
        if Chore.SUBSCRIPTIONS in chores:
            for subscription in expired_subscriptions(self, self.clock.monotonic()):
                await self.delete_subscription(subscription.name)
                log.info("subscription.expired", topic=str(self.name), subscription=subscription.name)

    # Policies and figures.

    async def apply_policies(self, policies: EffectivePolicies) -> None:
        async with self._applying:
            await super().apply_policies(policies)
            for subscription in self.subscriptions.values():
                subscription.follow_policies()
            if self.closing:
                return
            self.ledger.set_config(ledger_config(policies, self.settings))
            await self.compaction.follow_policies()
            wanted = policies.deduplication_enabled
            if wanted and not self.deduplication.enabled:
                await self.deduplication.enable()
            elif not wanted and self.deduplication.enabled:
                await self.deduplication.disable()

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        self.rates.tick(each.gate for each in self.subscriptions.values())
        self.deduplication.tick(self.producers, self.policies.deduplication_snapshot_interval_s)
        if self.transactions is not None:
            self.transactions.tick()
        self.compaction.check(self.clock.monotonic())
        now = self.clock.monotonic()
        for subscription in list(self.subscriptions.values()):
            subscription.notice_mark_delete()
            deserted_at = subscription.deserted_at
            if not subscription.durable and deserted_at is not None and now - deserted_at > _DESERTED_S:
                self.consumer_left(
                    subscription
                )  # A reader that let go of its cursor to seek, and never came back.

    def stats(self, **options: bool) -> stats.Json:
        told = super().stats(**options)
        told["storageSize"] = self.ledger.total_size
        told["backlogSize"] = max(
            (each.cursor.backlog_bytes for each in self.subscriptions.values()), default=0
        )
        told["deduplicationStatus"] = self.deduplication.status
        if self.transactions is not None:
            told["ongoingTxnCount"] = len(self.transactions.state.open)
            told["abortedTxnCount"] = self.transactions.aborted
            told["committedTxnCount"] = self.transactions.committed
        told["compaction"] = self.compaction.stats()
        told.update(self.backlog.stats())
        told["delayedMessageIndexSizeInBytes"] = sum(
            each["delayedMessageIndexSizeInBytes"] for each in told["subscriptions"].values()
        )
        return told

    def internal_stats(self) -> dict[str, Any]:
        return {
            **self.ledger.internal_stats(),
            "schemaLedgers": [],
            "compactedLedger": self.compaction.internal_stats(),
        }


def ledger_config(policies: EffectivePolicies, settings: BrokerSettings) -> ManagedLedgerConfig:
    """How a topic's log is kept, by its policies."""
    return ManagedLedgerConfig(
        max_entry_bytes=settings.max_message_bytes + FRAME_SLACK_BYTES,
        max_entries_per_ledger=settings.ledger_max_entries,
        max_size_bytes=settings.ledger_max_bytes,
        max_rollover_s=settings.ledger_max_age_s,
        min_rollover_s=min(settings.ledger_min_age_s, settings.ledger_max_age_s),
        inactive_rollover_s=settings.ledger_inactive_s,
        auto_skip_lost=settings.auto_skip_lost_entries,
        ensemble_size=policies.ensemble_size,
        write_quorum=policies.write_quorum,
        ack_quorum=policies.ack_quorum,
        bookie_groups=_groups(policies.bookie_affinity),
        retention_time_s=policies.retention_time_s,
        retention_size_bytes=policies.retention_size_bytes,
        mark_delete_rate_per_s=policies.mark_delete_rate or 1.0,
    )


def _groups(affinity: BookieAffinity | None) -> BookieGroups:
    """Names of groups are given as a list with commas."""
    if affinity is None:
        return NO_GROUPS
    said = (affinity.bookkeeper_affinity_group_primary, affinity.bookkeeper_affinity_group_secondary)
    primary, secondary = (
        tuple(name for each in (names or "").split(",") if (name := each.strip())) for names in said
    )
    return BookieGroups(primary, secondary)


def check_subscription_name(name: str) -> None:
    """
    Raises:
        InvalidSubscription: it is empty, or kept for the broker's own cursors.
    """
    if not name:
        raise InvalidSubscription("Empty subscription name: give one")
    if name.startswith(RESERVED_CURSORS) or name == DEDUPLICATION_CURSOR:
        raise InvalidSubscription(
            f"subscription name {name!r} is reserved: choose one without that beginning"
        )


def check_subscription_properties(properties: Mapping[str, str]) -> None:
    """
    Raises:
        NotAllowed: one of them would say something to the broker itself. Some name ledgers to be deleted.
    """
    for name in properties:
        if name.startswith(_OWN_PROPERTIES):
            raise NotAllowed(
                f"property {name!r} is the broker's own: choose a name without {_OWN_PROPERTIES!r}"
            )
