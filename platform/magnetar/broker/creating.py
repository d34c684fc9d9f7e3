"""A producer or consumer that is being made: it holds its place on the connection."""

from __future__ import annotations


class Creating:
    """Stands where the producer or consumer will stand."""

    __slots__ = ("cancelled",)

    def __init__(self) -> None:
        self.cancelled = False
        """The client has given up on it."""
