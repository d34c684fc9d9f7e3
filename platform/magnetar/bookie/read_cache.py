"""The read cache: what read-ahead has brought up, least recently used out first. Belongs to the loop."""

from __future__ import annotations

from collections import OrderedDict

from magnetar.bookie.write_cache import ENTRY_OVERHEAD


class ReadCache:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self.bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, ledger_id: int, entry_id: int) -> bytes | None:
        key = (ledger_id, entry_id)
        entry = self._entries.get(key)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries.move_to_end(key)
        return entry

    def put(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        self.drop(ledger_id, entry_id)
        self._entries[ledger_id, entry_id] = entry
        self.bytes += len(entry) + ENTRY_OVERHEAD
        while self.bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= len(oldest) + ENTRY_OVERHEAD

    def drop(self, ledger_id: int, entry_id: int) -> None:
        """Forget an entry, because a newer version of it was added."""
        entry = self._entries.pop((ledger_id, entry_id), None)
        if entry is not None:
            self.bytes -= len(entry) + ENTRY_OVERHEAD

    def drop_ledger(self, ledger_id: int) -> None:
        for key in [key for key in self._entries if key[0] == ledger_id]:
            self.drop(*key)
