"""Which entries of a topic may be seen: none from the first of an open transaction on, none of an aborted one. Pure.

Entries and markers are told in the order of the log, whether they are just stored or read again. Telling one twice
changes nothing, so that a replay may begin before the place where the state told by `encode` was taken.
"""

from __future__ import annotations

from array import array
from base64 import b85decode, b85encode
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from magnetar.broker.transactions.ended import EndedTransactions
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.managed_ledger import Position

FORMAT: Final = 1
_IDS_PER_PROPERTY: Final = 2000

Key = TypeVar("Key")


class AbortedTransactions:
    """The aborted ones whose entries may still be there: 16 bytes each.

    An aborted transaction's last entry lies before its marker, so that it can be forgotten with the marker's ledger.
    """

    def __init__(self) -> None:
        self._ids: dict[int, array[int]] = {}
        """By coordinator, the running numbers in order."""
        self._ledgers: dict[int, array[int]] = {}
        """Beside each the ledger of its marker."""
        self._count = 0
        self._oldest = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, txn: TxnId) -> bool:
        ids = self._ids.get(txn.most)
        if ids is None:
            return False
        at = bisect_left(ids, txn.least)
        return at < len(ids) and ids[at] == txn.least

    def __iter__(self) -> Iterator[tuple[TxnId, int]]:
        """Each with the ledger of its marker."""
        for most, ids in self._ids.items():
            for least, ledger_id in zip(ids, self._ledgers[most], strict=True):
                yield TxnId(most, least), ledger_id

    def add(self, txn: TxnId, marker_ledger: int) -> None:
        ids = self._ids.setdefault(txn.most, array("q"))
        at = bisect_left(ids, txn.least)
        if at < len(ids) and ids[at] == txn.least:
            return
        ids.insert(at, txn.least)
        self._ledgers.setdefault(txn.most, array("q")).insert(at, marker_ledger)
        self._oldest = min(self._oldest, marker_ledger) if self._count else marker_ledger
        self._count += 1

    def forget_before(self, first_ledger: int) -> int:
        """The log begins with `first_ledger` now. Returns how many were forgotten."""
        if not self._count or self._oldest >= first_ledger:
            return 0
        before = self._count
        kept = [(txn, ledger_id) for txn, ledger_id in self if ledger_id >= first_ledger]
        self._ids, self._ledgers, self._count = {}, {}, 0
        for txn, ledger_id in kept:
            self.add(txn, ledger_id)
        return before - self._count


class Visibility:
    """What a topic's transaction buffer knows."""

    def __init__(self) -> None:
        self.open: dict[TxnId, Position] = {}
        """Each with its first entry, in the order of these."""
        self.last_entry: dict[TxnId, Position] = {}
        self.aborted = AbortedTransactions()
        self.ended = EndedTransactions()
        self.through = Position(-1, -1)
        """The last entry that was told."""

    @property
    def limit(self) -> Position | None:
        """The first entry that nobody may see yet; None: everything may be seen."""
        for first in self.open.values():
            return first
        return None

    def hides(self, txn: TxnId) -> bool:
        """Whether an entry of that transaction, before `limit`, is nobody's."""
        return txn in self.aborted

    def entry(self, txn: TxnId, position: Position) -> bool:
        """An entry of a transaction is in the log. Returns whether the transaction is open by that only now."""
        if position <= self.through:
            return False
        self.through = position
        if txn in self.aborted or self.ended.singly(txn):
            return False
        self.last_entry[txn] = position
        if txn in self.open:
            return False
        self.open[txn] = position
        return True

    def marker(self, txn: TxnId, position: Position, *, commit: bool) -> None:
        """The transaction's end is in the log."""
        if position <= self.through:
            return
        self.through = position
        self.settle(txn, position, commit=commit)

    def settle(self, txn: TxnId, position: Position, *, commit: bool) -> None:
        """The transaction has ended; all its entries lie at or before `position`."""
        self.open.pop(txn, None)
        self.last_entry.pop(txn, None)
        if not commit:
            self.aborted.add(txn, position.ledger_id)
        self.ended.add(txn)

    def passed(self, position: Position) -> None:
        """An entry without a transaction was read again."""
        self.through = max(self.through, position)

    @property
    def orphans(self) -> list[TxnId]:
        """Open here though their coordinators say that they have ended, and everybody concerned was told."""
        watermarks = self.ended.watermarks
        return [txn for txn in self.open if txn.least <= watermarks.get(txn.most, 0)]

    # Kept with a cursor, whose properties are texts with a number each.

    def encode(self) -> dict[str, int]:
        """The state, as properties."""
        told = {
            "format": FORMAT,
            "through.ledger": self.through.ledger_id,
            "through.entry": self.through.entry_id,
        }
        for txn, first in self.open.items():
            last = self.last_entry.get(txn, first)
            told[f"open:{txn.most}:{txn.least}:{first.ledger_id}:{first.entry_id}:{last.ledger_id}"] = (
                last.entry_id
            )
        for most, least in self.ended.watermarks.items():
            told[f"watermark:{most}"] = least
        for most, ids in _grouped(sorted(self.ended)):
            told[f"ended:{most}:{_packed(ids)}"] = len(ids)
        by_place = sorted(((txn.most, ledger_id), txn.least) for txn, ledger_id in self.aborted)
        for (most, ledger_id), ids in _grouped(by_place):
            told[f"aborted:{most}:{ledger_id}:{_packed(ids)}"] = len(ids)
        return told

    @classmethod
    def decode(cls, properties: Mapping[str, int]) -> Visibility:
        """The state that `encode` told; a new one where there are no properties.

        Raises:
            ValueError: they are of a format this software does not know.
        """
        state = cls()
        if not properties:
            return state
        if properties.get("format") != FORMAT:
            raise ValueError(f"transaction buffer of format {properties.get('format')}; known is {FORMAT}")
        state.through = Position(properties["through.ledger"], properties["through.entry"])
        opened: list[tuple[Position, TxnId, Position]] = []
        for name, number in properties.items():
            kind, _, rest = name.partition(":")
            if kind == "open":
                most, least, ledger_id, entry_id, last_ledger = map(int, rest.split(":"))
                opened.append(
                    (Position(ledger_id, entry_id), TxnId(most, least), Position(last_ledger, number))
                )
            elif kind == "watermark":
                state.ended.raise_watermark(int(rest), number)
        for name in properties:
            kind, _, rest = name.partition(":")
            if kind == "ended":
                most_text, _, packed = rest.partition(":")
                for least in _unpacked(packed):
                    state.ended.add(TxnId(int(most_text), least))
            elif kind == "aborted":
                most_text, ledger_text, packed = rest.split(":", 2)
                for least in _unpacked(packed):
                    state.aborted.add(TxnId(int(most_text), least), int(ledger_text))
        for first, txn, last in sorted(opened):
            state.open[txn] = first
            state.last_entry[txn] = last
        return state


def _grouped(pairs: Iterable[tuple[Key, int]]) -> Iterator[tuple[Key, list[int]]]:
    """The numbers of each key, so many at a time as one property takes; `pairs` are in order."""
    key: Key | None = None
    ids: list[int] = []
    for each, number in pairs:
        if ids and (each != key or len(ids) == _IDS_PER_PROPERTY):
            assert key is not None
            yield key, ids
            ids = []
        key = each
        ids.append(number)
    if ids:
        assert key is not None
        yield key, ids


def _packed(ids: Sequence[int]) -> str:
    """Rising numbers as text: the distances between them, in seven bits a byte."""
    packed = bytearray()
    before = 0
    for each in ids:
        distance, before = each - before, each
        while distance > 0x7F:
            packed.append(distance & 0x7F | 0x80)
            distance >>= 7
        packed.append(distance)
    return b85encode(bytes(packed)).decode()


def _unpacked(packed: str) -> Iterator[int]:
    number = distance = shift = 0
    for byte in b85decode(packed):
        distance |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            number += distance
            yield number
            distance = shift = 0
