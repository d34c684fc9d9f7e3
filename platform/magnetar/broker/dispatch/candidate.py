"""An entry on its way to a consumer, and the decision who that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar.protocol import ack_sets

if TYPE_CHECKING:
    from magnetar.broker.dispatch.member import Member
    from magnetar.managed_ledger import Position


class Candidate:
    """An entry that passed the filters."""

    __slots__ = ("ack_set", "chunk_last", "chunk_of", "entry", "key_hash", "messages", "position")

    def __init__(
        self,
        position: Position,
        messages: int,
        entry: Any = None,
        *,
        key_hash: int = 0,
        ack_set: list[int] | None = None,
        chunk_of: str | None = None,
        chunk_last: bool = False,
    ) -> None:
        self.position = position
        self.messages = messages
        """How many of its messages are still to be delivered; that many permits it costs."""
        self.entry = entry
        """Carried along, never looked at here."""
        self.key_hash = key_hash
        self.ack_set = ack_set
        """The members of a batch still unacknowledged, None if none was acknowledged."""
        self.chunk_of = chunk_of
        """Which chunked message this is a piece of."""
        self.chunk_last = chunk_last

    def keep(self, left: Sequence[int]) -> None:
        """A part of it was acknowledged before it could be sent."""
        self.ack_set = list(left)
        self.messages = ack_sets.count(left)


class Delivery(NamedTuple):
    """Send `candidate` to `member`."""

    member: Member
    candidate: Candidate
    redeliveries: int
    """How often it was sent before and given back by a consumer."""
