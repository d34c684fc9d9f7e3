"""The write cache: entries on their way from the journal to the entry log, and the first place reads look.

Two halves: `active` takes adds while `flushing` is written out. Belongs to the loop; the storage thread reads a half that
has been swapped out, which nobody changes any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.ledger_entry import ENTRY_HEADER_BYTES

Parts = tuple[bytes, ...]
"""A stored entry: its 36-byte header, then its payload in one or more pieces, as they came."""

_PARTS_MAX: Final = 6

ENTRY_OVERHEAD: Final = 250
"""What the interpreter takes for an entry besides its bytes, roughly."""


def stored_form(parts: Sequence[Buffer]) -> Parts:
    """The header by itself, then the payload; bytes that come that way already are kept as they are."""
    if 1 < len(parts) <= _PARTS_MAX and len(parts[0]) == ENTRY_HEADER_BYTES:
        for part in parts:
            if type(part) is not bytes:
                break
        else:
            return tuple(parts)  # type: ignore[arg-type]  # All bytes, as just found.
        return bytes(parts[0]), b"".join(parts[1:])
    whole = parts[0] if len(parts) == 1 else b"".join(parts)
    return bytes(whole[:ENTRY_HEADER_BYTES]), bytes(whole[ENTRY_HEADER_BYTES:])


class CacheHalf:
    __slots__ = ("bytes", "count", "ledgers")

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, Parts]] = {}
        self.bytes = 0
        self.count = 0

    def sorted_entries(self) -> Iterator[tuple[int, int, Parts]]:
        for ledger_id in sorted(self.ledgers):
            entries = self.ledgers[ledger_id]
            rising = sorted(entries)
            yield from zip(repeat(ledger_id), rising, map(entries.__getitem__, rising))


class WriteCache:
    def __init__(self, half_bytes: int) -> None:
        self._half_bytes = half_bytes
        self.active = CacheHalf()
        self.flushing: CacheHalf | None = None

    def has_room(self, size: int) -> bool:
        """Whether an entry of `size` bytes fits; an empty half takes any."""
        active = self.active
        return active.bytes + size <= self._half_bytes or not active.count

    @property
    def is_pressed(self) -> bool:
        """Whether the active half fills up while the other is still being flushed."""
        return self.flushing is not None and self.active.bytes > self._half_bytes // 2

    def put(self, ledger_id: int, entry_id: int, parts: Parts, size: int) -> None:
        """Keep an entry. The same entry again replaces the first."""
        half = self.active
        entries = half.ledgers.get(ledger_id)
        if entries is None:
            entries = half.ledgers[ledger_id] = {}
        before = len(entries)
        previous = entries.get(entry_id)
        entries[entry_id] = parts
        if len(entries) > before:
            half.count += 1
            half.bytes += size + ENTRY_OVERHEAD
        elif previous is not None:
            half.bytes += size - sum(map(len, previous))

    def put_run(self, entries: Sequence[tuple[int, int, int, int, Parts]], start: int) -> int:
        """Keep (ledger, entry, LAC, bytes, parts) from `start` on while they fit; returns where those begin that do not."""
        half, room = self.active, self._half_bytes
        ledgers, count, total = half.ledgers, half.count, half.bytes
        place = start
        for place in range(start, len(entries)):
            ledger_id, entry_id, _, size, parts = entries[place]
            if total + size > room and count:
                break
            held = ledgers.get(ledger_id)
            if held is None:
                held = ledgers[ledger_id] = {}
            previous = held.get(entry_id)
            held[entry_id] = parts
            if previous is None:
                count += 1
                total += size + ENTRY_OVERHEAD
            else:
                total += size - sum(map(len, previous))
        else:
            place = len(entries)
        half.count, half.bytes = count, total
        return place

    def get(self, ledger_id: int, entry_id: int) -> Parts | None:
        entries = self.active.ledgers.get(ledger_id)
        if entries is not None:
            parts = entries.get(entry_id)
            if parts is not None:
                return parts
        if self.flushing is not None:
            entries = self.flushing.ledgers.get(ledger_id)
            if entries is not None:
                return entries.get(entry_id)
        return None

    def entry_ids(self, ledger_id: int) -> set[int]:
        found = set(self.active.ledgers.get(ledger_id, ()))
        if self.flushing is not None:
            found.update(self.flushing.ledgers.get(ledger_id, ()))
        return found

    @property
    def bytes(self) -> int:
        return self.active.bytes + (self.flushing.bytes if self.flushing is not None else 0)

    def swap(self) -> CacheHalf:
        """The active half is to be flushed; an empty one takes its place. `flushed` ends it."""
        assert self.flushing is None, "one flush at a time"
        self.flushing, self.active = self.active, CacheHalf()
        return self.flushing

    def flushed(self) -> None:
        """The swapped-out half is in the entry log and the index: reads find it there."""
        self.flushing = None

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget a deleted ledger. A half being flushed keeps it until the flush is over."""
        entries = self.active.ledgers.pop(ledger_id, None)
        if entries is not None:
            self.active.count -= len(entries)
            for parts in entries.values():
                self.active.bytes -= sum(map(len, parts)) + ENTRY_OVERHEAD
