"""Entries that the index knows of and that were found damaged: counted as missing until they are mended."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

_MAX: Final = 100_000
_NONE: Final = frozenset[int]()


class DamagedEntries:
    """Belongs to the loop. Bounded: what is not noted any more will be found again."""

    def __init__(self) -> None:
        self._by_ledger: dict[int, set[int]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for ledger_id, entries in self._by_ledger.items():
            for entry_id in entries:
                yield ledger_id, entry_id

    def of(self, ledger_id: int) -> Set[int]:
        return self._by_ledger.get(ledger_id, _NONE)

    def note(self, ledger_id: int, entry_id: int) -> None:
        entries = self._by_ledger.setdefault(ledger_id, set())
        if entry_id not in entries and self._count < _MAX:
            entries.add(entry_id)
            self._count += 1

    def mended(self, ledger_id: int, entry_id: int) -> None:
        entries = self._by_ledger.get(ledger_id)
        if entries is not None and entry_id in entries:
            entries.remove(entry_id)
            self._count -= 1
            if not entries:
                del self._by_ledger[ledger_id]

    def drop_ledger(self, ledger_id: int) -> None:
        self._count -= len(self._by_ledger.pop(ledger_id, ()))
