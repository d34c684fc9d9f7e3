"""A subscription's consumers: who may join, who is active, and who is told."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, ClassVar, Final

from magnetar.broker import stats
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.errors import ConsumerBusy, ServiceNotReady
from magnetar.protocol import commands, versions

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.delays import Delays
    from magnetar.broker.dispatch.unacked_share import UnackedShare
    from magnetar.broker.topic import Topic


_SETTLED_S: Final = 0.1
"""Clients drop what is said of a consumer before they have read, and acted upon, that it may begin."""


class SubscriptionType(IntEnum):
    """Numbered as `CommandSubscribe.SubType`."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def text(self) -> str:
        """As stats name it."""
        return _NAMES[self]


_NAMES = {
    SubscriptionType.EXCLUSIVE: "Exclusive",
    SubscriptionType.SHARED: "Shared",
    SubscriptionType.FAILOVER: "Failover",
    SubscriptionType.KEY_SHARED: "Key_Shared",
}


@dataclass(frozen=True, slots=True)
class Join:
    """How a consumer wants to take part. All consumers of a subscription agree on it."""

    type: SubscriptionType
    sticky: bool = False
    """Key_Shared: each consumer names its ranges."""
    out_of_order: bool = False
    """Key_Shared: order may be given up when keys move."""


class SubscriptionBase(ABC):
    """What persistent and non-persistent subscriptions have in common: their consumers."""

    expects_acknowledgements: ClassVar[bool] = True
    _delays: Delays | None = None

    def __init__(
        self, topic: Topic, name: str, *, durable: bool, properties: Mapping[str, str] | None = None
    ) -> None:
        self.topic = topic
        self.name = name
        self.durable = durable
        self.properties = dict(properties or {})
        self.replicated = False
        """Asked for by a client; kept and told, without effect on a single cluster."""
        self.created_ms = topic.clock.time_ms()
        self.kind: Join | None = None
        self.dispatcher: Dispatcher | None = None
        self.consumers: list[Consumer] = []
        self.closed = False
        self.deserted_at: float | None = topic.clock.monotonic()
        """Since when it has no consumers; None while it has."""
        self.flow = stats.Flow()
        self.acks = stats.Meter()
        self.redelivered = stats.Meter()
        self.expired = stats.Meter()
        self.last_flow_ms = 0
        self.last_ack_ms = 0
        self.last_delivery_ms = 0
        self.last_expire_ms = 0
        self._pause: asyncio.TimerHandle | None = None

    @property
    def delayed(self) -> int:
        """Messages held back until their time."""
        return 0 if self._delays is None else len(self._delays)

    @property
    def delayed_index_bytes(self) -> int:
        """The memory that remembering those takes."""
        return 0 if self._delays is None else self._delays.size_bytes

    # Joining and leaving.

    async def join(self, consumer: Consumer, kind: Join, joined: Callable[[], None]) -> None:
        """Let a consumer take part. `joined` is called before anything is sent to it.

        Raises:
            ConsumerBusy: there are consumers of another kind, or a live exclusive one.
            ConsumerNotAssignable: its key ranges are malformed or taken.
            ServiceNotReady: the subscription is being closed.
        """
        await self.until_ready()
        while kind.type is SubscriptionType.EXCLUSIVE and self.consumers and self._same_kind(kind):
            holder = self.consumers[0]
            if holder.peer is consumer.peer or await holder.peer.is_alive():
                raise ConsumerBusy(
                    f"exclusive subscription {self.name!r} on {self.topic.name} has a consumer already "
                    f"({holder.name!r} from {holder.peer.address}): close it, or use a shared type"
                )
            if holder in self.consumers:
                holder.peer.abort(
                    "superseded: it answered no ping while another consumer asked for its place"
                )
                self.leave(holder)
            await self.until_ready()
        self._join_now(consumer, kind)
        joined()
        self._after_join(consumer)

    async def until_ready(self) -> None:
        """Wait while the subscription is being reset.

        Raises:
            ServiceNotReady: it is closed.
        """
        if self.closed:
            raise ServiceNotReady(f"subscription {self.name!r} is being closed: retry")

    def _same_kind(self, kind: Join) -> bool:
        return self.kind is None or self.kind == kind

    def _join_now(self, consumer: Consumer, kind: Join) -> None:
        if self.closed:
            raise ServiceNotReady(f"subscription {self.name!r} is being closed: retry")
        if self.consumers and not self._same_kind(kind):
            assert self.kind is not None
            raise ConsumerBusy(
                f"subscription {self.name!r} has {self.kind.type.text} consumers"
                f"{' of another key-shared policy' if self.kind.type is kind.type else ''}: "
                f"use their kind, or wait until they leave"
            )
        dispatcher = self.dispatcher
        if dispatcher is None or not self.consumers:
            dispatcher = self._new_dispatcher(kind)
        if isinstance(dispatcher, KeySharedDispatcher):
            dispatcher.join(consumer, consumer.key_ranges)
        else:
            dispatcher.add(consumer)
        first = not self.consumers
        self.dispatcher = dispatcher
        self.kind = kind
        self.consumers.append(consumer)
        self.deserted_at = None
        consumer.subscription = self
        if first:
            self.restart()

    def _new_dispatcher(self, kind: Join) -> Dispatcher:
        policies = self.topic.policies
        match kind.type:
            case SubscriptionType.SHARED:
                return SharedDispatcher(
                    max_unacked=policies.max_unacked_messages_per_subscription, share=self._unacked_share()
                )
            case SubscriptionType.KEY_SHARED:
                return KeySharedDispatcher(
                    sticky=kind.sticky,
                    out_of_order=kind.out_of_order,
                    look_ahead=self.topic.settings.replay_look_ahead,
                    max_unacked=policies.max_unacked_messages_per_subscription,
                    share=self._unacked_share(),
                )
            case SubscriptionType.EXCLUSIVE | SubscriptionType.FAILOVER:
                return SingleActiveDispatcher(
                    exclusive=kind.type is SubscriptionType.EXCLUSIVE, partition=self.topic.partition
                )

    def _unacked_share(self) -> UnackedShare | None:
        """Its part of what the broker's consumers may have unacknowledged, where anything counts as such."""
        if not self.expects_acknowledgements:
            return None
        loop = asyncio.get_running_loop()

        def unblocked() -> None:
            loop.call_soon(self.wake)

        return self.topic.context.unacked.share(unblocked)

    def _after_join(self, consumer: Consumer) -> None:
        self._elect(newcomer=consumer)
        if self._is_failover:
            delay = min(_SETTLED_S, self.topic.settings.failover_delay_s)
            if delay > 0:
                asyncio.get_running_loop().call_later(delay, self._tell_newcomer, consumer)
            else:
                self._tell_active(consumer)
        self.wake()

    def _tell_newcomer(self, consumer: Consumer) -> None:
        if consumer in self.consumers:
            self._tell_active(consumer)

    def leave(self, consumer: Consumer) -> None:
        """A consumer is gone; what it had not acknowledged goes to others, or waits for the next."""
        if consumer not in self.consumers:
            return
        assert self.dispatcher is not None
        self.consumers.remove(consumer)
        self.dispatcher.remove(consumer)
        consumer.subscription = None
        if not self.consumers:
            self.deserted_at = self.topic.clock.monotonic()
        self._elect()
        self.wake()
        self.topic.consumer_left(self)

    def disconnect_all(self) -> None:
        """Let every consumer go; they will subscribe anew."""
        for consumer in list(self.consumers):
            consumer.disconnect()
            if consumer in self.consumers:
                self.leave(consumer)

    # The active consumer of Exclusive and Failover.

    @property
    def _is_failover(self) -> bool:
        return self.kind is not None and self.kind.type is SubscriptionType.FAILOVER

    def _elect(self, newcomer: Consumer | None = None) -> bool:
        dispatcher = self.dispatcher
        if not isinstance(dispatcher, SingleActiveDispatcher):
            return False
        before = dispatcher.active
        if not dispatcher.elect():
            return False
        self.restart()
        if self._is_failover:
            for consumer in self.consumers:
                if consumer is not newcomer:
                    self._tell_active(consumer)
            if before is not None and dispatcher.active is not None:
                self._pause_for_handover(dispatcher)
        return True

    def _pause_for_handover(self, dispatcher: SingleActiveDispatcher) -> None:
        """The one before is alive and its acknowledgements are on their way: fewer duplicates if we wait."""
        delay = self.topic.settings.failover_delay_s
        if delay <= 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        dispatcher.paused = True
        self._pause = asyncio.get_running_loop().call_later(delay, self._handed_over, dispatcher)

    def _handed_over(self, dispatcher: SingleActiveDispatcher) -> None:
        self._pause = None
        dispatcher.paused = False
        if dispatcher is not self.dispatcher:
            return  # All have left since, and what others have got meanwhile must not come again.
        self.restart()  # From the first entry the one before has not acknowledged meanwhile.
        self.wake()

    def _tell_active(self, consumer: Consumer) -> None:
        if consumer.peer.protocol_version >= versions.ACTIVE_CONSUMER_CHANGE:
            consumer.peer.send(
                commands.active_consumer_change(consumer.identifier, consumer is self.active_consumer)
            )

    @property
    def active_consumer(self) -> Consumer | None:
        """Who receives, for Exclusive and Failover."""
        dispatcher = self.dispatcher
        if isinstance(dispatcher, SingleActiveDispatcher):
            for consumer in self.consumers:
                if consumer is dispatcher.active:
                    return consumer
        return None

    # What subclasses do.

    @abstractmethod
    def restart(self) -> None:
        """Deliver again from the first unacknowledged entry on."""

    @abstractmethod
    def wake(self) -> None:
        """There may be something to deliver."""

    @abstractmethod
    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        """Delete the subscription at a consumer's wish.

        Raises:
            MetadataFailed: there are other consumers, and `force` is not set.
        """

    # What clients ask.

    def flow_permits(self, consumer: Consumer, permits: int) -> None:
        """A consumer can take `permits` messages more."""
        consumer.permits += permits
        consumer.last_flow_ms = self.last_flow_ms = self.topic.clock.time_ms()
        self.wake()

    def tick(self, seconds: float) -> None:
        self.flow.tick(seconds)
        self.acks.tick(seconds)
        self.redelivered.tick(seconds)
        self.expired.tick(seconds)
        for consumer in self.consumers:
            consumer.tick(seconds)

    def stats(self) -> stats.Json:
        """SubscriptionStats, with what only some kinds have left at zero."""
        active = self.active_consumer
        dispatcher = self.dispatcher
        key_shared = dispatcher if isinstance(dispatcher, KeySharedDispatcher) else None
        shared = dispatcher if isinstance(dispatcher, SharedDispatcher) else None
        for consumer in self.consumers if key_shared is not None else ():
            consumer.key_ranges = tuple(key_shared.ranges_of(consumer)) if key_shared is not None else ()
        return {
            **stats.flow_out(self.flow),
            "msgRateRedeliver": self.redelivered.rate,
            "messageAckRate": self.acks.rate,
            "chunkedMessageRate": self.flow.chunks.rate,
            "msgBacklog": 0,
            "backlogSize": 0,
            "earliestMsgPublishTimeInBacklog": 0,
            "msgBacklogNoDelayed": 0,
            "blockedSubscriptionOnUnackedMsgs": shared.stalled if shared is not None else False,
            "msgDelayed": 0,
            "unackedMessages": dispatcher.unacked if dispatcher is not None else 0,
            "type": self.kind.type.text if self.kind is not None and self.consumers else "None",
            "activeConsumerName": active.name if active is not None else "",
            "msgRateExpired": self.expired.rate,
            "totalMsgExpired": self.expired.count,
            "lastExpireTimestamp": self.last_expire_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "lastConsumedTimestamp": self.last_delivery_ms,
            "lastAckedTimestamp": self.last_ack_ms,
            "lastMarkDeleteAdvancedTimestamp": 0,
            "consumers": [consumer.stats() for consumer in self.consumers],
            "isDurable": self.durable,
            "durable": self.durable,
            "isReplicated": self.replicated,
            "replicated": self.replicated,
            "allowOutOfOrderDelivery": key_shared.out_of_order if key_shared is not None else False,
            "keySharedMode": ("STICKY" if key_shared.sticky else "AUTO_SPLIT")
            if key_shared is not None
            else None,
            "consumersAfterMarkDeletePosition": {},
            "nonContiguousDeletedMessagesRanges": 0,
            "nonContiguousDeletedMessagesRangesSerializedSize": 0,
            "delayedMessageIndexSizeInBytes": 0,
            "subscriptionProperties": self.properties,
            "filterProcessedMsgCount": 0,
            "filterAcceptedMsgCount": 0,
            "filterRejectedMsgCount": 0,
            "filterRescheduledMsgCount": 0,
        }
