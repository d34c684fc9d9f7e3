"""The entries that tell a topic's readers how a transaction ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.broker.transactions.txn_id import TxnId
from magnetar.protocol.message import build_message_parts
from magnetar.protocol.pulsar_pb2 import TXN_ABORT, TXN_COMMIT, MessageMetadata

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar.protocol.buffers import Buffer

MARKER_PRODUCER: Final = "pulsar.txn.marker"


def marker(txn: TxnId, *, commit: bool, now_ms: int) -> Sequence[Buffer]:
    """The bytes of a marker. Source: Pulsar Markers, whose commit and abort markers have no payload of use."""
    metadata = MessageMetadata(
        producer_name=MARKER_PRODUCER,
        sequence_id=0,
        publish_time=now_ms,
        marker_type=TXN_COMMIT if commit else TXN_ABORT,
        txnid_most_bits=txn.most,
        txnid_least_bits=txn.least,
    )
    return build_message_parts(metadata.SerializeToString(), b"")


def txn_of(metadata: MessageMetadata) -> TxnId | None:
    """The transaction an entry belongs to, or whose end it marks."""
    if not metadata.txnid_least_bits:  # They begin at 1.
        return None
    return TxnId(metadata.txnid_most_bits, metadata.txnid_least_bits)


def commits(metadata: MessageMetadata) -> bool | None:
    """Whether a marker tells of a commit; None where it tells of no transaction's end."""
    if metadata.marker_type == TXN_COMMIT:
        return True
    return False if metadata.marker_type == TXN_ABORT else None
