"""An entry as a topic's log hands it out."""

from __future__ import annotations

from magnetar.managed_ledger.position import Position
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.entry import split_entry, wrap_entry


class Entry:
    """One entry: a message, or a batch of them. Shared between readers, so never changed."""

    __slots__ = ("broker_timestamp", "data", "index", "position")

    def __init__(self, position: Position, data: bytes, index: int, broker_timestamp: int) -> None:
        self.position = position
        self.data = data
        """From 0x0e01 on, without the broker entry metadata."""
        self.index = index
        """The topic-wide index of the entry's last message; -1 where it was stored without one."""
        self.broker_timestamp = broker_timestamp
        """When the broker took it, in milliseconds since 1970; -1 where it was stored without."""

    @property
    def raw(self) -> bytes:
        """As it is stored: the broker entry metadata (0x0e02), then `data`."""
        if self.index < 0 and self.broker_timestamp < 0:
            return self.data
        return wrap_entry(max(0, self.broker_timestamp), max(0, self.index)) + self.data

    def __repr__(self) -> str:
        return f"Entry({self.position}, {len(self.data)} bytes, index={self.index})"


def stored_entry(position: Position, payload: Buffer) -> Entry:
    """The entry whose stored form is `payload`.

    Raises:
        ProtocolError: the broker entry metadata before it cannot be read.
    """
    split = split_entry(payload)
    return Entry(
        position,
        bytes(split.message),
        -1 if split.index is None else split.index,
        -1 if split.broker_timestamp is None else split.broker_timestamp,
    )
