"""What persistent and non-persistent topics have in common: their producers, policies and figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker import same_address, stats
from magnetar.broker.errors import (
    MetadataFailed,
    NotAllowed,
    ProducerBusy,
    ProducerFenced,
    ServiceNotReady,
)
from magnetar.broker.exclusivity import AccessMode, Exclusivity, Request
from magnetar.broker.rates.topic_rates import TopicRates
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.membership import SubscriptionBase
    from magnetar.broker.producer import Producer, Publish
    from magnetar.environment.clock import Clock
    from magnetar.managed_ledger import Position
    from magnetar.naming import TopicName
    from magnetar.policies.effective import EffectivePolicies
    from magnetar.protocol.ids import MessageId
    from magnetar.protocol.message import SplitMessage
    from magnetar.protocol.pulsar_pb2 import CommandSend

log = get_logger("magnetar.broker")

_LOOK_WHETHER_LOST_S: Final = 0.5


class Topic(ABC):
    """A topic that this broker serves."""

    subscriptions: Mapping[str, SubscriptionBase]

    def __init__(self, name: TopicName, context: BrokerContext, policies: EffectivePolicies) -> None:
        self.name = name
        self.partition = name.partition
        self.context = context
        self.settings = context.settings
        self.clock: Clock = context.clock
        self.policies = policies
        self.producers: dict[str, Producer] = {}
        self.exclusivity: Exclusivity[Producer] = Exclusivity()
        self.closing = False
        """Whether it takes nothing more here: it is being unloaded or deleted."""
        self.lost = False
        """Whether its bundle is another broker's by now, or may be."""
        self.lease = context.lease
        self.successor_url = ""
        """Where clients are sent when it is closed, if that is known: who is to serve it next."""
        self.terminated = False
        self.flow_in = stats.Flow()
        self.flow_out = stats.Flow()
        self.created_ms = context.clock.time_ms()
        self.last_publish_ms = 0
        self.rates = TopicRates(self)

    @property
    def has_clients(self) -> bool:
        """Whether anybody produces or consumes."""
        return bool(self.producers) or any(each.consumers for each in self.subscriptions.values())

    @property
    def ours(self) -> bool:
        """Whether nobody else can serve the topic now: asked before anything of it is delivered or receipted."""
        return not self.lost and self.lease.sure

    async def until_ours(self) -> bool:
        """Wait out a doubt. False: the topic is lost."""
        while not self.lost and not self.lease.sure:
            await self.lease.until_sure(_LOOK_WHETHER_LOST_S)
        return not self.lost

    # Producers.

    async def add_producer(self, producer: Producer, topic_epoch: int | None = None) -> bool:
        """Let a producer in. False: it has to wait, and is told when its turn comes.

        Raises:
            ProducerBusy: its name is in use, the topic is full, or shuts others out.
            ProducerFenced: exclusive access is refused.
            TopicTerminated, ServiceNotReady: the topic takes no producers.
        """
        self.check_open()
        await self._claim_name(producer)
        self.check_open()
        limit = self.policies.max_producers_per_topic
        if limit and len(self.producers) >= limit and not self.name.is_system:
            raise ProducerBusy(f"topic {self.name} has its {limit} producers already: close one first")
        limit = self.settings.max_same_address_producers_per_topic
        if limit and same_address.count(self.producers.values(), producer.peer) >= limit:
            raise ProducerBusy(
                f"topic {self.name} has its {limit} producers from {same_address.host(producer.peer.address)} "
                f"already: close one first"
            )
        admission = self.exclusivity.admit(Request(producer, producer.mode, topic_epoch))
        for loser in (*admission.evicted, *admission.refused):
            self.producers.pop(loser.name, None)
        self.producers[producer.name] = producer
        for loser in admission.evicted:
            log.info("producer.fenced", topic=str(self.name), producer=loser.name, by=producer.name)
            loser.disconnect()
        for loser in admission.refused:
            loser.refuse(ProducerFenced("another producer took the topic while this one waited"))
        if admission.new_epoch is not None:
            await self._grant(producer, admission.new_epoch)
        elif admission.granted:
            producer.topic_epoch = self.exclusivity.epoch
        return admission.granted

    async def _grant(self, producer: Producer, epoch: int) -> None:
        try:
            await self.store_epoch(epoch)
        except Exception:
            self.remove_producer(producer)
            raise
        producer.topic_epoch = epoch

    async def _claim_name(self, producer: Producer) -> None:
        """Make sure that nobody else has the name: the same client come back, and the dead, give way."""
        while (holder := self.producers.get(producer.name)) is not None:
            if holder.peer is producer.peer:
                comes_back = holder.identifier == producer.identifier and producer.epoch > holder.epoch
                if not comes_back:
                    raise ProducerBusy(self._name_taken(producer, holder))
            elif await holder.peer.is_alive():
                raise ProducerBusy(self._name_taken(producer, holder))
            else:
                holder.peer.abort("superseded: it answered no ping while another producer asked for its name")
            if self.producers.get(producer.name) is holder:
                self.remove_producer(holder)

    def _name_taken(self, producer: Producer, holder: Producer) -> str:
        return (
            f"producer name {producer.name!r} is in use on {self.name} by {holder.peer.address}: "
            f"close that producer, or choose another name"
        )

    def remove_producer(self, producer: Producer) -> None:
        """A producer is gone. The next in the queue, if any, takes its place."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]
        self.exclusivity.leave(producer)
        if not self.closing:
            self._promote()

    def _promote(self) -> None:
        while (promoted := self.exclusivity.promote()) is not None:
            if isinstance(promoted, tuple):
                self.context.tasks.start(self._hand_over(*promoted), f"promote a producer of {self.name}")
            else:
                self.producers.pop(promoted.name, None)
                promoted.refuse(ProducerFenced("another producer took the topic while this one waited"))

    async def _hand_over(self, producer: Producer, epoch: int) -> None:
        try:
            await self._grant(producer, epoch)
        except Exception as error:
            producer.refuse(MetadataFailed(f"the topic's epoch could not be stored: {error}"))
            return
        producer.succeed(self.last_sequence_id(producer.name))

    def check_open(self) -> None:
        """
        Raises:
            ServiceNotReady: the topic is being unloaded or deleted.
        """
        if self.closing or self.lost:
            raise ServiceNotReady(f"topic {self.name} is being unloaded: look it up again")

    def disconnect_producers(self) -> None:
        """Let every producer go; they will look the topic up anew."""
        for producer in list(self.producers.values()):
            producer.disconnect()
            self.remove_producer(producer)

    def halt_producers(self) -> None:
        """Take nothing more from those that are here: each is let go once what it sent has its answer."""
        for producer in list(self.producers.values()):
            producer.halt()

    def last_sequence_id(self, producer_name: str) -> int:
        """What the producer's last stored message had, -1 where nobody keeps count."""
        return -1

    async def store_epoch(self, epoch: int) -> None:
        """Make the number of exclusive owners survive this broker."""

    # Messages.

    @abstractmethod
    def publish(self, producer: Producer, command: CommandSend, payload: memoryview) -> None:
        """Take a message. The answer goes to the producer, in turn.

        Raises:
            FrameError: its bytes are no message; close the connection.
        """

    @abstractmethod
    def published(self, publish: Publish, position: Position | None, error: Exception | None) -> None:
        """A message's write has ended."""

    def check_message(self, command: CommandSend, message: SplitMessage) -> None:
        """
        Raises:
            NotAllowed: the message may not be published here.
        """
        limit = self.policies.max_message_bytes or self.settings.max_message_bytes
        # The payload alone: clients fill it up to the limit, and then add metadata.
        if len(message.payload) > limit:
            raise NotAllowed(
                f"message of {len(message.payload)} bytes exceeds the limit of {limit}: send less, or in chunks"
            )
        deliver_at_ms = message.metadata.deliver_at_time
        if deliver_at_ms:
            self._check_delay(deliver_at_ms)
        if command.HasField("message_id"):
            raise NotAllowed("only shadow topics take messages with an id of their own")
        if self.policies.encryption_required and not message.metadata.encryption_keys:
            raise NotAllowed(f"topic {self.name} takes encrypted messages only: give the producer a key")

    def _check_delay(self, deliver_at_ms: int) -> None:
        longest_ms = self.policies.delayed_delivery.max_delivery_delay_in_millis
        if longest_ms > 0 and deliver_at_ms - self.clock.time_ms() > longest_ms:
            raise NotAllowed(f"Exceeds max allowed delivery delay of {longest_ms} milliseconds")

    # Subscriptions.

    @abstractmethod
    def consumer_left(self, subscription: SubscriptionBase) -> None:
        """A consumer has left `subscription`."""

    @abstractmethod
    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        """Forget a subscription and its position.

        Raises:
            SubscriptionNotFound: there is none of that name.
            SubscriptionBusy: it has consumers, and `force` is not set.
        """

    @property
    @abstractmethod
    def untouched(self) -> bool:
        """Whether nobody has used it yet: neither producers nor consumers nor messages."""

    @abstractmethod
    async def last_message_id(self) -> MessageId:
        """The id of the last message a consumer can get; ledger and entry -1 if there is none."""

    @abstractmethod
    async def close(self) -> None:
        """Unload: clients are let go once their messages are stored, and nothing is kept in memory."""

    async def apply_policies(self, policies: EffectivePolicies) -> None:
        """Policies have changed."""
        self.policies = policies
        await self.rates.follow()

    # Figures.

    def tick(self, seconds: float) -> None:
        """Compute rates over the last `seconds`."""
        self.flow_in.tick(seconds)
        self.flow_out.tick(seconds)
        for producer in self.producers.values():
            producer.flow.tick(seconds)
        for subscription in self.subscriptions.values():
            subscription.tick(seconds)

    def stats(
        self,
        *,
        exclude_publishers: bool = False,
        exclude_consumers: bool = False,
        precise_backlog: bool = False,
        subscription_backlog_size: bool = True,
        earliest_time_in_backlog: bool = False,
    ) -> stats.Json:
        """TopicStats. What this kind of topic has not is zero."""
        subscriptions = {name: each.stats() for name, each in self.subscriptions.items()}
        for told in subscriptions.values():
            if exclude_consumers:
                told["consumers"] = []
            if not subscription_backlog_size:
                told["backlogSize"] = -1
        waiting = self.exclusivity.waiting
        epoch = self.exclusivity.epoch
        return {
            **stats.flow_in(self.flow_in),
            "msgRateOut": self.flow_out.messages.rate,
            "msgThroughputOut": self.flow_out.bytes.rate,
            "bytesInCounter": self.flow_in.bytes.count,
            "msgInCounter": self.flow_in.messages.count,
            "bytesOutCounter": self.flow_out.bytes.count,
            "msgOutCounter": self.flow_out.messages.count,
            "systemTopicBytesInCounter": self.flow_in.bytes.count if self.name.is_system else 0,
            "msgChunkPublished": self.flow_in.chunks.count > 0,
            "storageSize": 0,
            "backlogSize": 0,
            "backlogQuotaLimitSize": 0,
            "backlogQuotaLimitTime": 0,
            "oldestBacklogMessageAgeSeconds": -1,
            "publishRateLimitedTimes": self.rates.publish_times_limited,
            "earliestMsgPublishTimeInBacklogs": 0,
            "offloadedStorageSize": 0,
            "lastOffloadLedgerId": 0,
            "lastOffloadSuccessTimeStamp": 0,
            "lastOffloadFailureTimeStamp": 0,
            "ongoingTxnCount": 0,
            "abortedTxnCount": 0,
            "committedTxnCount": 0,
            "delayedMessageIndexSizeInBytes": 0,
            "waitingPublishers": waiting,
            "nonContiguousDeletedMessagesRanges": sum(
                told["nonContiguousDeletedMessagesRanges"] for told in subscriptions.values()
            ),
            "nonContiguousDeletedMessagesRangesSerializedSize": 0,
            "publishers": []
            if exclude_publishers
            else [each.stats() for each in self.producers.values() if not self._is_waiting(each)],
            "subscriptions": subscriptions,
            "replication": {},
            "deduplicationStatus": "Disabled",
            "ownerBroker": self.settings.broker_id,
            "topicEpoch": epoch,
            "topicCreationTimeStamp": self.created_ms,
            "lastPublishTimeStamp": self.last_publish_ms,
            "compaction": {
                "lastCompactionRemovedEventCount": 0,
                "lastCompactionSucceedTimestamp": 0,
                "lastCompactionFailedTimestamp": 0,
                "lastCompactionDurationTimeInMills": 0,
            },
        }

    def _is_waiting(self, producer: Producer) -> bool:
        return producer.mode is AccessMode.WAIT_FOR_EXCLUSIVE and self.exclusivity.exclusive is not producer

    def internal_stats(self) -> dict[str, Any]:
        """PersistentTopicInternalStats; empty where nothing is stored."""
        return {}
