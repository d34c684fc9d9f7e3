"""Topics that store nothing: a message goes to who can take it now, and to nobody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from magnetar.broker import stats
from magnetar.broker.errors import (
    BrokerError,
    ChecksumFailed,
    MetadataFailed,
    SubscriptionBusy,
    SubscriptionNotFound,
)
from magnetar.broker.filters import FilterChain, messages_in
from magnetar.broker.membership import Join, SubscriptionBase, SubscriptionType
from magnetar.broker.persistent_topic import check_subscription_name
from magnetar.broker.producer import Publish
from magnetar.broker.topic import Topic
from magnetar.managed_ledger import Position
from magnetar.managed_ledger.entry import Entry
from magnetar.protocol.errors import ChecksumMismatch
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import split_message, take_message

if TYPE_CHECKING:
    from magnetar.broker.consumer import Consumer
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.dispatch.dispatcher import Dispatcher
    from magnetar.broker.producer import Producer
    from magnetar.naming import TopicName
    from magnetar.policies.effective import EffectivePolicies
    from magnetar.protocol.pulsar_pb2 import CommandSend

NOWHERE = Position(0, 0)
"""Where every message of a non-persistent topic lies. Source: Pulsar NonPersistentTopic."""


class NonPersistentSubscription(SubscriptionBase):
    """Consumers, and a count of what none of them could take."""

    expects_acknowledgements = False

    def __init__(
        self,
        topic: NonPersistentTopic,
        name: str,
        *,
        durable: bool,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(topic, name, durable=durable, properties=properties)
        self.drops = stats.Meter()
        self._filters = FilterChain()

    def _new_dispatcher(self, kind: Join) -> Dispatcher:
        self._filters = FilterChain(keyed=kind.type is SubscriptionType.KEY_SHARED)
        return super()._new_dispatcher(kind)

    def offer(self, entry: Entry, messages: int) -> None:
        """Deliver a message, or drop it."""
        dispatcher = self.dispatcher
        candidates = self._filters.sift((entry,), lambda _: None).candidates
        if dispatcher is None or not candidates or not self.topic.ours:
            self.drops.count += messages
            return
        dispatcher.offer(candidates, replayed=False)
        deliveries = dispatcher.take()
        if not deliveries:
            self.drops.count += messages
        now_ms = self.topic.clock.time_ms()
        for delivery in deliveries:
            consumer: Consumer = delivery.member  # type: ignore[assignment]  # Only consumers ever join.
            consumer.deliver(delivery, self.topic.partition, now_ms)
            self.flow.add(messages, len(entry.data))
            self.topic.flow_out.add(messages, len(entry.data))
            self.last_delivery_ms = now_ms
        dispatcher.clear()  # Nothing is kept: neither what could not be sent, nor who has what.

    def restart(self) -> None:
        """There is nothing to deliver again."""

    def wake(self) -> None:
        """There is nothing waiting."""

    async def unsubscribe(self, consumer: Consumer, *, force: bool) -> None:
        if len(self.consumers) > 1 and not force:
            raise MetadataFailed(
                f"subscription {self.name!r} has {len(self.consumers)} consumers: close the others first, or force it"
            )
        self.leave(consumer)  # The last consumer takes the subscription with it.
        consumer.peer.forget_consumer(consumer)
        if self.consumers:
            await self.topic.delete_subscription(self.name, force=True)

    async def close(self) -> None:
        self.closed = True
        self.disconnect_all()

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        self.drops.tick(seconds)

    def stats(self) -> stats.Json:
        return {**super().stats(), "msgDropRate": self.drops.rate}


class NonPersistentTopic(Topic):
    """Passes messages on as they come."""

    subscriptions: dict[str, NonPersistentSubscription]

    def __init__(self, name: TopicName, context: BrokerContext, policies: EffectivePolicies) -> None:
        super().__init__(name, context, policies)
        self.subscriptions = {}

    def publish(self, producer: Producer, command: CommandSend, payload: memoryview) -> None:
        if self.closing:
            return
        if self.rates.publish:
            self.rates.came_in(producer.peer, command.num_messages, len(payload))
        publish = Publish(
            producer,
            command.sequence_id,
            command.highest_sequence_id,
            1,
            len(payload),
            self.clock.monotonic(),
        )
        producer.pending.append(publish)
        producer.peer.publish_started(publish.size)
        try:
            entry = self._accept(publish, command, payload)
        except BrokerError as error:
            publish.error = error
        else:
            publish.position = NOWHERE
            self.last_publish_ms = self.clock.time_ms()
            self.flow_in.add(publish.messages, publish.size)
            producer.flow.add(publish.messages, publish.size)
            for subscription in list(self.subscriptions.values()):
                subscription.offer(entry, publish.messages)
        producer.answer(publish)

    def _accept(self, publish: Publish, command: CommandSend, payload: memoryview) -> Entry:
        try:
            head, covered = take_message(payload)
        except ChecksumMismatch as error:
            raise ChecksumFailed(str(error)) from None
        message = split_message(covered, verify=False)
        self.check_message(command, message)
        publish.messages = messages_in(message.metadata)
        return Entry(NOWHERE, head + covered, -1, -1)

    def published(self, publish: Publish, position: Position | None, error: Exception | None) -> None:
        raise AssertionError("nothing is written for a non-persistent topic")

    def subscription(
        self, name: str, *, durable: bool, properties: Mapping[str, str] | None = None
    ) -> NonPersistentSubscription:
        """The subscription of that name, made if need be. It ends with its last consumer."""
        check_subscription_name(name)
        self.check_open()
        found = self.subscriptions.get(name)
        if found is None or found.closed:
            found = NonPersistentSubscription(self, name, durable=durable, properties=properties)
            self.subscriptions[name] = found
        return found

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(f"subscription {name!r} does not exist on {self.name}")
        if subscription.consumers and not force:
            raise SubscriptionBusy(
                f"subscription {name!r} has {len(subscription.consumers)} consumers: close them"
            )
        del self.subscriptions[name]
        await subscription.close()

    def consumer_left(self, subscription: SubscriptionBase) -> None:
        if not subscription.consumers and self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    @property
    def untouched(self) -> bool:
        return not self.producers and not any(each.consumers for each in self.subscriptions.values())

    async def last_message_id(self) -> MessageId:
        return MessageId(-1, -1, self.partition)

    async def close(self) -> None:
        self.closing = True
        self.disconnect_producers()
        for subscription in list(self.subscriptions.values()):
            await subscription.close()
        self.subscriptions.clear()

    def stats(self, **options: bool) -> stats.Json:
        told = super().stats(**options)
        told["msgDropRate"] = sum(each.drops.rate for each in self.subscriptions.values())
        return told
