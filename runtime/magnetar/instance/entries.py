"""Entries as the user process wants them: decompressed, and always in the form of a batch."""

from __future__ import annotations

import struct

from magnetar.client.messages import MessageBatch
from magnetar.instance.delivery import Arrival, Position
from magnetar.protocol.pulsar_pb2 import SingleMessageMetadata

_SIZE = struct.Struct(">I")


def arrival_of(batch: MessageBatch) -> Arrival:
    """An entry as the guarantees see it."""
    count = max(batch.size, 1)
    wanted = batch.indexes
    gone = frozenset(range(count)).difference(wanted) if len(wanted) < count else frozenset()
    first_index = -1 if batch.index is None else batch.index - count + 1
    return Arrival(Position(batch.message_id.ledger_id, batch.message_id.entry_id), count, first_index, gone)


def batch_payload(batch: MessageBatch) -> bytes:
    """The entry's messages as a batch. Raises ProtocolError where it is not what its metadata say."""
    if batch.size:
        return batch.data
    about, payload = batch.metadata, batch.data
    single = SingleMessageMetadata(payload_size=len(payload), properties=about.properties)
    if about.HasField("partition_key"):
        single.partition_key = about.partition_key
        if about.partition_key_b64_encoded:
            single.partition_key_b64_encoded = True
    if about.HasField("event_time"):
        single.event_time = about.event_time
    if about.HasField("ordering_key"):
        single.ordering_key = about.ordering_key
    if about.null_value:
        single.null_value = True
    single.sequence_id = about.sequence_id
    fields = single.SerializeToString()
    return _SIZE.pack(len(fields)) + fields + payload
