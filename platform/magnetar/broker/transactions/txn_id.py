"""The name of a transaction."""

from __future__ import annotations

from typing import Final, NamedTuple

from magnetar.broker.errors import TransactionNotFound

COORDINATORS: Final = 16
"""How many coordinators a cluster has unless its settings say otherwise. Source: Pulsar's default."""


class TxnId(NamedTuple):
    """Which transaction: its coordinator's number, and that coordinator's running number, which begins at 1."""

    most: int
    least: int

    def __str__(self) -> str:
        return f"({self.most},{self.least})"  # As Pulsar writes it, and its administration tools read it.


def named(most: int, least: int) -> TxnId:
    """The transaction that a client names.

    Raises:
        TransactionNotFound: no coordinator counts so far.
    """
    if max(most, least) >= 1 << 63:
        raise TransactionNotFound(f"there is no transaction ({most},{least})")
    return TxnId(most, least)
