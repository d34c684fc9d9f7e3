"""Hashes that decide where a message goes: its partition, and its consumer of a Key_Shared subscription.

Source: Pulsar JavaStringHash, Murmur3Hash32, StickyKeyConsumerSelector.
"""

from __future__ import annotations

import base64
import binascii
from typing import Literal

from magnetar.protocol.pulsar_pb2 import MessageMetadata

KEY_SLOTS = 65536
"""How many slots the hashes of a Key_Shared subscription fall into."""

_MASK_32 = 0xFFFF_FFFF
_POSITIVE = 0x7FFF_FFFF
_SURROGATE_ESCAPE = "surrogateescape"


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`, its sign bit cleared: what Java and Go clients choose partitions by."""
    units = text.encode("utf-16-be", "surrogatepass")
    result = 0
    for index in range(0, len(units), 2):
        result = (31 * result + (units[index] << 8 | units[index + 1])) & _MASK_32
    return result & _POSITIVE


def murmur3_32(data: bytes, seed: int = 0) -> int:
    """MurmurHash3, 32 bits, x86 variant, its sign bit cleared."""
    result = seed
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        result ^= _mix(int.from_bytes(data[start : start + 4], "little"))
        result = (result << 13 | result >> 19) & _MASK_32
        result = (result * 5 + 0xE654_6B64) & _MASK_32
    if whole < len(data):
        result ^= _mix(int.from_bytes(data[whole:], "little"))
    result ^= len(data)
    result ^= result >> 16
    result = result * 0x85EB_CA6B & _MASK_32
    result ^= result >> 13
    result = result * 0xC2B2_AE35 & _MASK_32
    result ^= result >> 16
    return result & _POSITIVE


def _mix(block: int) -> int:
    block = block * 0xCC9E_2D51 & _MASK_32
    block = (block << 15 | block >> 17) & _MASK_32
    return block * 0x1B87_3593 & _MASK_32


def partition_for_key(
    key: str, partitions: int, scheme: Literal["java_string", "murmur3"] = "java_string"
) -> int:
    """The partition that messages of `key` go to; the default agrees with Java and Go clients."""
    if scheme == "java_string":
        return java_string_hash(key) % partitions
    return murmur3_32(key.encode("utf-8", _SURROGATE_ESCAPE)) % partitions


def sticky_key(metadata: MessageMetadata) -> bytes:
    """The bytes that choose the consumer of a Key_Shared subscription.

    The ordering key; else the key, decoded where it is base64; else producer and sequence id.
    """
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        key = _raw(metadata.partition_key)
        if metadata.partition_key_b64_encoded:
            try:
                return base64.b64decode(key, validate=True)
            except binascii.Error:
                return key  # Mislabelled by its producer: any stable choice will do.
        return key
    return b"%b-%d" % (_raw(metadata.producer_name), metadata.sequence_id)


def key_slot(key: bytes) -> int:
    """The slot of a sticky key, 1 to 65535. Source: StickyKeyConsumerSelector: 0 is never used."""
    return murmur3_32(key) % KEY_SLOTS or 1


def _raw(value: str) -> bytes:
    """The bytes of a string field, which need not be text."""
    raw: object = value
    return raw if isinstance(raw, bytes) else value.encode("utf-8", _SURROGATE_ESCAPE)
