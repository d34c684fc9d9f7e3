"""Who is told when an entry is stored, or is not: a future a message, or one for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from magnetar.protocol.ids import MessageId

DUPLICATE = MessageId(-1, -1)
"""The id of a message that the broker had already, under the same producer name and sequence id."""


class Recipients(Protocol):
    """Whoever waits for an entry."""

    def stored(self, ids: Sequence[MessageId], entry: MessageId) -> None:
        """The entry is stored at `entry`; `ids` are its messages'. Both may be `DUPLICATE`."""
        ...

    def duplicates(self, count: int) -> None:
        """The first `count` messages were stored before, and have been taken out of the entry."""
        ...

    def failed(self, error: Exception) -> None:
        """The entry is not stored, as far as is known."""
        ...


class Nobody:
    """Nobody waits for any chunk of a message but the last."""

    __slots__ = ()

    def stored(self, ids: Sequence[MessageId], entry: MessageId) -> None:
        """Nobody to tell."""

    def duplicates(self, count: int) -> None:
        """Nobody to tell."""

    def failed(self, error: Exception) -> None:
        """Nobody to tell."""


class EachMessage:
    """A future for each message."""

    __slots__ = ("_futures",)

    def __init__(self, futures: Sequence[asyncio.Future[MessageId]]) -> None:
        self._futures = futures

    def stored(self, ids: Sequence[MessageId], entry: MessageId) -> None:
        """Tell each its id."""
        for future, message_id in zip(self._futures, ids, strict=True):
            if not future.done():
                future.set_result(message_id)

    def duplicates(self, count: int) -> None:
        """Tell the first, and keep the others waiting."""
        for future in self._futures[:count]:
            if not future.done():
                future.set_result(DUPLICATE)
        self._futures = self._futures[count:]

    def failed(self, error: Exception) -> None:
        """Tell each why."""
        for future in self._futures:
            if not future.done():
                future.set_exception(error)


class WholeBatch:
    """One future for all messages of a batch, told their ids."""

    __slots__ = ("_duplicates", "_future")

    def __init__(self, future: asyncio.Future[list[MessageId]], duplicates: int) -> None:
        self._future = future
        self._duplicates = duplicates

    def stored(self, ids: Sequence[MessageId], entry: MessageId) -> None:
        """Tell all ids, those of duplicates first."""
        if not self._future.done():
            self._future.set_result([DUPLICATE] * self._duplicates + list(ids))

    def duplicates(self, count: int) -> None:
        """Remember them until the rest is stored."""
        self._duplicates += count

    def failed(self, error: Exception) -> None:
        """Tell why."""
        if not self._future.done():
            self._future.set_exception(error)


class EntryAlone:
    """One future, told the entry's own id."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[MessageId]) -> None:
        self._future = future

    def stored(self, ids: Sequence[MessageId], entry: MessageId) -> None:
        """Tell where."""
        if not self._future.done():
            self._future.set_result(entry)

    def duplicates(self, count: int) -> None:
        """The rest's place will be told."""

    def failed(self, error: Exception) -> None:
        """Tell why."""
        if not self._future.done():
            self._future.set_exception(error)
