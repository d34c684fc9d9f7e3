"""How a coordinator's broker tells topics and subscriptions of other brokers that a transaction has ended."""

from __future__ import annotations

from magnetar.client.session import Session
from magnetar.protocol import transaction_requests as requests
from magnetar.protocol.pulsar_pb2 import CommandEndTxnOnPartitionResponse, CommandEndTxnOnSubscriptionResponse


async def end_on_partition(
    session: Session, topic: str, most: int, least: int, *, commit: bool, watermark: int
) -> None:
    """Tell the broker of `topic`.

    Raises:
        BrokerRefused: it could not do it.
        ConnectFailed, ConnectionLost, OperationTimedOut: it does not answer.
    """
    connection = await session.lookup.connection_for(topic)
    request_id = session.ids.request()
    await connection.request(
        request_id,
        requests.end_transaction_on_partition(
            request_id, topic, most, least, commit=commit, watermark=watermark
        ),
        CommandEndTxnOnPartitionResponse,
        session.settings.operation_timeout_s,
    )


async def end_on_subscription(
    session: Session, topic: str, subscription: str, most: int, least: int, *, commit: bool, watermark: int
) -> None:
    """Tell the broker of `topic` for one of its subscriptions.

    Raises:
        As `end_on_partition`.
    """
    connection = await session.lookup.connection_for(topic)
    request_id = session.ids.request()
    await connection.request(
        request_id,
        requests.end_transaction_on_subscription(
            request_id, topic, subscription, most, least, commit=commit, watermark=watermark
        ),
        CommandEndTxnOnSubscriptionResponse,
        session.settings.operation_timeout_s,
    )
