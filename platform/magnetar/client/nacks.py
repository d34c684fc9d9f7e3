"""Entries a consumer wants again a little later. Pure: the consumer owns the timer."""

from __future__ import annotations

from magnetar.client.acknowledgements import Place
from magnetar.protocol.ids import MessageId


class NegativeAcknowledgements:
    """Entries by the time at which the broker is to be asked for them."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._due: dict[Place, tuple[float, MessageId]] = {}  # In order of time, as all wait equally long.

    def __len__(self) -> int:
        return len(self._due)

    def add(self, message_id: MessageId, now: float) -> None:
        """Ask for an entry again when the delay is over."""
        self._due.setdefault(message_id[:2], (now + self._delay_s, message_id.entry))

    def discard(self, place: Place) -> None:
        """It was acknowledged after all."""
        self._due.pop(place, None)

    @property
    def next_due(self) -> float | None:
        """When the first of them is due."""
        for due, _ in self._due.values():
            return due
        return None

    def take_due(self, now: float) -> list[MessageId]:
        """Take out the entries whose time has come."""
        taken = []
        for due, message_id in self._due.values():
            if due > now:
                break
            taken.append(message_id)
        for message_id in taken:
            del self._due[message_id[:2]]
        return taken

    def clear(self) -> None:
        """Forget everything."""
        self._due.clear()
