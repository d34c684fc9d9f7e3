"""Which transactions have ended, as a topic or a subscription knows: what comes late for them is refused. Pure.

Each coordinator says, with every end it announces, below which number all of its transactions have ended
everywhere (its low watermark). Above that the ended ones are remembered one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from magnetar.broker.transactions.txn_id import TxnId

REMEMBERED_MAX = 100_000


class EndedTransactions:
    """Low watermarks, and single transactions above them."""

    def __init__(self) -> None:
        self.watermarks: dict[int, int] = {}
        """By coordinator: everything up to and with this number has ended."""
        self._above: dict[int, dict[int, None]] = {}
        self._count = 0

    def __contains__(self, txn: TxnId) -> bool:
        return txn.least <= self.watermarks.get(txn.most, 0) or txn.least in self._above.get(txn.most, ())

    def __len__(self) -> int:
        """How many are remembered one by one."""
        return self._count

    def __iter__(self) -> Iterator[TxnId]:
        return iter([TxnId(most, least) for most, above in self._above.items() for least in above])

    def singly(self, txn: TxnId) -> bool:
        """Whether it is remembered by itself: its own end was told here."""
        return txn.least in self._above.get(txn.most, ())

    def add(self, txn: TxnId) -> None:
        """A transaction has ended."""
        if txn in self:
            return
        above = self._above.setdefault(txn.most, {})
        above[txn.least] = None
        self._count += 1
        if self._count > REMEMBERED_MAX:  # Some transaction has been open for very long.
            del above[next(iter(above))]
            self._count -= 1

    def raise_watermark(self, most: int, least: int) -> bool:
        """A coordinator says that everything up to and with `least` has ended. Returns whether that is news."""
        if least <= self.watermarks.get(most, 0):
            return False
        self.watermarks[most] = least
        above = self._above.get(most)
        if above:
            kept = {each: None for each in above if each > least}
            self._count -= len(above) - len(kept)
            self._above[most] = kept
        return True

    def restore(self, watermarks: Mapping[int, int], above: Iterable[TxnId]) -> None:
        """Begin from what was stored."""
        for most, least in watermarks.items():
            self.raise_watermark(most, least)
        for txn in above:
            self.add(txn)
