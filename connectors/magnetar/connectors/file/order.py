"""A file's rows in the order of some of their columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable

from magnetar.connectors.errors import MalformedRecord
from magnetar.connectors.file.rows import Row, Rows

Rank = tuple[int, float | str]
"""Numbers come first and in their own order, then texts, then what has no value."""
NO_VALUE: Rank = (2, "")


class SortedRows:
    """The rows of a file sorted by `columns`, equal ones as they lie; found by ordinal.

    The file is read twice: once for its order, of which only an offset a row is kept, and once for the rows.
    """

    def __init__(
        self, rows: Rows, columns: tuple[str, ...], on_malformed: Callable[[MalformedRecord], None]
    ) -> None:
        self._rows = rows
        self._starts = _sorted_starts(rows, columns, on_malformed)

    def __len__(self) -> int:
        return len(self._starts)

    def row(self, ordinal: int) -> Row:
        self._rows.seek(self._starts[ordinal])
        row = self._rows.next()
        assert row is not None  # It was there a moment ago; a file cut meanwhile ends the source.
        return row


def _sorted_starts(
    rows: Rows, columns: tuple[str, ...], on_malformed: Callable[[MalformedRecord], None]
) -> array[int]:
    ranks: dict[
        object, Rank
    ] = {}  # Columns repeat their values; one rank object each saves most of the memory.
    keyed: list[tuple[tuple[Rank, ...], int]] = []
    rows.seek(rows.first)
    while True:
        try:
            row = rows.next()
        except MalformedRecord as error:
            on_malformed(error)
            continue
        if row is None:
            break
        key = []
        for column in columns:
            value = row.fields.get(column)
            known = value if isinstance(value, Hashable) else str(value)
            rank = ranks.get(known)
            if rank is None:
                rank = ranks[known] = _rank(value)
            key.append(rank)
        keyed.append((tuple(key), row.start))
    keyed.sort()
    return array("Q", (start for _, start in keyed))


def _rank(value: object) -> Rank:
    if value is None or value == "":
        return NO_VALUE
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return (1, str(value))
    return (0, number) if math.isfinite(number) else (1, str(value))
