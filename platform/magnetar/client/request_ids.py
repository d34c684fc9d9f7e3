"""Numbers by which a client tells its requests, producers and consumers apart."""

from __future__ import annotations

from itertools import count


class RequestIds:
    """Counters, one for each kind. A request's number is unique in the client, not in a connection."""

    __slots__ = ("_consumers", "_producers", "_requests")

    def __init__(self) -> None:
        self._requests = count(1)
        self._producers = count(1)
        self._consumers = count(1)

    def request(self) -> int:
        """A fresh request id."""
        return next(self._requests)

    def producer(self) -> int:
        """A fresh producer id."""
        return next(self._producers)

    def consumer(self) -> int:
        """A fresh consumer id."""
        return next(self._consumers)
