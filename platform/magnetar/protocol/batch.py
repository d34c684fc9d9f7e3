"""Batches: many messages in one entry.

The payload of a batch is, for each member, a 4-byte size, SingleMessageMetadata of that size, and the
message itself; all together compressed once. Writing and reading a member are the two loops that run
once for every message anywhere in the platform, so the plain case of each is written out by hand:
a member without key, properties and times, which is what most are.
Source: Pulsar binary protocol, "Batch messages".
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, repeat
from typing import TypeAlias

from google.protobuf.message import DecodeError

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.compression import MAX_UNCOMPRESSED_BYTES, compress, decompress
from magnetar.protocol.errors import BatchCorrupt, BatchUnopenable, ProtocolError
from magnetar.protocol.message import build_message, split_message
from magnetar.protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.protocol.varint import varint

_SIZE = struct.Struct(">I")
_PAYLOAD_SIZE_TAG = b"\x18"
_SEQUENCE_ID_TAG = b"\x40"
_KEY_TAG = b"\x12"
_CACHED_KEYS = 10_000
_CACHED_KEY_BYTES = 64
_PLAIN_HEADS_MAX = 4096
PLAIN_OVERHEAD_BYTES = 20
"""What a plain member takes beyond its payload, at most."""


@cache
def _low_varint_bytes() -> list[bytes]:
    """The lowest 14 bits of a number of 2**14 or more, as the first two bytes of its varint."""
    return [bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(0x4000)]


class _PlainHeads(dict[int, bytes]):
    """What stands before the sequence id of a plain member, by payload size, for ids of one width."""

    def __init__(self, id_width: int) -> None:
        super().__init__()
        self._id_width = id_width

    def __missing__(self, payload_size: int) -> bytes:
        fields = _PAYLOAD_SIZE_TAG + varint(payload_size) + _SEQUENCE_ID_TAG
        head = _SIZE.pack(len(fields) + self._id_width) + fields
        if len(self) >= _PLAIN_HEADS_MAX:
            self.clear()
        self[payload_size] = head
        return head


_plain_heads = [_PlainHeads(id_width) for id_width in range(11)]
"""Indexed by how many bytes the varint of a sequence id takes."""


_key_fields: dict[str, bytes] = {}
"""Keys as they stand in metadata, for streams repeat few of them."""


def _key_field(key: str) -> bytes:
    encoded = key.encode()
    field = _KEY_TAG + varint(len(encoded)) + encoded
    if len(encoded) <= _CACHED_KEY_BYTES:
        if len(_key_fields) >= _CACHED_KEYS:
            _key_fields.clear()
        _key_fields[key] = field
    return field


class BatchBuilder:
    """Collects the members of one batch. `count` and `size` tell when it is full."""

    __slots__ = (
        "_high",
        "_high_bytes",
        "_member",
        "_parts",
        "count",
        "first_sequence_id",
        "last_sequence_id",
        "size",
    )

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._member = SingleMessageMetadata()
        self._high = 0  # The upper bits of the last sequence id, and their varint.
        self._high_bytes = b""
        self.count = 0
        self.size = 0
        """Bytes of payloads and metadata before compression, reckoned rather generously than exactly."""
        self.first_sequence_id = -1
        self.last_sequence_id = -1

    def add(self, payload: bytes, sequence_id: int) -> None:
        """Add a plain member: a payload and its sequence id, nothing else."""
        id_bytes = varint(sequence_id)
        self._parts += (_plain_heads[len(id_bytes)][len(payload)], id_bytes, payload)
        self._count(1, len(payload), sequence_id, sequence_id)

    def add_many(self, payloads: Sequence[bytes], sequence_ids: Sequence[int]) -> None:
        """Add plain members whose sequence ids increase.

        A fifth of the cost of adding them one by one, for the loop runs inside the interpreter's own
        iterators. That asks for runs of ids whose varints share all but their two lowest bytes.
        """
        done = 0
        count = len(payloads)
        while done < count:
            high = sequence_ids[done] >> 14
            if high == 0:
                self.add(payloads[done], sequence_ids[done])
                done += 1
                continue
            end = count
            if sequence_ids[-1] >> 14 != high:
                end = bisect_left(sequence_ids, (high + 1) << 14, done)
            ids = sequence_ids[done:end]
            run = payloads if len(ids) == count else payloads[done:end]
            low_bytes = _low_varint_bytes()
            high_bytes = varint(high)
            self._parts += chain.from_iterable(
                zip(
                    map(_plain_heads[2 + len(high_bytes)].__getitem__, map(len, run)),
                    [low_bytes[sequence_id & 0x3FFF] for sequence_id in ids],
                    repeat(high_bytes),
                    run,
                    strict=False,
                )
            )
            self._count(len(run), sum(map(len, run)), ids[0], ids[-1])
            done = end

    def _count(self, members: int, payload_bytes: int, first_id: int, last_id: int) -> None:
        if self.count == 0:
            self.first_sequence_id = first_id
        self.last_sequence_id = last_id
        self.count += members
        self.size += payload_bytes + members * PLAIN_OVERHEAD_BYTES

    def add_full(
        self,
        payload: bytes | None,
        sequence_id: int,
        *,
        key: str | None = None,
        key_bytes_base64: bool = False,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
    ) -> None:
        """Add a member with whatever it carries. A payload of None is a null value: a tombstone.

        `key_bytes_base64` says that `key` is the base64 of a key of bytes.
        """
        if (
            key is not None
            and payload is not None
            and not properties
            and event_time is None
            and ordering_key is None
            and not key_bytes_base64
        ):
            self._add_keyed(payload, sequence_id, key)
            return
        metadata = self._member  # Filled again and again: a third of the cost of making one each time.
        metadata.Clear()
        metadata.payload_size = 0 if payload is None else len(payload)
        metadata.sequence_id = sequence_id
        if key is not None:
            metadata.partition_key = key
            if key_bytes_base64:
                metadata.partition_key_b64_encoded = True
        if ordering_key is not None:
            metadata.ordering_key = ordering_key
        if properties:
            add = metadata.properties.add
            for name, value in properties.items():
                add(key=name, value=value)
        if event_time is not None:
            metadata.event_time = event_time
        if payload is None:
            metadata.null_value = True
        self.add_encoded(metadata.SerializeToString(), payload or b"", sequence_id)

    def _add_keyed(self, payload: bytes, sequence_id: int, key: str) -> None:
        """Add a member with a key, as keyed streams are made of: a third of the cost of the general way."""
        key_bytes = _key_fields.get(key)
        if key_bytes is None:
            key_bytes = _key_field(key)
        high = sequence_id >> 14
        if high == 0:
            id_bytes = varint(sequence_id)
        else:
            if high != self._high:
                self._high, self._high_bytes = high, varint(high)
            id_bytes = _low_varint_bytes()[sequence_id & 0x3FFF] + self._high_bytes
        head = _plain_heads[len(id_bytes)][len(payload)]
        size = len(head) - 4 + len(id_bytes) + len(key_bytes)
        self._parts += (_SIZE.pack(size), key_bytes, head[4:], id_bytes, payload)
        self._count(1, len(key_bytes) + len(payload), sequence_id, sequence_id)

    def add_encoded(self, metadata: bytes, payload: Buffer, sequence_id: int) -> None:
        """Add a member whose SingleMessageMetadata is serialized already."""
        self._parts += (_SIZE.pack(len(metadata)), metadata, bytes(payload))
        self._count(1, len(metadata) + len(payload), sequence_id, sequence_id)

    def payload(self) -> bytes:
        """The members, one after another: what is to be compressed and sent."""
        return b"".join(self._parts)


Member: TypeAlias = tuple[int, int, int]
"""Where a member lies in the payload of its batch: its metadata start, its payload starts, both end."""


def index_batch(payload: bytes, count: int) -> list[Member]:
    """Find the `count` members of an uncompressed batch, without reading what else their metadata tell.

    Raises:
        BatchCorrupt: the payload does not hold them.
    """
    members: list[Member] = []
    append = members.append
    known: dict[bytes, tuple[int, int]] = {}
    start = 0
    for _ in range(count):
        # The size of the metadata, the tag and two bytes of the payload's size tell both sizes, as long
        # as the latter is written on two bytes at most. Batches repeat few such beginnings.
        head = payload[start : start + 7]
        try:
            to_payload, to_next = known[head]
        except KeyError:
            metadata_size, payload_size = _member_sizes(payload, start)
            to_payload = 4 + metadata_size
            to_next = to_payload + payload_size
            if head[4:5] == _PAYLOAD_SIZE_TAG and payload_size < 0x4000:
                known[head] = to_payload, to_next
        following = start + to_next
        append((start + 4, start + to_payload, following))
        start = following
    if start > len(payload):
        raise BatchCorrupt(f"batch of {len(payload)} bytes ends inside one of its {count} messages")
    return members


def batch_payloads(payload: bytes, count: int) -> list[bytes]:
    """The payloads of the `count` members of an uncompressed batch.

    Raises:
        BatchCorrupt: the payload does not hold them.
    """
    return [payload[start:end] for _, start, end in index_batch(payload, count)]


def _member_sizes(payload: bytes, start: int) -> tuple[int, int]:
    """The sizes of the metadata and of the payload of the member at `start`."""
    metadata_start = start + 4
    if metadata_start > len(payload):
        raise BatchCorrupt(f"batch of {len(payload)} bytes ends before one of its messages")
    size: int = _SIZE.unpack_from(payload, start)[0]
    end = metadata_start + size
    if end > len(payload):
        raise BatchCorrupt(f"metadata of {size} bytes point past the end of a batch of {len(payload)}")
    payload_size = _skip_to_payload_size(payload, metadata_start, end)
    if payload_size is None:
        payload_size = read_single_metadata(payload[metadata_start:end]).payload_size
        if payload_size < 0:
            raise BatchCorrupt(f"message of {payload_size} bytes in a batch")
    return size, payload_size


def _skip_to_payload_size(payload: bytes, offset: int, end: int) -> int | None:
    """The payload's size, past short properties and a short key; None if it does not stand there.

    A quarter of the cost of parsing the metadata, which a consumer may never look at.
    """
    while offset < end - 1:
        tag, length = payload[offset], payload[offset + 1]
        if tag == 0x0A or tag == 0x12:  # Properties and the key stand before the size.
            if length >= 0x80:
                return None
            offset += 2 + length
        elif tag != 0x18:
            return None
        elif length < 0x80:
            return length
        elif offset < end - 2 and payload[offset + 2] < 0x80:
            return length & 0x7F | payload[offset + 2] << 7
        else:
            return None
    return None


def read_single_metadata(data: bytes) -> SingleMessageMetadata:
    """Parse the metadata of a member.

    Raises:
        BatchCorrupt: they do not parse, or do not tell the payload's size.
    """
    try:
        metadata = SingleMessageMetadata.FromString(data)
    except DecodeError as error:
        raise BatchCorrupt(f"metadata of a message in a batch do not parse: {error}") from None
    if not metadata.HasField("payload_size"):
        raise BatchCorrupt("metadata of a message in a batch lack its size")
    return metadata


def open_batch(metadata: MessageMetadata, payload: Buffer, *, limit: int = MAX_UNCOMPRESSED_BYTES) -> bytes:
    """The payload of a message, decompressed.

    Raises:
        BatchUnopenable: it is encrypted.
        CompressionError: it is not what its metadata say.
    """
    if metadata.encryption_keys:
        raise BatchUnopenable("payload is encrypted, and keys are held by clients only")
    return decompress(metadata.compression, payload, metadata.uncompressed_size, limit=limit)


def iterate_batch(
    metadata: MessageMetadata, payload: Buffer, *, limit: int = MAX_UNCOMPRESSED_BYTES
) -> Iterator[tuple[SingleMessageMetadata, memoryview]]:
    """The members of a batch, in order, decompressed first.

    Raises:
        BatchUnopenable, CompressionError, BatchCorrupt: at the first step, whatever is wrong.
    """
    data = open_batch(metadata, payload, limit=limit)
    members = index_batch(data, metadata.num_messages_in_batch)
    view = memoryview(data)
    for metadata_start, payload_start, end in members:
        yield read_single_metadata(data[metadata_start:payload_start]), view[payload_start:end]


def cut_batch(
    data: Buffer, keep: Callable[[int, int], bool], *, limit: int = MAX_UNCOMPRESSED_BYTES
) -> bytes:
    """A stored batch without the members that `keep(index, sequence id)` refuses.

    For the rare batch that straddles a deduplication mark. `data` is a message from its 0x0e01 on, as
    is the result, whose sequence ids, count and checksum are its own. At least one member must be kept.

    Raises:
        BatchUnopenable: it is no batch, encrypted, corrupt, or does not tell the sequence id of each
            member; the message says which.
    """
    try:
        split = split_message(data, verify=False)
        metadata = split.metadata
        if not metadata.HasField("num_messages_in_batch"):
            raise BatchUnopenable("it is a single message, which cannot be cut")
        payload = open_batch(metadata, split.payload, limit=limit)
        members = index_batch(payload, metadata.num_messages_in_batch)
        singles = [read_single_metadata(payload[start:end]) for start, end, _ in members]
    except BatchUnopenable:
        raise
    except ProtocolError as error:
        raise BatchUnopenable(f"batch cannot be cut: {error}") from error
    batch = BatchBuilder()
    sequence_ids = _sequence_ids(metadata, singles)
    for index, (start, payload_start, end) in enumerate(members):
        if keep(index, sequence_ids[index]):
            batch.add_encoded(payload[start:payload_start], payload[payload_start:end], sequence_ids[index])
    if batch.count == 0:
        raise ValueError("a batch of which nothing is kept is a duplicate, not a batch to cut")
    rest = batch.payload()
    metadata.num_messages_in_batch = batch.count
    metadata.sequence_id = batch.first_sequence_id
    metadata.highest_sequence_id = batch.last_sequence_id
    if metadata.HasField("uncompressed_size"):
        metadata.uncompressed_size = len(rest)
    return build_message(metadata, compress(metadata.compression, rest))


def _sequence_ids(metadata: MessageMetadata, singles: Sequence[SingleMessageMetadata]) -> list[int]:
    """The sequence id of each member, told by itself or by a batch whose ids leave no gap."""
    if all(single.HasField("sequence_id") for single in singles):
        return [single.sequence_id for single in singles]
    lowest, highest = metadata.sequence_id, metadata.highest_sequence_id
    if highest - lowest + 1 == len(singles):
        return list(range(lowest, highest + 1))
    raise BatchUnopenable("the sequence ids of its members cannot be told")
