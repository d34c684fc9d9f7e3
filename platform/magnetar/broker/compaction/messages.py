"""What compaction knows of an entry: the keys in it, and how a batch is cut. Pure.

A message's key is its partition key, as it stands in its metadata. Members that do not stay leave a place behind,
marked `compacted_out`, so that the others keep their batch indexes, and with them their ids.
Source: Pulsar RawBatchConverter and AbstractTwoPhaseCompactor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.broker.compaction.survivors import Chunk
from magnetar.protocol.batch import (
    BatchBuilder,
    index_batch,
    open_batch,
    read_single_metadata,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.compression import compress
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import SplitMessage, build_message, split_message
from magnetar.protocol.pulsar_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from magnetar.protocol.texts import text

_GONE: Final = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()


class Keyed:
    """A message: its key, and whether it is empty, which deletes the key."""

    __slots__ = ("empty", "key")

    def __init__(self, key: str | None, empty: bool) -> None:
        self.key = key
        self.empty = empty


class Contents:
    """The messages of an entry, in order."""

    __slots__ = ("chunk", "is_marker", "messages", "metadata", "opaque", "places")

    def __init__(self, metadata: MessageMetadata) -> None:
        self.metadata = metadata
        self.messages: list[Keyed | None] = []
        """None: one that an earlier compaction has taken out."""
        self.places = 1
        """How many ordinals it takes: the messages, and those taken out."""
        self.opaque = False
        """Whether it cannot be looked into: corrupt, though its checksum is right. It stays as it is."""
        self.is_marker = metadata.HasField("marker_type")
        self.chunk: Chunk | None = None


def read_contents(data: Buffer) -> Contents:
    """Look into an entry, from its 0x0e01 on.

    Raises:
        ProtocolError: its metadata cannot be read.
    """
    split = split_message(data, verify=False)
    metadata = split.metadata
    contents = Contents(metadata)
    if _is_open_batch(metadata):
        try:
            contents.messages = _members(split)
        except ProtocolError:
            contents.opaque = True
            return contents
        contents.places = len(contents.messages)
        return contents
    key = text(metadata.partition_key) if metadata.HasField("partition_key") else None
    size = metadata.uncompressed_size if metadata.compression != CompressionType.NONE else len(split.payload)
    contents.messages = [Keyed(key, size == 0 or metadata.null_value)]
    if metadata.num_chunks_from_msg > 1:
        contents.chunk = Chunk(
            (text(metadata.producer_name), text(metadata.uuid)),
            metadata.chunk_id,
            metadata.num_chunks_from_msg,
        )
    return contents


def _is_open_batch(metadata: MessageMetadata) -> bool:
    """An encrypted batch counts as one message, by the key that stands outside."""
    return metadata.HasField("num_messages_in_batch") and not metadata.encryption_keys


def _members(split: SplitMessage) -> list[Keyed | None]:
    payload = open_batch(split.metadata, split.payload)
    members: list[Keyed | None] = []
    for start, payload_start, end in index_batch(payload, split.metadata.num_messages_in_batch):
        single = read_single_metadata(payload[start:payload_start])
        if single.compacted_out:
            members.append(None)
            continue
        key = text(single.partition_key) if single.HasField("partition_key") else None
        members.append(Keyed(key, payload_start == end))
    return members


def cut(data: Buffer, contents: Contents, stays: Sequence[bool]) -> Buffer | None:
    """The entry with only those messages that stay; None where none does."""
    if not any(stays):
        return None
    if all(kept or message is None for kept, message in zip(stays, contents.messages, strict=True)):
        return data
    split = split_message(data, verify=False)
    metadata = split.metadata
    payload = open_batch(metadata, split.payload)
    members = index_batch(payload, metadata.num_messages_in_batch)
    batch = BatchBuilder()
    for kept, (start, payload_start, end) in zip(stays, members, strict=True):
        if kept:
            batch.add_encoded(payload[start:payload_start], payload[payload_start:end], 0)
        else:
            batch.add_encoded(_GONE, b"", 0)
    rest = batch.payload()
    if metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(rest)
    return build_message(metadata, compress(metadata.compression, rest))
