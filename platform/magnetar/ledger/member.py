"""A bookie in an ensemble that is being written to."""

from __future__ import annotations

from magnetar.ledger.surroundings import Surroundings


class Member:
    """A bookie in a slot of the ensemble, and how much it has not answered yet."""

    __slots__ = ("bookie", "connection", "lag", "lagging_bytes", "outstanding_bytes", "replaced", "slot")

    def __init__(self, slot: int, bookie: str, surroundings: Surroundings) -> None:
        self.slot = slot
        self.bookie = bookie
        self.connection = surroundings.bookies.connection(bookie)
        self.lag = surroundings.budget.of(bookie)
        self.outstanding_bytes = 0
        self.lagging_bytes = 0
        """Those of confirmed entries. Part of `outstanding_bytes`."""
        self.replaced = False

    def replace(self) -> None:
        """It is no longer in the ensemble: its copies are no longer waited for."""
        self.replaced = True
        self.lag.lagging_bytes -= self.lagging_bytes
        self.lagging_bytes = 0
