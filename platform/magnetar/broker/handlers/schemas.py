"""GET_SCHEMA and GET_OR_CREATE_SCHEMA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.errors import IncompatibleSchema
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import CommandGetOrCreateSchema, CommandGetSchema

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection
    from magnetar.broker.errors import BrokerError


async def get(connection: Connection, command: CommandGetSchema) -> None:
    """Tell a version of a topic's schema, or the latest."""
    version = command.schema_version if command.HasField("schema_version") else None
    if version == b"":
        raise IncompatibleSchema("an empty schema version names no schema: leave it out for the latest")
    found = await connection.broker.schemas.get(TopicName.parse(command.topic), version)
    connection.send(commands.schema_response(command.request_id, found.to_protocol(), found.version_bytes))


def get_refused(command: CommandGetSchema, error: BrokerError) -> bytes:
    return commands.schema_failed(command.request_id, error.code, str(error))


async def get_or_create(connection: Connection, command: CommandGetOrCreateSchema) -> None:
    """Find or register a schema."""
    name = TopicName.parse(command.topic)
    topic = await connection.broker.topics.get(name, create=False)
    version = await connection.broker.schemas.for_producer(name, command.schema, topic.policies)
    connection.send(commands.get_or_create_schema_response(command.request_id, version))


def get_or_create_refused(command: CommandGetOrCreateSchema, error: BrokerError) -> bytes:
    return commands.get_or_create_schema_failed(command.request_id, error.code, str(error))
