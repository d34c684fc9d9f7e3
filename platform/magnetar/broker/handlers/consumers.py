"""SUBSCRIBE, FLOW, ACK, redelivery, SEEK and the rest of a consumer's life."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magnetar.broker import same_address, stats
from magnetar.broker.consumer import Consumer
from magnetar.broker.creating import Creating
from magnetar.broker.errors import (
    BrokerError,
    ConsumerNotFound,
    MetadataFailed,
    NotAllowed,
    ServiceNotReady,
    SubscriptionNotFound,
    Unauthorized,
)
from magnetar.broker.membership import Join, SubscriptionBase, SubscriptionType
from magnetar.broker.nonpersistent import NonPersistentTopic
from magnetar.broker.persistent_topic import PersistentTopic, check_subscription_name
from magnetar.broker.subscription import Subscription
from magnetar.broker.transactions.pending_ack_store import acknowledge_in_transaction
from magnetar.managed_ledger import Position
from magnetar.naming import TopicName
from magnetar.policies.namespace import SubscriptionAuthMode
from magnetar.protocol import commands
from magnetar.protocol.ids import LATEST, to_signed
from magnetar.protocol.pulsar_pb2 import (
    STICKY,
    CommandAck,
    CommandCloseConsumer,
    CommandConsumerStats,
    CommandConsumerStatsResponse,
    CommandFlow,
    CommandGetLastMessageId,
    CommandRedeliverUnacknowledgedMessages,
    CommandSeek,
    CommandSubscribe,
    CommandUnsubscribe,
    MessageIdData,
)

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection
    from magnetar.broker.topic import Topic


@dataclass(frozen=True, slots=True)
class Found:
    """A live consumer, and what it consumes."""

    consumer: Consumer
    subscription: SubscriptionBase

    @property
    def topic_name(self) -> TopicName:
        return self.subscription.topic.name


def find(connection: Connection, consumer_id: int) -> Found:
    """The live consumer of that id.

    Raises:
        MetadataFailed: there is none.
    """
    consumer = connection.consumers.get(consumer_id)
    if isinstance(consumer, Consumer) and consumer.subscription is not None:
        return Found(consumer, consumer.subscription)
    raise MetadataFailed(f"Consumer not found: {consumer_id} is not subscribed on this connection")


async def subscribe(connection: Connection, command: CommandSubscribe) -> None:
    """Make a consumer."""
    name = TopicName.parse(command.topic)
    check_subscription_name(command.subscription)
    before = connection.consumers.get(command.consumer_id)
    if isinstance(before, Creating):
        raise ServiceNotReady(f"consumer {command.consumer_id} is being created by an earlier request: wait")
    if before is not None:
        connection.send(commands.success(command.request_id))
        return
    _check_properties(connection, command)
    creating = Creating()
    connection.consumers[command.consumer_id] = creating

    def forget() -> None:
        if connection.consumers.get(command.consumer_id) is creating:
            del connection.consumers[command.consumer_id]

    try:
        topic = await connection.broker.topics.get(name, create=command.force_topic_creation)
        topic.rates.check_subscribe(connection.address, command.consumer_name, command.consumer_id)
        await connection.broker.schemas.for_consumer(
            topic, command.schema if command.HasField("schema") else None
        )
        subscription = await _subscription(connection, command, topic)
        consumer = _consumer(connection, command, topic)

        def joined() -> None:
            if not creating.cancelled and connection.open:
                connection.consumers[command.consumer_id] = consumer
                connection.send(commands.success(command.request_id))

        await subscription.join(consumer, _join(command), joined)
    except BaseException:
        forget()
        raise
    if connection.consumers.get(command.consumer_id) is not consumer:
        forget()
        if consumer.subscription is not None:
            consumer.subscription.leave(consumer)


def _check_properties(connection: Connection, command: CommandSubscribe) -> None:
    size = sum(len(pair.key) + len(pair.value) for pair in command.metadata)
    limit = connection.settings.metadata_bytes_max
    if size > limit:
        raise MetadataFailed(f"consumer properties of {size} bytes exceed the limit of {limit}: shorten them")


async def _subscription(connection: Connection, command: CommandSubscribe, topic: Topic) -> SubscriptionBase:
    """The subscription a consumer asks for, made if it may be."""
    kind = SubscriptionType(command.subType)
    policies = topic.policies
    if kind.text not in policies.subscription_types:
        raise NotAllowed(f"{kind.text} subscriptions are disabled on {topic.name}: use another type")
    limit = policies.max_consumers_per_topic
    if limit and sum(len(each.consumers) for each in topic.subscriptions.values()) >= limit:
        raise _too_many(f"topic {topic.name}", limit)
    limit = connection.settings.max_same_address_consumers_per_topic
    if limit:
        consumers = (consumer for each in topic.subscriptions.values() for consumer in each.consumers)
        if same_address.count(consumers, connection) >= limit:
            raise _too_many(f"topic {topic.name}, from {same_address.host(connection.address)},", limit)
    _check_role(connection, command, topic)
    existing = topic.subscriptions.get(command.subscription)
    limit = policies.max_consumers_per_subscription
    if limit and existing is not None and len(existing.consumers) >= limit:
        raise _too_many(f"subscription {command.subscription!r}", limit)
    if command.read_compacted and kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
        raise NotAllowed("reading compacted needs an exclusive or failover subscription")
    properties = {pair.key: pair.value for pair in command.subscription_properties}
    if isinstance(topic, NonPersistentTopic):
        if command.read_compacted:
            raise NotAllowed("non-persistent topics have nothing to read compacted")
        return topic.subscription(command.subscription, durable=command.durable, properties=properties)
    assert isinstance(topic, PersistentTopic)
    if command.durable and existing is None and not policies.auto_subscription_creation:
        raise SubscriptionNotFound(
            f"subscription {command.subscription!r} does not exist on {topic.name}, and may not be made by itself"
        )
    subscription = await topic.subscription(
        command.subscription,
        durable=command.durable,
        initial="earliest" if command.initialPosition == CommandSubscribe.Earliest else "latest",
        start=None if command.durable else _start(command),
        properties=properties,
    )
    if command.read_compacted:
        await topic.compaction.attend(
            subscription,
            new=existing is None,
            earliest=command.initialPosition == CommandSubscribe.Earliest,
            start=_start(command),
        )
    subscription.replicated |= command.replicate_subscription_state
    if command.start_message_rollback_duration_sec and not subscription.consumers:
        ago_ms = command.start_message_rollback_duration_sec * 1000
        await subscription.reset_to_time(connection.context.clock.time_ms() - ago_ms)
    return subscription


def _check_role(connection: Connection, command: CommandSubscribe, topic: Topic) -> None:
    """Where subscriptions belong to roles, their names begin with them. Source: Pulsar SubscriptionAuthMode.Prefix."""
    if topic.policies.subscription_auth_mode is not SubscriptionAuthMode.PREFIX:
        return
    role = connection.role
    if role is None or not command.subscription.startswith(role):
        raise Unauthorized(
            f"subscriptions of {topic.name} must begin with the role of who uses them: "
            f"{command.subscription!r} does not begin with {role or 'a role, for you have none'}"
        )


def _too_many(what: str, limit: int) -> BrokerError:
    from magnetar.broker.errors import ConsumerBusy

    return ConsumerBusy(f"{what} has its {limit} consumers already: close one first")


def _start(command: CommandSubscribe) -> Position | None:
    """Where a reader begins: at the entry it names, which may be a batch it has read a part of."""
    if not command.HasField("start_message_id"):
        return None
    position = _position(command.start_message_id)
    if position.ledger_id == LATEST.ledger_id:
        return None
    return position


def _position(data: MessageIdData) -> Position:
    return Position(to_signed(data.ledgerId), to_signed(data.entryId))


def _consumer(connection: Connection, command: CommandSubscribe, topic: Topic) -> Consumer:
    policies = topic.policies
    ranges: list[tuple[int, int]] = []
    if command.HasField("keySharedMeta"):
        ranges = [(each.start, each.end) for each in command.keySharedMeta.hashRanges]
    return Consumer(
        connection,
        command.consumer_id,
        command.consumer_name,
        priority=command.priority_level,
        max_unacked=policies.max_unacked_messages_per_consumer,
        epoch=command.consumer_epoch if command.HasField("consumer_epoch") else None,
        metadata={pair.key: pair.value for pair in command.metadata},
        key_ranges=ranges,
        since_ms=connection.context.clock.time_ms(),
        read_compacted=command.read_compacted,
    )


def _join(command: CommandSubscribe) -> Join:
    kind = SubscriptionType(command.subType)
    if kind is not SubscriptionType.KEY_SHARED:
        return Join(kind)
    meta = command.keySharedMeta
    return Join(kind, sticky=meta.keySharedMode == STICKY, out_of_order=meta.allowOutOfOrderDelivery)


# Once per entry.


def flow(connection: Connection, command: CommandFlow, _: memoryview | None) -> None:
    """More permits. Late ones, for a consumer that was closed, are ignored."""
    consumer = connection.consumers.get(command.consumer_id)
    if isinstance(consumer, Consumer) and consumer.subscription is not None and command.messagePermits > 0:
        consumer.subscription.flow_permits(consumer, command.messagePermits)


def acknowledge(connection: Connection, command: CommandAck, _: memoryview | None) -> None:
    """An acknowledgement, with or without a receipt."""
    consumer = connection.consumers.get(command.consumer_id)
    if command.txnid_least_bits:
        _acknowledge_in_transaction(connection, command, consumer)
    elif isinstance(consumer, Consumer) and consumer.subscription is not None:
        if isinstance(consumer.subscription, Subscription):
            consumer.subscription.acknowledge(consumer, command)
        elif command.HasField("request_id"):
            connection.send(commands.ack_response(command.consumer_id, command.request_id))
    else:
        _refuse_acknowledgement(
            connection, command, ConsumerNotFound("the consumer is not connected any more: subscribe again")
        )


def _acknowledge_in_transaction(
    connection: Connection, command: CommandAck, consumer: Consumer | Creating | None
) -> None:
    if not connection.settings.transaction_coordinator_enabled:
        error: BrokerError = NotAllowed("transactions are not enabled on this broker")
    elif not isinstance(consumer, Consumer) or consumer.subscription is None:
        error = ConsumerNotFound("the consumer is not connected any more: subscribe again")
    elif not isinstance(consumer.subscription, Subscription):
        error = NotAllowed("a non-persistent topic keeps nothing, and so takes no part in transactions")
    else:
        acknowledging = acknowledge_in_transaction(consumer.subscription, consumer, command)
        connection.context.tasks.start(acknowledging, f"acknowledge within a transaction by {consumer.name}")
        return
    _refuse_acknowledgement(connection, command, error)


def _refuse_acknowledgement(connection: Connection, command: CommandAck, error: BrokerError) -> None:
    if command.HasField("request_id"):
        connection.send(
            commands.ack_response(
                command.consumer_id,
                command.request_id,
                error.code,
                str(error),
                txnid_least_bits=command.txnid_least_bits,
                txnid_most_bits=command.txnid_most_bits,
            )
        )


def redeliver(
    connection: Connection, command: CommandRedeliverUnacknowledgedMessages, _: memoryview | None
) -> None:
    """Messages come back: those named, or all."""
    consumer = connection.consumers.get(command.consumer_id)
    if isinstance(consumer, Consumer) and isinstance(consumer.subscription, Subscription):
        positions = [_position(data) for data in command.message_ids]
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        consumer.subscription.redeliver(consumer, positions or None, epoch)


def close(connection: Connection, command: CommandCloseConsumer, _: memoryview | None) -> None:
    """Let a consumer go. Answered with success whoever it was."""
    consumer = connection.consumers.get(command.consumer_id)
    if isinstance(consumer, Consumer):
        del connection.consumers[command.consumer_id]
        if consumer.subscription is not None:
            consumer.subscription.leave(consumer)
    elif consumer is not None:
        consumer.cancelled = True
    connection.send(commands.success(command.request_id))


# Now and then.


async def unsubscribe(connection: Connection, command: CommandUnsubscribe) -> None:
    found = find(connection, command.consumer_id)
    await found.subscription.unsubscribe(found.consumer, force=command.force)
    connection.send(commands.success(command.request_id))


async def seek(connection: Connection, command: CommandSeek) -> None:
    """Move the cursor: consumers are closed, the cursor is moved, then this request succeeds."""
    subscription = find(connection, command.consumer_id).subscription
    if not isinstance(subscription, Subscription):
        raise NotAllowed("non-persistent topics keep nothing to seek in")
    if command.HasField("message_id"):
        data = command.message_id
        await subscription.reset(_position(data), list(data.ack_set) or None)
    elif command.HasField("message_publish_time"):
        await subscription.reset_to_time(command.message_publish_time)
    else:
        raise MetadataFailed("SEEK names neither a message nor a time: give one")
    connection.send(commands.success(command.request_id))


async def last_message_id(connection: Connection, command: CommandGetLastMessageId) -> None:
    found = find(connection, command.consumer_id)
    subscription = found.subscription
    last = await subscription.topic.last_message_id()
    mark_delete = (-1, -1)
    if isinstance(subscription, Subscription):
        if found.consumer.read_compacted:
            last = await subscription.topic.compaction.last_message_id(last)
        mark_delete = (subscription.cursor.mark_delete.ledger_id, subscription.cursor.mark_delete.entry_id)
    connection.send_claim(commands.last_message_id(command.request_id, last, mark_delete))


async def consumer_stats(connection: Connection, command: CommandConsumerStats) -> None:
    found = find(connection, command.consumer_id)
    consumer, subscription = found.consumer, found.subscription
    told = subscription.stats()
    connection.send(
        commands.consumer_stats_response(
            CommandConsumerStatsResponse(
                request_id=command.request_id,
                msgRateOut=consumer.flow.messages.rate,
                msgThroughputOut=consumer.flow.bytes.rate,
                msgRateRedeliver=consumer.redelivered.rate,
                consumerName=consumer.name,
                availablePermits=max(0, consumer.permits),
                unackedMessages=consumer.unacked,
                blockedConsumerOnUnackedMsgs=consumer.stalled,
                address=connection.address,
                connectedSince=stats.iso_time(consumer.since_ms),
                type=told["type"],
                msgRateExpired=told["msgRateExpired"],
                msgBacklog=told["msgBacklog"],
                messageAckRate=consumer.acks.rate,
            )
        )
    )


def consumer_stats_refused(command: Any, error: BrokerError) -> bytes:
    missing = ConsumerNotFound(str(error)) if isinstance(error, MetadataFailed) else error
    return commands.consumer_stats_response(
        CommandConsumerStatsResponse(
            request_id=command.request_id, error_code=missing.code, error_message=str(missing)
        )
    )
