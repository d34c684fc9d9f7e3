"""What clients ask of transaction coordinators, and coordinators of the brokers whose topics take part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.transactions.txn_id import TxnId, named
from magnetar.protocol import transaction_replies as replies
from magnetar.protocol.pulsar_pb2 import COMMIT

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection
    from magnetar.broker.errors import BrokerError


def _txn(body: Any) -> TxnId:
    return named(body.txnid_most_bits, body.txnid_least_bits)


def refused(body: Any, error: BrokerError) -> bytes:
    """Each command has a response of its own, and its errors go there."""
    return replies.transaction_failed(body, error.code, str(error))


async def connect(connection: Connection, body: Any) -> None:
    """A client is about to use a coordinator."""
    await connection.broker.transactions.coordinator(body.tc_id)
    connection.send_claim(replies.coordinator_connected(body.request_id))


async def begin(connection: Connection, body: Any) -> None:
    coordinator = await connection.broker.transactions.coordinator(body.tc_id)
    txn = await coordinator.begin(body.txn_ttl_millis, connection.role)
    connection.send_claim(replies.transaction_response(body, txn.most, txn.least))


async def add_partitions(connection: Connection, body: Any) -> None:
    txn = _txn(body)
    coordinator = await connection.broker.transactions.coordinator(txn.most)
    await coordinator.add_partitions(txn, body.partitions, connection.role)
    connection.send_claim(replies.transaction_response(body, txn.most, txn.least))


async def add_subscriptions(connection: Connection, body: Any) -> None:
    txn = _txn(body)
    coordinator = await connection.broker.transactions.coordinator(txn.most)
    named = [(each.topic, each.subscription) for each in body.subscription]
    await coordinator.add_subscriptions(txn, named, connection.role)
    connection.send_claim(replies.transaction_response(body, txn.most, txn.least))


async def end(connection: Connection, body: Any) -> None:
    txn = _txn(body)
    coordinator = await connection.broker.transactions.coordinator(txn.most)
    await coordinator.end(txn, commit=body.txn_action == COMMIT, role=connection.role)
    connection.send_claim(replies.transaction_response(body, txn.most, txn.least))


# From other brokers.


async def end_on_partition(connection: Connection, body: Any) -> None:
    txn = _txn(body)
    transactions = connection.broker.transactions
    transactions.check_enabled()
    await transactions.participants.end_here(
        body.topic,
        txn,
        commit=body.txn_action == COMMIT,
        watermark=body.txnid_least_bits_of_low_watermark,
    )
    connection.send_claim(replies.transaction_response(body, txn.most, txn.least))


async def end_on_subscription(connection: Connection, body: Any) -> None:
    txn = _txn(body)
    transactions = connection.broker.transactions
    transactions.check_enabled()
    await transactions.participants.end_subscription_here(
        body.subscription.topic,
        body.subscription.subscription,
        txn,
        commit=body.txn_action == COMMIT,
        watermark=body.txnid_least_bits_of_low_watermark,
    )
    connection.send_claim(replies.transaction_response(body, txn.most, txn.least))
