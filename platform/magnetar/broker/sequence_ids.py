"""The sequence ids inside an entry, for deduplication. Pure.

Clients number batches in different ways. Java, and our own client, tell the first and the last id of a
batch. C++ and Go tell one, the first (older C++: the last), but number each member inside. Very old clients
number nothing inside: for them a batch is one unit with one id, for members counted from it would overlap
the next batch. A batch that is encrypted tells no more than its one id.
"""

from __future__ import annotations

from magnetar.broker.deduplication import Sequences
from magnetar.protocol.batch import Member, index_batch, open_batch, read_single_metadata
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

    They are read from the members, not counted, for users choose ids with gaps. Where the first and the last
    member are as far apart as a batch without gaps has them, those between are not looked at.
    """
    metadata = message.metadata
    one = Sequences(metadata.sequence_id, metadata.sequence_id)
    count = metadata.num_messages_in_batch
    if not metadata.HasField("num_messages_in_batch") or count <= 1:
        return one
    try:
        payload = open_batch(metadata, message.payload)
        members = index_batch(payload, count)
        ids = [_member_id(payload, members[index]) for index in (0, -1)]
        if None not in ids and ids[1] != (ids[0] or 0) + count - 1:
            ids = [_member_id(payload, member) for member in members]
    except ProtocolError:
        return Sequences(metadata.sequence_id, metadata.sequence_id, count)
    told = [each for each in ids if each is not None]
    return Sequences(min(told), max(told)) if len(told) == len(ids) else one


def _member_id(payload: bytes, member: Member) -> int | None:
    start, end, _ = member
    single = read_single_metadata(payload[start:end])
    return single.sequence_id if single.HasField("sequence_id") else None
