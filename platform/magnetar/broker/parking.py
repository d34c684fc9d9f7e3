"""Requests that wait until it is known who serves what: a bounded number of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.errors import TooManyRequests

if TYPE_CHECKING:
    from types import TracebackType


class Parking:
    """Room for requests that wait. Waiting is quicker for clients than to be refused: then they back off."""

    __slots__ = ("_places", "parked", "turned_away")

    def __init__(self, places: int) -> None:
        self._places = places
        self.parked = 0
        self.turned_away = 0

    def __enter__(self) -> None:
        """
        Raises:
            TooManyRequests: so many wait already that no more may.
        """
        if self.parked >= self._places:
            self.turned_away += 1
            raise TooManyRequests(f"{self.parked} requests wait already until it is known who serves what")
        self.parked += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.parked -= 1
