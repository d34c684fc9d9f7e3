"""Where an entry lies in a topic's log."""

from __future__ import annotations

from typing import Final, NamedTuple


class Position(NamedTuple):
    """An entry of a topic: which ledger, and which entry of it. Ordered as appended.

    `(ledger, -1)` stands just before the first entry of that ledger. A tuple, because positions are keys and
    are compared on every hot path.
    """

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @property
    def following(self) -> Position:
        """The next entry id in the same ledger, whether or not it exists."""
        return Position(self.ledger_id, self.entry_id + 1)

    @property
    def preceding(self) -> Position:
        """The entry id before it in the same ledger; -1 before the first."""
        return Position(self.ledger_id, self.entry_id - 1)


EARLIEST: Final = Position(-1, -1)
"""Before everything."""

LATEST: Final = Position(2**63 - 1, 2**63 - 1)
"""After everything."""
