"""Sets of entry ids of one ledger, as bitmaps: ten million holes in twenty million entries take 3 MB. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

CHUNK_BITS: Final = 4096
CHUNK_BYTES: Final = CHUNK_BITS // 8
_SHIFT: Final = 12
_WITHIN: Final = CHUNK_BITS - 1
FULL: Final = b"\xff" * CHUNK_BYTES
"""Stands for every chunk that is full, and is never changed."""
_ALL: Final = (1 << CHUNK_BITS) - 1


class EntryRanges:
    """A set of ids that lie close together, each at least 0. It is cut into chunks of 4096: none, some or all of one."""

    __slots__ = ("_base", "_chunks", "_count")

    def __init__(self) -> None:
        self._base = 0
        """The number of the first chunk kept."""
        self._chunks: list[bytearray | bytes | None] = []
        """None: nothing of it; `FULL`: all of it."""
        self._count = 0

    def __bool__(self) -> bool:
        return self._count > 0

    def __contains__(self, entry_id: int) -> bool:
        at = (entry_id >> _SHIFT) - self._base
        if not 0 <= at < len(self._chunks):
            return False
        chunk = self._chunks[at]
        within = entry_id & _WITHIN
        return chunk is not None and bool(chunk[within >> 3] & (1 << (within & 7)))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges the ids form, first and last of each."""
        start: int | None = None
        for number, bits in self._bits():
            first = number << _SHIFT
            at = 0
            while at < CHUNK_BITS:
                if start is None:
                    rest = bits >> at
                    if not rest:
                        break
                    at += _lowest(rest)
                    start = first + at
                at += _lowest(~(bits >> at))
                if at < CHUNK_BITS:
                    yield start, first + at - 1
                    start = None
        if start is not None:
            yield start, ((self._base + len(self._chunks)) << _SHIFT) - 1

    def _bits(self) -> Iterator[tuple[int, int]]:
        for number, chunk in enumerate(self._chunks, self._base):
            yield number, 0 if chunk is None else _ALL if chunk is FULL else int.from_bytes(chunk, "little")

    @property
    def range_count(self) -> int:
        """How many ranges the ids form. Looks at all chunks."""
        number = carry = 0
        for _, bits in self._bits():
            number += (bits & ~(bits << 1 | carry)).bit_count()
            carry = bits >> (CHUNK_BITS - 1)
        return number

    @property
    def chunk_count(self) -> int:
        return len(self._chunks)

    def count(self) -> int:
        """How many ids."""
        return self._count

    def next_outside(self, entry_id: int) -> int:
        """The first id at or after `entry_id` that is not in the set."""
        while True:
            at = (entry_id >> _SHIFT) - self._base
            if not 0 <= at < len(self._chunks):
                return entry_id
            chunk = self._chunks[at]
            if chunk is None:
                return entry_id
            within = entry_id & _WITHIN
            free = CHUNK_BITS if chunk is FULL else within + _lowest(~(_value(chunk) >> within))
            if free < CHUNK_BITS:
                return entry_id - within + free
            entry_id += CHUNK_BITS - within

    # Changes.

    def add_one(self, entry_id: int) -> bool:
        """Include an id. False if it was there."""
        at = (entry_id >> _SHIFT) - self._base
        if not 0 <= at < len(self._chunks):
            at = self._room_for(entry_id >> _SHIFT)
        chunk = self._chunks[at]
        if chunk is None:
            chunk = self._chunks[at] = bytearray(CHUNK_BYTES)
        within = entry_id & _WITHIN
        byte, bit = within >> 3, 1 << (within & 7)
        known = chunk[byte]
        if known & bit:
            return False
        assert isinstance(chunk, bytearray)
        chunk[byte] = known | bit
        if known | bit == 0xFF and chunk == FULL:
            self._chunks[at] = FULL
        self._count += 1
        return True

    def add(self, start: int, end: int) -> int:
        """Include `start` to `end`. Returns how many of them are new."""
        new = 0
        while start <= end:
            within = start & _WITHIN
            size = min(end - start + 1, CHUNK_BITS - within)
            new += self.merge(start >> _SHIFT, ((1 << size) - 1) << within)
            start += size
        return new

    def merge(self, number: int, bits: int) -> int:
        """Include the ids of chunk `number` whose bits are set. Returns how many are new."""
        if not bits:
            return 0
        at = number - self._base
        if not 0 <= at < len(self._chunks):
            at = self._room_for(number)
        known = _value(self._chunks[at])
        together = known | bits
        new = together.bit_count() - known.bit_count()
        if new:
            self._chunks[at] = _chunk(together)
            self._count += new
        return new

    def drop_through(self, entry_id: int) -> int:
        """Leave out everything up to `entry_id`. Returns how many ids that were."""
        whole = min(max(((entry_id + 1) >> _SHIFT) - self._base, 0), len(self._chunks))
        dropped = sum(_value(chunk).bit_count() for chunk in self._chunks[:whole])
        del self._chunks[:whole]
        self._base += whole
        if self._chunks and (entry_id + 1) >> _SHIFT == self._base:
            within = (entry_id + 1) & _WITHIN
            known = _value(self._chunks[0])
            left = known >> within << within
            if left != known:
                dropped += known.bit_count() - left.bit_count()
                self._chunks[0] = _chunk(left)
        self._count -= dropped
        while self._chunks and self._chunks[0] is None:
            del self._chunks[0]
            self._base += 1
        return dropped

    def drop_from(self, entry_id: int) -> int:
        """Leave out `entry_id` and everything behind it. Returns how many ids that were."""
        at = (max(entry_id, 0) >> _SHIFT) - self._base
        dropped = 0
        if at < 0:
            at = 0
        elif at < len(self._chunks):
            known = _value(self._chunks[at])
            left = known & ((1 << (max(entry_id, 0) & _WITHIN)) - 1)
            dropped = known.bit_count() - left.bit_count()
            self._chunks[at] = _chunk(left)
            at += 1
        dropped += sum(_value(chunk).bit_count() for chunk in self._chunks[at:])
        del self._chunks[at:]
        self._count -= dropped
        return dropped

    def _room_for(self, number: int) -> int:
        """Have a place for chunk `number`. Returns where it is."""
        if not self._chunks:
            self._base = number
            self._chunks.append(None)
        elif number < self._base:
            self._chunks[:0] = [None] * (self._base - number)
            self._base = number
        else:
            self._chunks += [None] * (number - self._base - len(self._chunks) + 1)
        return number - self._base

    # Storing.

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Each chunk that is not empty: its number, and its bits, id `number * 4096 + n` being bit n."""
        return ((number, bits) for number, bits in self._bits() if bits)


def _lowest(bits: int) -> int:
    """The place of the lowest bit that is set."""
    return (bits & -bits).bit_length() - 1


def _value(chunk: bytearray | bytes | None) -> int:
    return 0 if chunk is None else int.from_bytes(chunk, "little")


def _chunk(bits: int) -> bytearray | bytes | None:
    if not bits:
        return None
    return FULL if bits == _ALL else bytearray(bits.to_bytes(CHUNK_BYTES, "little"))
