"""How much may be on its way at one time: publishes of a connection, bytes of all of them."""

from __future__ import annotations

from typing import Protocol


class Throttled(Protocol):
    """A connection that can be told to stop reading."""

    def resume_publishing(self) -> None:
        """There is room again."""
        ...


class PublishBudget:
    """The memory of messages received and not yet stored, over all connections.

    Whoever takes it over the limit stops reading, and goes on when half of it is free again. Messages that
    were read already are still taken, so that the bound is exceeded by one read of each connection at most.
    """

    __slots__ = ("_limit_bytes", "_waiting", "pauses", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._waiting: dict[Throttled, None] = {}
        self.used_bytes = 0
        self.pauses = 0
        """How often a connection had to stop for it."""

    def take(self, size: int, connection: Throttled) -> bool:
        """Account for a message. False: the connection must stop reading until it is resumed."""
        self.used_bytes += size
        if self.used_bytes <= self._limit_bytes:
            return True
        if connection not in self._waiting:
            self._waiting[connection] = None
            self.pauses += 1
        return False

    def give_back(self, size: int) -> None:
        """A message is stored, or was refused."""
        self.used_bytes -= size
        if self._waiting and self.used_bytes <= self._limit_bytes // 2:
            waiting, self._waiting = list(self._waiting), {}
            for connection in waiting:
                connection.resume_publishing()

    def leave(self, connection: Throttled) -> None:
        """A connection is gone. What it has on its way is given back as it is stored."""
        self._waiting.pop(connection, None)
