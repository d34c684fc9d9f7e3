"""What compaction knows of an entry: the keys in it, and how a batch is cut. Pure.

A message's key is its partition key, as it stands in its metadata. Members that do not stay leave a place behind,
marked `compacted_out`, so that the others keep their batch indexes, and with them their ids.
Source: Pulsar RawBatchConverter and AbstractTwoPhaseCompactor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from magnetar.broker.compaction.survivors import Chunk
from magnetar.protocol import ack_sets
from magnetar.protocol.batch import (
    BatchBuilder,
    index_batch,
    open_batch,
    read_single_metadata,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.compression import compress
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import SplitMessage, build_message
from magnetar.protocol.pulsar_pb2 import CompressionType, MessageMetadata, SingleMessageMetadata
from magnetar.protocol.texts import text

_BATCH_MAX: Final = 1 << 20
"""What says that it is a batch of more, or of less than one, counts as a single message."""
_KEY_TAG: Final = 0x12
_GONE: Final = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()


Keyed = tuple[bytes | None, bool]
"""A message: its key, and whether it is empty, which deletes the key."""


class Contents:
    """The messages of an entry, in order."""

    __slots__ = ("chunk", "messages", "opaque", "places")

    def __init__(self) -> None:
        self.messages: list[Keyed | None] = []
        """None: one that an earlier compaction has taken out."""
        self.places = 1
        """How many ordinals it takes: the messages, and those taken out."""
        self.opaque = False
        """Whether it cannot be looked into: corrupt, though its checksum is right. It stays as it is."""
        self.chunk: Chunk | None = None


def places_in(metadata: MessageMetadata) -> int:
    """How many messages an entry was written with. An encrypted batch counts as one, by the key that stands outside."""
    return metadata.num_messages_in_batch if _is_open_batch(metadata) else 1


def read_contents(split: SplitMessage, stays: Sequence[int] = ()) -> Contents:
    """Look into an entry; `stays` is the ack set of the messages left of one that was cut before."""
    metadata = split.metadata
    contents = Contents()
    if _is_open_batch(metadata):
        contents.places = metadata.num_messages_in_batch
        try:
            contents.messages = _members(split)
        except ProtocolError:
            contents.opaque = True
            return contents
        if stays:
            left = ack_sets.to_bits(stays)
            for index in range(contents.places):
                if not left >> index & 1:
                    contents.messages[index] = None
        return contents
    key = metadata.partition_key.encode() if metadata.HasField("partition_key") else None
    size = metadata.uncompressed_size if metadata.compression != CompressionType.NONE else len(split.payload)
    contents.messages = [(key, size == 0 or metadata.null_value)]
    if metadata.num_chunks_from_msg > 1:
        contents.chunk = Chunk(
            (text(metadata.producer_name), text(metadata.uuid)),
            metadata.chunk_id,
            metadata.num_chunks_from_msg,
        )
    return contents


def _is_open_batch(metadata: MessageMetadata) -> bool:
    if not metadata.HasField("num_messages_in_batch") or metadata.encryption_keys:
        return False
    return 0 < metadata.num_messages_in_batch <= _BATCH_MAX


def _members(split: SplitMessage) -> list[Keyed | None]:
    payload = open_batch(split.metadata, split.payload)
    members: list[Keyed | None] = []
    add = members.append
    for start, payload_start, end in index_batch(payload, split.metadata.num_messages_in_batch):
        size = payload[start + 1] if payload_start - start > 1 and payload[start] == _KEY_TAG else 0x80
        if size < 0x80 and start + 2 + size <= payload_start:
            # The key stands first, and is short: as a rule. Parsing all of it takes five times as long.
            add((payload[start + 2 : start + 2 + size], payload_start == end))
            continue
        single = read_single_metadata(payload[start:payload_start])
        key = single.partition_key.encode() if single.HasField("partition_key") else None
        add((key, payload_start == end))
    return members


def cut(split: SplitMessage, stays: Sequence[bool]) -> Buffer:
    """A batch of which some messages stay, without the others.

    Raises:
        ProtocolError: it is none, or cannot be opened.
    """
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
