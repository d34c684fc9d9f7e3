"""PRODUCER, SEND and CLOSE_PRODUCER."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.creating import Creating
from magnetar.broker.errors import MetadataFailed, NotAllowed, ProducerFenced, ServiceNotReady
from magnetar.broker.exclusivity import AccessMode
from magnetar.broker.producer import Producer
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import CommandCloseProducer, CommandProducer, CommandSend
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection
    from magnetar.broker.topic import Topic


async def create(connection: Connection, command: CommandProducer) -> None:
    """Make a producer, or wait for its turn."""
    name = TopicName.parse(command.topic)
    before = connection.producers.get(command.producer_id)
    if isinstance(before, Creating):
        raise ServiceNotReady(f"producer {command.producer_id} is being created by an earlier request: wait")
    if before is not None and command.epoch <= before.epoch:
        connection.send(
            commands.producer_success(command.request_id, before.name, schema_version=before.schema_version)
        )
        return
    if before is not None:  # Given up by its client, whatever name and topic the new one has.
        before.topic.remove_producer(before)
    creating = Creating()
    connection.producers[command.producer_id] = creating
    try:
        topic = await connection.broker.topics.get(name, create=True)
        producer = await _prepare(connection, command, topic)
        ready = await topic.add_producer(
            producer, command.topic_epoch if command.HasField("topic_epoch") else None
        )
    except BaseException:
        if connection.producers.get(command.producer_id) is creating:
            del connection.producers[command.producer_id]
        raise
    if creating.cancelled or not connection.open:
        topic.remove_producer(producer)
        if connection.producers.get(command.producer_id) is creating:
            del connection.producers[command.producer_id]
        return
    if topic.producers.get(producer.name) is not producer:
        del connection.producers[command.producer_id]
        if topic.closing:
            raise ServiceNotReady(f"topic {name} is being unloaded: look it up again")
        raise ProducerFenced(f"another producer took topic {name}")
    connection.producers[command.producer_id] = producer
    producer.succeed(topic.last_sequence_id(producer.name) if ready else -1, ready=ready)


async def _prepare(connection: Connection, command: CommandProducer, topic: Topic) -> Producer:
    """Everything that may refuse a producer before it enters its topic."""
    broker = connection.broker
    if topic.policies.encryption_required and not command.encrypted:
        raise MetadataFailed(f"topic {topic.name} takes encrypted messages only: give the producer a key")
    schema_version = await broker.schemas.for_producer(
        topic.name, command.schema if command.HasField("schema") else None, topic.policies
    )
    if command.initial_subscription_name:
        await _make_initial_subscription(connection, topic, command.initial_subscription_name)
    name = command.producer_name or await broker.new_producer_name()
    producer = Producer(
        topic,
        connection,
        command.producer_id,
        name,
        request_id=command.request_id,
        epoch=command.epoch,
        name_given=bool(command.producer_name) and command.user_provided_producer_name,
        mode=AccessMode(command.producer_access_mode),
        metadata={pair.key: pair.value for pair in command.metadata},
        schema_version=schema_version,
        since_ms=connection.context.clock.time_ms(),
    )
    producer.partial = connection.features.supports_partial_producer
    return producer


async def _make_initial_subscription(connection: Connection, topic: Topic, name: str) -> None:
    from magnetar.broker.persistent_topic import PersistentTopic

    if not isinstance(topic, PersistentTopic) or name in topic.subscriptions:
        return
    await connection.context.authorizer.authorize(connection.role, Action.CONSUME, str(topic.name))
    if not topic.policies.auto_subscription_creation:
        raise NotAllowed(
            f"subscription {name!r} does not exist on {topic.name}, and may not be made by itself"
        )
    await topic.subscription(name, durable=True, initial="earliest")


def send(connection: Connection, command: CommandSend, payload: memoryview | None) -> None:
    """Take a message."""
    producer = connection.producers.get(command.producer_id)
    if isinstance(producer, Producer):
        if producer.mode is not AccessMode.SHARED and producer.topic.exclusivity.exclusive is not producer:
            connection.close(f"SEND by producer {command.producer_id} before its turn")
            return
        producer.topic.publish(producer, command, payload if payload is not None else memoryview(b""))
    elif not connection.was_closed_lately(command.producer_id):
        connection.close(f"SEND by producer {command.producer_id}, which does not exist")


def close(connection: Connection, command: CommandCloseProducer, _: memoryview | None) -> None:
    """Let a producer go once its messages are answered. Answered with success whoever it was."""
    producer = connection.producers.get(command.producer_id)
    if isinstance(producer, Producer):
        closing = _close_when_answered(connection, producer, command.request_id)
        connection.context.tasks.start(closing, f"close producer {producer.name} of {producer.topic.name}")
        return
    if producer is not None:
        producer.cancelled = True
    connection.send(commands.success(command.request_id))


async def _close_when_answered(connection: Connection, producer: Producer, request_id: int) -> None:
    await producer.until_answered()
    connection.forget_producer(producer)
    producer.topic.remove_producer(producer)
    connection.send(commands.success(request_id))
