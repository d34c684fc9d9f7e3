"""The tails of all logs in memory, under one bound.

An entry comes in when it is appended and somebody reads along, and leaves when the slowest of those readers
has passed it, or when memory runs short: then the log that holds most gives first.
"""

from __future__ import annotations

from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.position import Position

DEFAULT_MAX_BYTES = 64 * 1024 * 1024

ENTRY_OVERHEAD_BYTES = 200
_EVICT_TO = 0.9


class EntryCache:
    """The memory that all logs share."""

    __slots__ = ("_tails", "evicted", "hits", "max_bytes", "misses", "size")

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self.hits = 0
        """Entries found."""
        self.misses = 0
        """Reads that had to go to bookies."""
        self.evicted = 0
        """Entries that left for want of memory."""
        self._tails: dict[TailCache, None] = {}

    def tail(self) -> TailCache:
        """Room for one log."""
        tail = TailCache(self)
        self._tails[tail] = None
        return tail

    def forget(self, tail: TailCache) -> None:
        self._tails.pop(tail, None)

    def make_room(self) -> None:
        """Evict until well below the bound."""
        target = int(self.max_bytes * _EVICT_TO)
        while self.size > target:
            largest = max(self._tails, key=lambda tail: tail.size)
            self.evicted += largest.evict(self.size - target)


class TailCache:
    """The latest entries of one log: a run of each ledger, without gaps."""

    __slots__ = ("_cache", "_runs", "size")

    def __init__(self, cache: EntryCache) -> None:
        self._cache = cache
        self._runs: list[_Run] = []
        """Of rising ledger ids. Few: all but the last belong to ledgers just rolled."""
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    def insert(self, entry: Entry) -> None:
        """Keep the entry that was just appended."""
        ledger_id, entry_id = entry.position
        runs = self._runs
        if not runs or runs[-1].ledger_id != ledger_id:
            runs.append(_Run(ledger_id, entry_id))
        run = runs[-1]
        if run.end != entry_id:
            self._resize(-run.clear(entry_id))  # There was nobody to read along for a while.
        run.entries.append(entry)
        self._resize(len(entry.data) + ENTRY_OVERHEAD_BYTES)
        if self._cache.size > self._cache.max_bytes:
            self._cache.make_room()

    def read(self, ledger_id: int, first: int, last: int, max_bytes: int) -> list[Entry]:
        """The entries kept from `first` on, none if `first` is not kept; at least one if it is."""
        for run in self._runs:
            if run.ledger_id == ledger_id:
                found = run.read(first, last)
                if found:
                    self._cache.hits += len(found)
                    return within(found, max_bytes)
                break
        self._cache.misses += 1
        return []

    def drop_before(self, ledger_id: int, entry_id: int) -> None:
        """Every reader has passed what lies before this entry."""
        runs = self._runs
        while runs and runs[0].ledger_id < ledger_id:
            self._resize(-runs.pop(0).clear(0))
        if runs and runs[0].ledger_id == ledger_id:
            self._resize(-runs[0].drop_before(entry_id))

    def evict(self, wanted: int) -> int:
        """Give up the oldest entries, `wanted` bytes or all. Returns how many entries."""
        number = 0
        while wanted > 0 and self._runs:
            run = self._runs[0]
            dropped, size = run.evict(wanted)
            number += dropped
            wanted -= size
            self._resize(-size)
            if run.end == run.first:
                del self._runs[0]
        return number

    def clear(self) -> None:
        self._resize(-self.size)
        self._runs.clear()

    def close(self) -> None:
        self.clear()
        self._cache.forget(self)

    def _resize(self, by: int) -> None:
        self.size += by
        self._cache.size += by


class _Run:
    """Consecutive entries of one ledger. The front of the list is given up lazily."""

    __slots__ = ("_head", "entries", "first", "ledger_id")

    def __init__(self, ledger_id: int, first: int) -> None:
        self.ledger_id = ledger_id
        self.first = first
        """The id of the first entry kept."""
        self.entries: list[Entry] = []
        self._head = 0
        """Where in the list that entry is."""

    @property
    def end(self) -> int:
        """The id after the last entry kept."""
        return self.first + len(self.entries) - self._head

    def read(self, first: int, last: int) -> list[Entry]:
        if not self.first <= first < self.end:
            return []
        start = self._head + first - self.first
        return self.entries[start : start + last - first + 1]

    def drop_before(self, entry_id: int) -> int:
        """Returns the bytes dropped."""
        number = min(entry_id, self.end) - self.first
        return self._drop(number) if number > 0 else 0

    def evict(self, wanted: int) -> tuple[int, int]:
        """Drop from the front until `wanted` bytes are gone. Returns entries and bytes dropped."""
        number = size = 0
        while size < wanted and self._head + number < len(self.entries):
            size += len(self.entries[self._head + number].data) + ENTRY_OVERHEAD_BYTES
            number += 1
        return number, self._drop(number)

    def clear(self, next_entry: int) -> int:
        """Drop all and go on at `next_entry`. Returns the bytes dropped."""
        size = self._drop(self.end - self.first)
        self.first = next_entry
        return size

    def _drop(self, number: int) -> int:
        size = 0
        entries = self.entries
        for at in range(self._head, self._head + number):
            size += len(entries[at].data) + ENTRY_OVERHEAD_BYTES
        self._head += number
        self.first += number
        if self._head * 2 >= len(entries):
            del entries[: self._head]
            self._head = 0
        else:
            # Freed now; the list itself shrinks when half of it is empty.
            entries[self._head - number : self._head] = [_GONE] * number
        return size


_GONE = Entry(Position(-1, -1), b"", -1, -1)


def within(entries: list[Entry], max_bytes: int) -> list[Entry]:
    """As many of `entries` as fit, and at least one."""
    size = 0
    for number, entry in enumerate(entries):
        size += len(entry.data)
        if size > max_bytes and number:
            return entries[:number]
    return entries
