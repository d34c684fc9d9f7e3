"""What clients ask of a transaction coordinator, and coordinators of brokers whose topics take part."""

from __future__ import annotations

from collections.abc import Iterable

from magnetar.protocol.frames import encode_command
from magnetar.protocol.pulsar_pb2 import (
    ABORT,
    COMMIT,
    BaseCommand,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    CommandNewTxn,
    CommandTcClientConnectRequest,
    Subscription,
)


def connect_to_coordinator(request_id: int, tc_id: int) -> bytes:
    """Make sure that a coordinator is served here."""
    body = CommandTcClientConnectRequest(request_id=request_id, tc_id=tc_id)
    return encode_command(
        BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST, tcClientConnectRequest=body)
    )


def new_transaction(request_id: int, tc_id: int, timeout_ms: int) -> bytes:
    """Begin a transaction that is aborted after `timeout_ms`."""
    body = CommandNewTxn(request_id=request_id, tc_id=tc_id, txn_ttl_millis=timeout_ms)
    return encode_command(BaseCommand(type=BaseCommand.NEW_TXN, newTxn=body))


def add_partitions_to_transaction(request_id: int, most: int, least: int, topics: Iterable[str]) -> bytes:
    """The transaction will write to `topics`."""
    body = CommandAddPartitionToTxn(
        request_id=request_id, txnid_most_bits=most, txnid_least_bits=least, partitions=list(topics)
    )
    return encode_command(BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN, addPartitionToTxn=body))


def add_subscriptions_to_transaction(
    request_id: int, most: int, least: int, subscriptions: Iterable[tuple[str, str]]
) -> bytes:
    """The transaction will acknowledge for `subscriptions`, each with its topic before its name."""
    body = CommandAddSubscriptionToTxn(
        request_id=request_id,
        txnid_most_bits=most,
        txnid_least_bits=least,
        subscription=[Subscription(topic=topic, subscription=name) for topic, name in subscriptions],
    )
    return encode_command(BaseCommand(type=BaseCommand.ADD_SUBSCRIPTION_TO_TXN, addSubscriptionToTxn=body))


def end_transaction(request_id: int, most: int, least: int, *, commit: bool) -> bytes:
    """Commit or abort."""
    body = CommandEndTxn(
        request_id=request_id,
        txnid_most_bits=most,
        txnid_least_bits=least,
        txn_action=COMMIT if commit else ABORT,
    )
    return encode_command(BaseCommand(type=BaseCommand.END_TXN, endTxn=body))


def end_transaction_on_partition(
    request_id: int, topic: str, most: int, least: int, *, commit: bool, watermark: int
) -> bytes:
    """Tell a topic how a transaction ended, and up to which number all of its coordinator's have."""
    body = CommandEndTxnOnPartition(
        request_id=request_id,
        topic=topic,
        txnid_most_bits=most,
        txnid_least_bits=least,
        txn_action=COMMIT if commit else ABORT,
        txnid_least_bits_of_low_watermark=watermark,
    )
    return encode_command(BaseCommand(type=BaseCommand.END_TXN_ON_PARTITION, endTxnOnPartition=body))


def end_transaction_on_subscription(
    request_id: int, topic: str, subscription: str, most: int, least: int, *, commit: bool, watermark: int
) -> bytes:
    """Tell a subscription how a transaction ended."""
    body = CommandEndTxnOnSubscription(
        request_id=request_id,
        subscription=Subscription(topic=topic, subscription=subscription),
        txnid_most_bits=most,
        txnid_least_bits=least,
        txn_action=COMMIT if commit else ABORT,
        txnid_least_bits_of_low_watermark=watermark,
    )
    return encode_command(BaseCommand(type=BaseCommand.END_TXN_ON_SUBSCRIPTION, endTxnOnSubscription=body))
