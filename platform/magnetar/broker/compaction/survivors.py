"""Which messages outlive a compaction: the last of each key. Pure.

Every message has an ordinal: its place among all that are read, the same each time they are read. A pass over
them tells `see` of each, and at its end one bit for each message says whether it stays. So many keys as are
allowed are remembered at a time; if there are more, a pass looks only at a part of them, by their hashes, and
another pass follows. That takes longer, and no more memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

_HASHES: Final = 1 << 32
_KEY_BYTES_KEPT: Final = 32
"""A longer key is remembered by a digest, which is made longer than any key that is not."""
_MASK: Final = _HASHES - 1
_LONG: Final = bytes(_KEY_BYTES_KEPT)
_CHUNKED_MAX: Final = 10_000
"""So many messages may be open at a time of which not all chunks have come."""


class Chunk(NamedTuple):
    """An entry that is a part of a message."""

    message: tuple[str, str]
    """Producer and uuid."""
    number: int
    of: int


class Survivors:
    """Call `begin`, then `see` for every message, then `end`; again and again until `complete`."""

    def __init__(self, keys_max: int, *, keep_keyless: bool = False) -> None:
        self._keys_max = max(1, keys_max)
        self._keep_keyless = keep_keyless
        self._latest: dict[bytes, int | tuple[int, ...]] = {}
        self._chunks: dict[tuple[str, str], list[int]] = {}
        self._bits = bytearray()
        self._low = 0
        self._width = _HASHES
        self._high = 0
        self.passes = 0
        self.kept_messages = 0

    @property
    def complete(self) -> bool:
        """Whether all keys have been looked at."""
        return self._low >= _HASHES

    def begin(self) -> None:
        """A pass over all messages begins."""
        self._latest.clear()
        self._chunks.clear()
        self._high = min(_HASHES, self._low + self._width)
        self.passes += 1

    def see(self, ordinal: int, messages: Sequence[tuple[bytes | None, bool] | None]) -> None:
        """The next messages, from `ordinal` on: key of each, and whether it is empty, which deletes the key."""
        latest, low, high, keys_max = self._latest, self._low, self._high, self._keys_max
        whole = low == 0 and high == _HASHES
        for at, message in enumerate(messages, ordinal):
            if message is None:
                continue
            key, empty = message
            if key is None:
                if self._keep_keyless:
                    self._keep(at)
                continue
            if len(key) > _KEY_BYTES_KEPT:
                key = _digest(key)
            if not whole and not low <= hash(key) & _MASK < high:
                continue
            if empty:
                latest.pop(key, None)
                continue
            latest[key] = at
            if len(latest) > keys_max:
                self._narrow()
                latest, low, high = self._latest, self._low, self._high
                whole = False

    def see_chunk(self, ordinal: int, key: bytes | None, chunk: Chunk) -> None:
        """The next entry, which is a part of a message."""
        gathered = self._gather(ordinal, chunk)
        if gathered is None:
            return
        if key is None:
            if self._keep_keyless:
                self._keep(gathered)
            return
        kept_as = key if len(key) <= _KEY_BYTES_KEPT else _digest(key)
        if self._low <= hash(kept_as) & _MASK < self._high:
            self._latest[kept_as] = gathered

    def see_opaque(self, ordinal: int, places: int) -> None:
        """Messages that cannot be looked into stay."""
        for at in range(ordinal, ordinal + places):
            self._keep(at)

    def end(self) -> None:
        """The pass is over: what it found to be the last of its key stays."""
        for value in self._latest.values():
            self._keep(value)
        for ordinals in self._chunks.values():
            self._keep(tuple(ordinals))  # Its other chunks may come after what is compacted now.
        self._latest.clear()
        self._chunks.clear()
        self._low = self._high

    def stays(self, ordinal: int) -> bool:
        """Whether a message outlives the compaction. Holds once `complete`."""
        place = ordinal >> 3
        return place < len(self._bits) and bool(self._bits[place] >> (ordinal & 7) & 1)

    def these_stay(self, ordinal: int, number: int) -> list[bool]:
        """The same for `number` messages from `ordinal` on."""
        first, last = ordinal >> 3, (ordinal + number + 7) >> 3
        bits = int.from_bytes(self._bits[first:last], "little") >> (ordinal & 7)
        return [bool(bits >> at & 1) for at in range(number)]

    def _keep(self, value: int | tuple[int, ...]) -> None:
        for ordinal in (value,) if isinstance(value, int) else value:
            place, bit = ordinal >> 3, 1 << (ordinal & 7)
            if place >= len(self._bits):
                self._bits.extend(bytes(max(place + 1 - len(self._bits), len(self._bits) // 8)))
            if not self._bits[place] & bit:
                self._bits[place] |= bit
                self.kept_messages += 1

    def _gather(self, ordinal: int, chunk: Chunk) -> tuple[int, ...] | None:
        """All chunks of a message, once the last has come.

        A producer that came back may have sent some once more: consumers pass these over, or begin again at the first.
        """
        if chunk.number == 0:
            self._chunks.pop(chunk.message, None)
            if len(self._chunks) >= _CHUNKED_MAX:
                del self._chunks[next(iter(self._chunks))]
        ordinals = self._chunks.setdefault(chunk.message, [])
        if chunk.number < len(ordinals):
            return None
        if chunk.number > len(ordinals):
            del self._chunks[chunk.message]  # One before it is missing: nobody is ever given this message.
            return None
        ordinals.append(ordinal)
        if chunk.number < chunk.of - 1:
            return None
        del self._chunks[chunk.message]
        return tuple(ordinals)

    def _narrow(self) -> None:
        """Too many keys: leave half of them to a later pass."""
        while len(self._latest) > self._keys_max and self._high - self._low > 1:
            self._width = (self._high - self._low) // 2
            self._high = self._low + self._width
            self._latest = {
                key: value for key, value in self._latest.items() if hash(key) & _MASK < self._high
            }


def _digest(key: bytes) -> bytes:
    return _LONG + blake2b(key, digest_size=16).digest()
