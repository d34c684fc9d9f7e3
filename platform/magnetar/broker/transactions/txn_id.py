"""The name of a transaction."""

from __future__ import annotations

from typing import Final, NamedTuple

COORDINATORS: Final = 16
"""How many coordinators a cluster has unless its settings say otherwise. Source: Pulsar's default."""


class TxnId(NamedTuple):
    """Which transaction: its coordinator's number, and that coordinator's running number, which begins at 1."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"  # As Pulsar writes it, and its administration tools read it.
