"""Our own asyncio client of a Pulsar-compatible broker: whole batches in and out, reconnecting.

    client = Client("pulsar://127.0.0.1:6650")
    producer = await client.create_producer("orders")
    await producer.send(b"one")
    consumer = await client.subscribe("orders", "billing", initial="earliest")
    batch = await consumer.receive_batch()
    consumer.acknowledge(batch)
    await client.close()

Functions, Spark and the command line use it; so may anyone. `magnetar.client.blocking` is the same
without `await`. May import `protocol`, `naming` and `environment`. Start with `client.py`; a producer or
consumer is a `link.TopicLink` that `connection.py` feeds; decisions lie in pure modules beside it
(`outbox.py`, `acknowledgements.py`, `nacks.py`, `backoff.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.client.authentication import Authentication, TokenAuthentication
    from magnetar.client.client import Client
    from magnetar.client.consumer import Consumer
    from magnetar.client.dead_letters import DeadLetterPolicy
    from magnetar.client.errors import ClientError
    from magnetar.client.messages import Message, MessageBatch
    from magnetar.client.outgoing import OutgoingMessage
    from magnetar.client.producer import Producer
    from magnetar.client.reader import Reader
    from magnetar.client.table_view import TableView
    from magnetar.client.transactions import Transaction
    from magnetar.protocol.ids import MessageId

__all__ = [
    "Authentication",
    "Client",
    "ClientError",
    "Consumer",
    "DeadLetterPolicy",
    "Message",
    "MessageBatch",
    "MessageId",
    "OutgoingMessage",
    "Producer",
    "Reader",
    "TableView",
    "TokenAuthentication",
    "Transaction",
]

_HOMES = {
    "Authentication": "magnetar.client.authentication",
    "Client": "magnetar.client.client",
    "ClientError": "magnetar.client.errors",
    "Consumer": "magnetar.client.consumer",
    "DeadLetterPolicy": "magnetar.client.dead_letters",
    "Message": "magnetar.client.messages",
    "MessageBatch": "magnetar.client.messages",
    "MessageId": "magnetar.protocol.ids",
    "OutgoingMessage": "magnetar.client.outgoing",
    "Producer": "magnetar.client.producer",
    "Reader": "magnetar.client.reader",
    "TableView": "magnetar.client.table_view",
    "TokenAuthentication": "magnetar.client.authentication",
    "Transaction": "magnetar.client.transactions",
}


def __getattr__(name: str) -> object:
    """Import a name's home when it is first asked for: a process that only names the room pays nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
