"""Where a topic is, and how many partitions it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.transactions.coordinator_topic import COORDINATOR_TOPIC
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import CommandLookupTopic, CommandPartitionedTopicMetadata

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection
    from magnetar.broker.errors import BrokerError


async def lookup(connection: Connection, command: CommandLookupTopic) -> None:
    """Name the broker that serves a topic. Makes no topic, but a broker take its bundle."""
    found = await connection.broker.lookup(
        TopicName.parse(command.topic), command.advertised_listener_name, take=command.authoritative
    )
    connection.send_claim(
        commands.lookup_response(
            command.request_id,
            found.broker_url,
            found.broker_url_tls,
            redirect=not found.here,
            authoritative=True,
        )
    )


def lookup_refused(command: CommandLookupTopic, error: BrokerError) -> bytes:
    return commands.lookup_failed(command.request_id, error.code, str(error))


async def partitioned_metadata(connection: Connection, command: CommandPartitionedTopicMetadata) -> None:
    """Tell the number of partitions, making the topic partitioned where policy wants new ones so."""
    name = TopicName.parse(command.topic)
    if name == COORDINATOR_TOPIC:
        await connection.broker.transactions.ensure_coordinators()
    partitions = await connection.broker.topics.partitions(
        name, create=command.metadata_auto_creation_enabled
    )
    connection.send(commands.partitioned_metadata_response(command.request_id, partitions))


def partitioned_metadata_refused(command: CommandPartitionedTopicMetadata, error: BrokerError) -> bytes:
    return commands.partitioned_metadata_failed(command.request_id, error.code, str(error))
