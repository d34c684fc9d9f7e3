"""CONNECT, and staying connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import NotAllowed
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import (
    CommandAuthResponse,
    CommandConnect,
    CommandPing,
    CommandPong,
    FeatureFlags,
)

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection

SERVER_VERSION: Final = "Magnetar 0.1.0"
_OUR_FEATURES: Final = FeatureFlags(
    supports_topic_watchers=True,
    supports_topic_watcher_reconcile=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
)


def connect(connection: Connection, command: CommandConnect, _: memoryview | None) -> None:
    """Answer CONNECT. Nobody is asked for credentials yet: every client is anonymous."""
    limit = connection.settings.max_connections
    if limit and connection.broker.connected_count >= limit:
        refusal = NotAllowed(
            f"the broker has its {limit} connections already: close some, or raise the limit"
        )
        connection.send(commands.error(commands.NO_REQUEST, refusal.code, str(refusal)))
        connection.close(str(refusal))
        return
    connection.connect(command.client_version, command.protocol_version, command.feature_flags, role=None)
    connection.send(
        commands.connected(
            SERVER_VERSION,
            protocol_version=connection.protocol_version,
            max_message_bytes=connection.settings.max_message_bytes,
            feature_flags=_OUR_FEATURES,
        )
    )


def ping(connection: Connection, command: CommandPing, _: memoryview | None) -> None:
    connection.send(commands.pong())


def pong(connection: Connection, command: CommandPong, _: memoryview | None) -> None:
    """That it was heard is all that counts, and that was noted when its bytes came."""


def auth_response(connection: Connection, command: CommandAuthResponse, _: memoryview | None) -> None:
    """We challenge nobody, so that this answers nothing."""
    connection.close("AUTH_RESPONSE without a challenge")
