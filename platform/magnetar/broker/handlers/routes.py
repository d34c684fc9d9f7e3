"""Every command a broker answers, in one table."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.handlers import (
    consumers,
    handshake,
    lookups,
    producers,
    schemas,
    topic_lists,
    transactions,
)
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import BaseCommand
from magnetar.security.authorizer import CLUSTER, Action

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection
    from magnetar.broker.errors import BrokerError

Body = Any
"""The message of a command: which one is the table's knowledge, and each handler's signature."""


def _refuse(body: Body, error: BrokerError) -> bytes:
    return commands.error(body.request_id, error.code, str(error))


def _topic(_: Connection, body: Body) -> str:
    return str(TopicName.parse(body.topic))


def _namespace(_: Connection, body: Body) -> str:
    return str(body.namespace)


def _topic_of_consumer(connection: Connection, body: Body) -> str:
    return str(consumers.find(connection, body.consumer_id).topic_name)


def _cluster(_: Connection, __: Body) -> str:
    return CLUSTER


@dataclass(frozen=True, slots=True)
class Route:
    """What happens with a command."""

    field: str
    """The command's field in BaseCommand."""
    hot: Callable[[Connection, Body, memoryview | None], None] | None = None
    """Called at once. Permission was given when the producer, consumer or connection it speaks of was made."""
    handler: Callable[[Connection, Body], Awaitable[None]] | None = None
    action: Action = Action.LOOKUP
    resource: Callable[[Connection, Body], str] = _topic
    refusal: Callable[[Body, BrokerError], bytes] = _refuse


_C = BaseCommand

ROUTES: Final[dict[int, Route]] = {
    # Once per entry, or as cheap.
    _C.SEND: Route("send", hot=producers.send),
    _C.ACK: Route("ack", hot=consumers.acknowledge),
    _C.FLOW: Route("flow", hot=consumers.flow),
    _C.REDELIVER_UNACKNOWLEDGED_MESSAGES: Route("redeliverUnacknowledgedMessages", hot=consumers.redeliver),
    _C.PING: Route("ping", hot=handshake.ping),
    _C.PONG: Route("pong", hot=handshake.pong),
    _C.CONNECT: Route("connect", hot=handshake.connect),
    _C.AUTH_RESPONSE: Route("authResponse", hot=handshake.auth_response),
    _C.WATCH_TOPIC_LIST_CLOSE: Route("watchTopicListClose", hot=topic_lists.close_watcher),
    _C.CLOSE_PRODUCER: Route("close_producer", hot=producers.close),
    _C.CLOSE_CONSUMER: Route("close_consumer", hot=consumers.close),
    # Lookup.
    _C.LOOKUP: Route("lookupTopic", handler=lookups.lookup, refusal=lookups.lookup_refused),
    _C.PARTITIONED_METADATA: Route(
        "partitionMetadata",
        handler=lookups.partitioned_metadata,
        refusal=lookups.partitioned_metadata_refused,
    ),
    _C.GET_TOPICS_OF_NAMESPACE: Route(
        "getTopicsOfNamespace", handler=topic_lists.topics_of_namespace, resource=_namespace
    ),
    _C.WATCH_TOPIC_LIST: Route("watchTopicList", handler=topic_lists.watch, resource=_namespace),
    # Producers.
    _C.PRODUCER: Route("producer", handler=producers.create, action=Action.PRODUCE),
    # Consumers.
    _C.SUBSCRIBE: Route("subscribe", handler=consumers.subscribe, action=Action.CONSUME),
    _C.UNSUBSCRIBE: Route(
        "unsubscribe", handler=consumers.unsubscribe, action=Action.CONSUME, resource=_topic_of_consumer
    ),
    _C.SEEK: Route("seek", handler=consumers.seek, action=Action.CONSUME, resource=_topic_of_consumer),
    _C.GET_LAST_MESSAGE_ID: Route(
        "getLastMessageId",
        handler=consumers.last_message_id,
        action=Action.CONSUME,
        resource=_topic_of_consumer,
    ),
    _C.CONSUMER_STATS: Route(
        "consumerStats",
        handler=consumers.consumer_stats,
        action=Action.CONSUME,
        resource=_topic_of_consumer,
        refusal=consumers.consumer_stats_refused,
    ),
    # Schemas.
    _C.GET_SCHEMA: Route("getSchema", handler=schemas.get, refusal=schemas.get_refused),
    _C.GET_OR_CREATE_SCHEMA: Route(
        "getOrCreateSchema",
        handler=schemas.get_or_create,
        action=Action.PRODUCE,
        refusal=schemas.get_or_create_refused,
    ),
    # Transactions.
    **{
        kind: Route(field, handler=handler, action=action, resource=_cluster, refusal=transactions.refused)
        for kind, field, handler, action in (
            (_C.TC_CLIENT_CONNECT_REQUEST, "tcClientConnectRequest", transactions.connect, Action.LOOKUP),
            (_C.NEW_TXN, "newTxn", transactions.begin, Action.LOOKUP),
            (_C.ADD_PARTITION_TO_TXN, "addPartitionToTxn", transactions.add_partitions, Action.LOOKUP),
            (
                _C.ADD_SUBSCRIPTION_TO_TXN,
                "addSubscriptionToTxn",
                transactions.add_subscriptions,
                Action.LOOKUP,
            ),
            (_C.END_TXN, "endTxn", transactions.end, Action.LOOKUP),
            # Between brokers: nobody else may.
            (
                _C.END_TXN_ON_PARTITION,
                "endTxnOnPartition",
                transactions.end_on_partition,
                Action.ADMINISTER_CLUSTER,
            ),
            (
                _C.END_TXN_ON_SUBSCRIPTION,
                "endTxnOnSubscription",
                transactions.end_on_subscription,
                Action.ADMINISTER_CLUSTER,
            ),
        )
    },
}
"""By `BaseCommand.Type`. A command that is not here is one only brokers send."""
