"""The sequence ids inside an entry, for deduplication. Pure.

Clients number batches in different ways. Java, and our own client, tell the first and the last id of a
batch. C++ and Go tell one, the first (older C++: the last), but number each member inside. Very old clients
number nothing inside: for them a batch is one unit with one id, for members counted from it would overlap
the next batch. A batch that is encrypted tells no more than its one id.
"""

from __future__ import annotations

from magnetar.broker.deduplication import Sequences
from magnetar.protocol.batch import index_batch, open_batch, read_single_metadata
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import SplitMessage


def told_range(sequence_id: int, highest_sequence_id: int) -> Sequences | None:
    """The ids a command or metadata tells by itself. A highest id of 0 is none, and so is a lower one."""
    if highest_sequence_id and highest_sequence_id >= sequence_id:
        return Sequences(sequence_id, highest_sequence_id)
    return None


def stored_sequences(message: SplitMessage) -> Sequences:
    """The ids of an entry, by its metadata and, where that is not enough, by its members."""
    metadata = message.metadata
    told = told_range(metadata.sequence_id, metadata.highest_sequence_id)
    return told if told is not None else untold_sequences(message)


def untold_sequences(message: SplitMessage) -> Sequences:
    """The ids of an entry whose metadata tells only one.

    Ids rise within a batch, so that its first and last member tell all. They are read from the members, not
    counted: users choose ids with gaps.
    """
    metadata = message.metadata
    one = Sequences(metadata.sequence_id, metadata.sequence_id)
    count = metadata.num_messages_in_batch
    if not metadata.HasField("num_messages_in_batch") or count <= 1:
        return one
    try:
        payload = open_batch(metadata, message.payload)
        members = index_batch(payload, count)
        first, last = (
            read_single_metadata(payload[start:end]) for start, end, _ in (members[0], members[-1])
        )
    except ProtocolError:
        return Sequences(metadata.sequence_id, metadata.sequence_id, count)
    if not (first.HasField("sequence_id") and last.HasField("sequence_id")):
        return one
    return Sequences(min(first.sequence_id, last.sequence_id), max(first.sequence_id, last.sequence_id))
