"""The batch a producer is filling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from magnetar.client.outgoing import OutgoingMessage
from magnetar.protocol.ids import MessageId

if TYPE_CHECKING:
    from magnetar.client.transactions import Transaction


class OpenBatch:
    """Messages, and a future for each, until the batch is sealed.

    Sequence ids follow one another unless told otherwise, and cost nothing then. The producer adds
    plain messages by itself, in the one place where a function call a message is worth sparing.
    """

    __slots__ = ("_bytes", "first_id", "futures", "ids", "messages", "most", "room", "transaction")

    def __init__(
        self, first_id: int, most_messages: int, most_bytes: int, transaction: Transaction | None = None
    ) -> None:
        self.transaction = transaction
        """What all of it belongs to."""
        self.messages: list[bytes | OutgoingMessage] = []
        self.futures: list[asyncio.Future[MessageId]] = []
        self.first_id = first_id
        self.ids: list[int] | None = None
        """The sequence ids, where they have gaps."""
        self.most = most_messages
        """How many messages it may hold."""
        self.room = most_bytes
        """How many bytes more it may hold."""
        self._bytes = most_bytes

    @property
    def charge(self) -> int:
        """What it takes of the memory budget."""
        return self._bytes - self.room

    @property
    def sequence_ids(self) -> Sequence[int]:
        """The sequence id of each message."""
        return self.ids or range(self.first_id, self.first_id + len(self.messages))

    def takes(self, sequence_id: int, size: int) -> bool:
        """Whether a message of this size and id may join: ids must increase."""
        return size <= self.room and sequence_id > self.sequence_ids[-1]

    def add(
        self,
        message: bytes | OutgoingMessage,
        sequence_id: int,
        size: int,
        future: asyncio.Future[MessageId],
    ) -> None:
        """Add a message."""
        if self.ids is None and sequence_id != self.first_id + len(self.messages):
            self.ids = list(self.sequence_ids)
        if self.ids is not None:
            self.ids.append(sequence_id)
        self.messages.append(message)
        self.futures.append(future)
        self.room -= size


def size_of(message: bytes | OutgoingMessage) -> int:
    """The size of a message's payload."""
    payload = message if isinstance(message, bytes) else message.payload
    return 0 if payload is None else len(payload)
