"""What a coordinator, or a broker whose topic takes part in a transaction, answers.

Each of the six commands that name a transaction has a response of its own, and all six have the same fields.
"""

from __future__ import annotations

from typing import Any, Final

from magnetar.protocol.frames import encode_command
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandAddPartitionToTxn,
    CommandAddSubscriptionToTxn,
    CommandEndTxn,
    CommandEndTxnOnPartition,
    CommandEndTxnOnSubscription,
    CommandNewTxn,
    CommandTcClientConnectRequest,
    CommandTcClientConnectResponse,
    ServerError,
)

_ANSWERS: Final[dict[type, tuple[BaseCommand.Type.ValueType, str]]] = {
    CommandTcClientConnectRequest: (BaseCommand.TC_CLIENT_CONNECT_RESPONSE, "tcClientConnectResponse"),
    CommandNewTxn: (BaseCommand.NEW_TXN_RESPONSE, "newTxnResponse"),
    CommandAddPartitionToTxn: (BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE, "addPartitionToTxnResponse"),
    CommandAddSubscriptionToTxn: (
        BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxnResponse",
    ),
    CommandEndTxn: (BaseCommand.END_TXN_RESPONSE, "endTxnResponse"),
    CommandEndTxnOnPartition: (BaseCommand.END_TXN_ON_PARTITION_RESPONSE, "endTxnOnPartitionResponse"),
    CommandEndTxnOnSubscription: (
        BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        "endTxnOnSubscriptionResponse",
    ),
}


def coordinator_connected(request_id: int) -> bytes:
    """The coordinator is served here."""
    body = CommandTcClientConnectResponse(request_id=request_id)
    return encode_command(
        BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_RESPONSE, tcClientConnectResponse=body)
    )


def transaction_response(request: Any, txnid_most_bits: int, txnid_least_bits: int) -> bytes:
    """The answer to a command that names, or begins, a transaction."""
    kind, field = _ANSWERS[type(request)]
    command = BaseCommand(type=kind)
    body = getattr(command, field)
    body.request_id = request.request_id
    body.txnid_most_bits = txnid_most_bits
    body.txnid_least_bits = txnid_least_bits
    return encode_command(command)


def transaction_failed(request: Any, code: ServerError.ValueType, message: str) -> bytes:
    """The same, when it could not be done. The transaction is named as it was asked for."""
    kind, field = _ANSWERS[type(request)]
    command = BaseCommand(type=kind)
    body = getattr(command, field)
    body.request_id = request.request_id
    if isinstance(request, CommandNewTxn):
        body.txnid_most_bits = request.tc_id
    elif not isinstance(request, CommandTcClientConnectRequest):
        body.txnid_most_bits = request.txnid_most_bits
        body.txnid_least_bits = request.txnid_least_bits
    body.error = code
    body.message = message
    return encode_command(command)
