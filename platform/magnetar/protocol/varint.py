"""Protobuf's variable-length integers, for the one loop that packs them by hand (`batch.py`)."""

from __future__ import annotations

MASK_64 = 0xFFFF_FFFF_FFFF_FFFF


def varint(number: int) -> bytes:
    """`number`, which is not negative and below 2**64, as protobuf writes it."""
    if number < 0x80:
        return bytes((number,))
    packed = bytearray()
    while number >= 0x80:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)
