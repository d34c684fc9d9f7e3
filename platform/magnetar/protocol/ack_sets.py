"""Ack sets: which members of a batch are acknowledged.

A set is a list of signed 64-bit words, member `i` being bit `i % 64` of word `i // 64`; **1 means not
acknowledged yet**. Words that are missing at the end are 0: all acknowledged. An empty list in an
acknowledgement means the whole entry, which is the same thing. Source: Pulsar binary protocol, PIP-54.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_WORD_BITS = 64
_WORD_BYTES = 8


def all_unacked(size: int) -> list[int]:
    """The set of a batch of `size` members none of which is acknowledged."""
    return from_bits((1 << size) - 1)


def and_(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """What is acknowledged in either set is acknowledged in the result."""
    words = [a & b for a, b in zip(first, second, strict=False)]
    while words and words[-1] == 0:
        words.pop()
    return words


def is_empty(ack_set: Iterable[int]) -> bool:
    """Whether every member is acknowledged."""
    return not any(ack_set)


def count(ack_set: Iterable[int]) -> int:
    """How many members are not acknowledged yet."""
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in ack_set)


def is_unacked(ack_set: Sequence[int], index: int) -> bool:
    """Whether member `index` is not acknowledged yet."""
    word = index // _WORD_BITS
    return word < len(ack_set) and bool(ack_set[word] >> index % _WORD_BITS & 1)


def without(ack_set: Sequence[int], indexes: Iterable[int]) -> list[int]:
    """The set after acknowledging the members `indexes` too."""
    bits = to_bits(ack_set)
    for index in indexes:
        bits &= ~(1 << index)
    return from_bits(bits)


def unacked_from(index: int, size: int) -> list[int]:
    """The set of a batch of `size` members acknowledged up to, but without, member `index`."""
    return from_bits((1 << size) - (1 << index)) if index < size else []


def indexes(ack_set: Sequence[int]) -> list[int]:
    """The members not acknowledged yet, in order."""
    bits = to_bits(ack_set)
    return [index for index in range(bits.bit_length()) if bits >> index & 1]


def to_bits(ack_set: Sequence[int]) -> int:
    """The set as one integer, bit `i` for member `i`."""
    return int.from_bytes(
        b"".join(word.to_bytes(_WORD_BYTES, "little", signed=True) for word in ack_set), "little"
    )


def from_bits(bits: int) -> list[int]:
    """The set whose members are the bits of `bits`, without words of 0 at the end."""
    size = (bits.bit_length() + _WORD_BITS - 1) // _WORD_BITS
    data = bits.to_bytes(size * _WORD_BYTES, "little")
    return [
        int.from_bytes(data[start : start + _WORD_BYTES], "little", signed=True)
        for start in range(0, len(data), _WORD_BYTES)
    ]
