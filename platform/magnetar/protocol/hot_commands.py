"""The commands that pass once for every entry: SEND, SEND_RECEIPT, MESSAGE, ACK and FLOW.

Filling one message object again and again costs a sixth of making a new one, and less than packing
varints by hand in Python. The objects are kept per thread, because the client's synchronous façade runs
a loop of its own beside the program's.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from magnetar.protocol.frames import encode_command, encode_head
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandAck
from magnetar.protocol.varint import MASK_64


class _Reused(threading.local):
    """One object of each kind. Whoever fills one clears what the one before may have left."""

    def __init__(self) -> None:
        self.send = BaseCommand(type=BaseCommand.SEND)
        self.send_body = self.send.send
        self.receipt = BaseCommand(type=BaseCommand.SEND_RECEIPT)
        self.receipt_body = self.receipt.send_receipt
        self.receipt_id = self.receipt_body.message_id
        self.message = BaseCommand(type=BaseCommand.MESSAGE)
        self.message_body = self.message.message
        self.message_id = self.message_body.message_id
        self.flow = BaseCommand(type=BaseCommand.FLOW)
        self.flow_body = self.flow.flow


_reused = _Reused()


def send(
    producer_id: int,
    sequence_id: int,
    message_bytes: int,
    *,
    num_messages: int = 1,
    highest_sequence_id: int | None = None,
    is_chunk: bool = False,
    txn: tuple[int, int] | None = None,
) -> bytes:
    """What stands before a message of `message_bytes` bytes that goes to a broker, within transaction `txn` if given."""
    command = _reused.send
    body = _reused.send_body
    body.Clear()
    body.producer_id = producer_id
    body.sequence_id = sequence_id
    if num_messages != 1:
        body.num_messages = num_messages
    if highest_sequence_id is not None:
        body.highest_sequence_id = highest_sequence_id
    if is_chunk:
        body.is_chunk = True
    if txn is not None:
        body.txnid_most_bits, body.txnid_least_bits = txn
    return encode_head(command, message_bytes)


def send_receipt(
    producer_id: int, sequence_id: int, ledger_id: int, entry_id: int, highest_sequence_id: int = 0
) -> bytes:
    """The frame that says a message is stored.

    Both sequence ids echo those of the SEND exactly. A duplicate is told by ledger and entry -1.
    """
    body = _reused.receipt_body
    position = _reused.receipt_id
    body.producer_id = producer_id
    body.sequence_id = sequence_id
    body.highest_sequence_id = highest_sequence_id
    position.ledgerId = ledger_id & MASK_64
    position.entryId = entry_id & MASK_64
    return encode_command(_reused.receipt)


def message(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    message_bytes: int,
    *,
    partition: int = -1,
    redelivery_count: int = 0,
    ack_set: Sequence[int] = (),
    consumer_epoch: int | None = None,
) -> bytes:
    """What stands before an entry of `message_bytes` bytes that goes to a consumer."""
    body = _reused.message_body
    position = _reused.message_id
    body.consumer_id = consumer_id
    position.ledgerId = ledger_id
    position.entryId = entry_id
    if partition >= 0:
        position.partition = partition
    else:
        position.ClearField("partition")
    if redelivery_count:
        body.redelivery_count = redelivery_count
    else:
        body.ClearField("redelivery_count")
    body.ClearField("ack_set")
    if ack_set:
        body.ack_set.extend(ack_set)
    if consumer_epoch is None:
        body.ClearField("consumer_epoch")
    else:
        body.consumer_epoch = consumer_epoch
    return encode_head(_reused.message, message_bytes)


def flow(consumer_id: int, permits: int) -> bytes:
    """Let the broker send `permits` messages more."""
    body = _reused.flow_body
    body.consumer_id = consumer_id
    body.messagePermits = permits
    return encode_command(_reused.flow)


def ack(
    consumer_id: int,
    positions: Iterable[tuple[MessageId, Sequence[int]]],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
    validation_error: CommandAck.ValidationError.ValueType | None = None,
    txn: tuple[int, int] | None = None,
) -> bytes:
    """Acknowledge `positions`: ids of entries, each with its ack set, empty for the whole entry.

    With a request id the broker answers once the acknowledgement is durable.
    """
    command = BaseCommand(type=BaseCommand.ACK)
    body = command.ack
    body.consumer_id = consumer_id
    body.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
    add = body.message_id.add
    for message_id, ack_set in positions:
        data = add()
        data.ledgerId = message_id[0] & MASK_64
        data.entryId = message_id[1] & MASK_64
        if message_id[2] >= 0:
            data.partition = message_id[2]
        if ack_set:
            data.ack_set.extend(ack_set)
            if message_id[4] > 0:
                data.batch_size = message_id[4]
    if request_id is not None:
        body.request_id = request_id
    if validation_error is not None:
        body.validation_error = validation_error
    if txn is not None:
        body.txnid_most_bits, body.txnid_least_bits = txn
    return encode_command(command)
