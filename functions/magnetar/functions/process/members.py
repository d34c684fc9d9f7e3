"""The members of a batch, read and written by hand: the two loops that run for every message.

A member is a 4-byte size, SingleMessageMetadata of that size, and the payload. Only what is needed is decoded: the
payload's size. Everything else of a member's metadata stays bytes until somebody asks (`message.py`), and what is
forwarded to the output is copied as bytes. Source: Pulsar binary protocol, "Batch messages"; SingleMessageMetadata:
properties 1, partition_key 2, payload_size 3, compacted_out 4, event_time 5, partition_key_b64_encoded 6,
ordering_key 7, sequence_id 8, null_value 9, null_partition_key 10.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from functools import cache

from magnetar.functions.errors import EntryMalformed

INPUT_TOPIC_PROPERTY = "__pfn_input_topic__"
INPUT_MESSAGE_ID_PROPERTY = "__pfn_input_msg_id__"
_OWN_PROPERTIES = b"__pfn_input_"

_SIZE = struct.Struct(">I")
_SIZES = [_SIZE.pack(size) for size in range(1024)]
_PAYLOAD_SIZE = 0x18
_EVENT_TIME = 0x28
_SEQUENCE_ID = 0x40
_PROPERTY = 0x0A
_KEY = 0x12
_FORWARDED = frozenset((_PROPERTY, _KEY, _EVENT_TIME, 0x30, 0x3A))
"""properties, key, event time, whether the key is base64, ordering key"""


def varint(value: int) -> bytes:
    """`value`, not negative, as protobuf writes it."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """The value at `position`, and the position after it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise EntryMalformed("a varint of more than 10 bytes")


_VARINTS = [varint(value) for value in range(16384)]
_SIZE_FIELDS = [bytes((_PAYLOAD_SIZE,)) + encoded for encoded in _VARINTS]


Metadata = bytes | int
"""A member's raw metadata; or, where there is nothing in it but sizes and a sequence id, only where it begins."""


def split_batch(data: bytes, count: int) -> tuple[list[bytes], list[Metadata]]:
    """The payloads and the metadata of a batch's members.

    Raises:
        EntryMalformed: there are fewer than `count`, or a size points past the end.
    """
    payloads: list[bytes] = []
    metadata: list[Metadata] = []
    unpack_size = _SIZE.unpack_from
    position = 0
    try:
        for _ in range(count):
            start = position + 4
            end = start + unpack_size(data, position)[0]
            # Nearly every member begins with its payload size, in one or two bytes, and ends with a sequence id.
            if data[start] == _PAYLOAD_SIZE:
                size = data[start + 1]
                after = start + 2
                if size >= 0x80:
                    size += (data[after] << 7) - 0x80
                    after += 1
                    if data[after - 1] >= 0x80:
                        size, after = read_varint(data, start + 1)
                plain = after == end or data[after] == _SEQUENCE_ID
            else:
                plain = False
                size = _payload_size(data[start:end])
            position = end + size
            metadata.append(start if plain else data[start:end])
            payloads.append(data[end:position])
    except (struct.error, IndexError):
        raise EntryMalformed(
            f"a batch of {len(data)} bytes ends inside member {len(payloads)} of {count}"
        ) from None
    if position > len(data):
        raise EntryMalformed(
            f"the last of {count} members points {position - len(data)} bytes past the batch"
        )
    return payloads, metadata


def raw_metadata(metadata: Metadata, data: bytes) -> bytes:
    """A member's metadata as bytes, also where only its place in the batch `data` was kept."""
    if isinstance(metadata, bytes):
        return metadata
    return data[metadata : metadata + _SIZE.unpack_from(data, metadata - 4)[0]]


def fields_of(metadata: bytes) -> Iterator[tuple[int, int, int, int, int]]:
    """Each field of protobuf bytes: tag, where it starts, where its value starts and ends, its value if a number."""
    position, end = 0, len(metadata)
    while position < end:
        start = position
        tag, position = read_varint(metadata, position)
        wire_type = tag & 7
        value = 0
        value_start = position
        if wire_type == 0:
            value, position = read_varint(metadata, position)
        elif wire_type == 2:
            size, value_start = read_varint(metadata, position)
            position = value_start + size
        elif wire_type == 1:
            position += 8
        elif wire_type == 5:
            position += 4
        else:
            raise EntryMalformed(f"message metadata with wire type {wire_type}")
        if position > end:
            raise EntryMalformed("message metadata with a field past its end")
        yield tag, start, value_start, position, value


def _payload_size(metadata: bytes) -> int:
    position = 0
    while True:  # Properties and key come first, each shorter than 128 bytes nearly always.
        tag = metadata[position]
        if tag in (0x0A, 0x12):
            size = metadata[position + 1]
            position += 2 + size
            if size >= 0x80:
                size, after = read_varint(metadata, position - 1 - size)
                position = after + size
        elif tag == 0x18:
            size = metadata[position + 1]
            return size if size < 0x80 else read_varint(metadata, position + 1)[0]
        else:
            break
    for tag, _, _, _, value in fields_of(metadata):
        if tag == _PAYLOAD_SIZE:
            return value
    raise EntryMalformed("a message without a payload size")


def forwarded_fields(metadata: bytes) -> tuple[bytes, bytes]:
    """What of a member's metadata a result takes over: key and properties, then event time and the like.

    In two parts, because payload size stands between them. What an earlier function said of its input is left out.
    """
    position = kept_from = 0
    kept = b""
    try:
        while (tag := metadata[position]) in (0x0A, 0x12):  # property, key
            size = metadata[position + 1]
            if size >= 0x80:
                return _forwarded_slowly(metadata)
            if tag == 0x0A and metadata.startswith(_OWN_PROPERTIES, position + 4):
                kept += metadata[kept_from:position]
                kept_from = position + 2 + size
            position += 2 + size
        if tag == _PAYLOAD_SIZE:
            kept += metadata[kept_from:position]
            position += 2
            while metadata[position - 1] >= 0x80:
                position += 1
            if position == len(metadata) or metadata[position] == _SEQUENCE_ID:
                return kept, b""
    except IndexError:
        return _forwarded_slowly(metadata)
    return _forwarded_slowly(metadata)


def _forwarded_slowly(metadata: bytes) -> tuple[bytes, bytes]:
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for tag, start, _, end, _ in fields_of(metadata):
        field = metadata[start:end]
        if tag in _FORWARDED and not (tag == _PROPERTY and _OWN_PROPERTIES in field[:20]):
            parts[tag not in (_PROPERTY, _KEY)].append(field)
    return b"".join(parts[0]), b"".join(parts[1])


def key_of(metadata: Metadata) -> bytes | None:
    """A member's key as it travels; None if it has none."""
    if isinstance(metadata, bytes):
        for tag, _, start, end, _ in fields_of(metadata):
            if tag == _KEY:
                return metadata[start:end]
    return None


def property_field(key: str, value: bytes) -> bytes:
    """One property of SingleMessageMetadata."""
    name = key.encode()
    pair = b"\x0a" + varint(len(name)) + name + b"\x12" + varint(len(value)) + value
    return b"\x0a" + varint(len(pair)) + pair


def source_fields(
    topic_field: bytes, ledger_id: int, entry_id: int, partition: int, count: int
) -> list[bytes]:
    """For each message of an entry, the properties that name it as the input of a result.

    The id is MessageIdData in standard base64: Apache's Python writes the url-safe kind, which its own worker
    cannot always read. Its batch index comes first, in three bytes together with what follows it, so that all but
    four letters are the same for the whole entry.
    """
    place = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    if partition >= 0:
        place += b"\x18" + varint(partition)
    if count == 1:
        return [topic_field + property_field(INPUT_MESSAGE_ID_PROPERTY, b2a_base64(place, newline=False))]
    fields: list[bytes] = []
    for low, high, rest in ((0, 0x80, place[1:]), (0x80, 0x4000, place)):
        letters = b2a_base64(rest, newline=False)
        head = topic_field + property_field(INPUT_MESSAGE_ID_PROPERTY, b"????" + letters)[: -4 - len(letters)]
        fields += [head + ordinal + letters for ordinal in _ordinal_letters()[low : min(count, high)]]
    for ordinal in range(0x4000, count):
        encoded = b2a_base64(b"\x20" + varint(ordinal) + place, newline=False)
        fields.append(topic_field + property_field(INPUT_MESSAGE_ID_PROPERTY, encoded))
    return fields


@cache
def _ordinal_letters() -> list[bytes]:
    """The first three bytes of an id as base64: batch index, and below 128 the tag that comes after it."""
    short = [b2a_base64(bytes((0x20, ordinal, 0x08)), newline=False) for ordinal in range(0x80)]
    return short + [b2a_base64(b"\x20" + _VARINTS[ordinal], newline=False) for ordinal in range(0x80, 0x4000)]


SEQUENCE_SHIFT = 8
"""A result's sequence id is its input's broker index, shifted to leave room for an output's ordinal."""
_SEQUENCE_MIDDLE = [bytes((_SEQUENCE_ID, 0x80, 0x80 | low << 1)) for low in range(64)]


def sequence_fields(first_index: int, count: int) -> list[bytes]:
    """The sequence id fields of `count` messages from `first_index` on.

    index << 8 as a varint: seven zero bits, then the low six of the index, then all others, which are the same for
    64 messages in a row.
    """
    fields: list[bytes] = []
    index, end = first_index, first_index + count
    while index < end:
        high, low = index >> 6, index & 63
        run = min(64 - low, end - index)
        if high:
            tail = varint(high)
            fields += [middle + tail for middle in _SEQUENCE_MIDDLE[low : low + run]]
        else:
            fields += [
                bytes((_SEQUENCE_ID,)) + varint(i << SEQUENCE_SHIFT) for i in range(index, index + run)
            ]
        index += run
    return fields


def join_members(payloads: Sequence[bytes], befores: Sequence[bytes], afters: Sequence[bytes]) -> bytes:
    """The payload of a batch.

    Args:
        payloads: of its members.
        befores: of each, the fields of its metadata that come before the payload size: properties and key.
        afters: of each, those that come after it: event time to sequence id.
    """
    chunks: list[bytes] = []
    for payload, before, after in zip(payloads, befores, afters, strict=True):
        size = len(payload)
        fields = before + (_SIZE_FIELDS[size] if size < 16384 else b"\x18" + varint(size)) + after
        length = len(fields)
        chunks += (_SIZES[length] if length < 1024 else _SIZE.pack(length), fields, payload)
    return b"".join(chunks)
