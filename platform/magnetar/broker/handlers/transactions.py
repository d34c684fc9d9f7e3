"""Transactions are not enabled: every command of theirs says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from magnetar.broker.errors import NotAllowed

if TYPE_CHECKING:
    from magnetar.broker.connection import Connection


async def refuse(connection: Connection, body: Any) -> None:
    """
    Raises:
        NotAllowed: always.
    """
    raise NotAllowed("transactions are not enabled on this broker: use producers and consumers without them")
