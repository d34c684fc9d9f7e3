"""Protobuf's variable-length integers, for the few commands that are packed by hand."""

from __future__ import annotations

from magnetar.protocol.buffers import Buffer

MASK_64 = 0xFFFF_FFFF_FFFF_FFFF

_ONE_BYTE = [bytes((number,)) for number in range(0x80)]
_TWO_BYTES = [bytes((number & 0x7F | 0x80, number >> 7)) for number in range(0x4000)]
"""Indexed by the number itself; those below 0x80 are written on one byte and never taken from here."""


def varint(number: int) -> bytes:
    """`number`, which is not negative and below 2**64, as protobuf writes it."""
    if number < 0x80:
        return _ONE_BYTE[number]
    if number < 0x4000:
        return _TWO_BYTES[number]
    packed = bytearray()
    while number >= 0x4000:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(packed) + _TWO_BYTES[number]


def signed_varint(number: int) -> bytes:
    """`number`, of 64 bits and either sign, as protobuf writes an int32, int64 or a uint64 of -1."""
    return varint(number & MASK_64)


def read_varint(data: Buffer, offset: int) -> tuple[int, int]:
    """The number at `offset`, and the offset after it.

    Raises:
        IndexError: the data end inside the number.
        ValueError: it goes on past ten bytes or does not fit 64 bits.
    """
    byte = data[offset]
    if byte < 0x80:
        return byte, offset + 1
    number = byte & 0x7F
    shift = 7
    while True:
        offset += 1
        byte = data[offset]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > MASK_64:
                raise ValueError("varint exceeds 64 bits")
            return number, offset + 1
        shift += 7
        if shift > 63:
            raise ValueError("varint exceeds ten bytes")
