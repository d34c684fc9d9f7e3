"""Where a reader begins, or a seek has led: which of the first entries are to be skipped. Pure.

A broker begins at an entry, for it knows nothing of the members of a batch; and it begins with the
entry named, whether that is wanted or only what follows it.
"""

from __future__ import annotations

from magnetar.protocol.ids import EARLIEST, LATEST, MessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata


class StartFilter:
    """The start of a subscription. A reader's also remembers how far it has come.

    A durable subscription needs it after a seek only, and no longer than until it has moved on: what
    comes again later is a redelivery and wanted.
    """

    def __init__(
        self, start: MessageId | None = None, *, inclusive: bool = False, reader: bool = False
    ) -> None:
        self._start = start
        self._inclusive = inclusive
        self._reader = reader
        self._since_ms: int | None = None
        self._pinned: MessageId | None = None
        self._consumed: MessageId | None = None

    @property
    def from_message(self) -> MessageId | None:
        """What a reader asks the broker to begin with, now."""
        return self._consumed or self._pinned or self._start

    @property
    def needs_pin(self) -> bool:
        """Whether "latest" has yet to become a position, lest a reconnection move it."""
        return self._reader and self.from_message == LATEST

    def pin(self, position: MessageId) -> None:
        """The position that "latest" means."""
        self._pinned = position

    def is_behind(self, last: MessageId, mark_delete: MessageId | None) -> bool:
        """Whether a topic whose last message is `last` holds something not consumed yet.

        `mark_delete`, where the broker's cursor stands, decides where the start was a time.
        """
        if last.entry_id < 0:
            return False  # Nothing, or nothing any more.
        behind = self._consumed or self._pinned
        if behind is not None:
            return last[:2] > behind[:2]
        start = self._start
        if start is None or self._since_ms is not None:
            return mark_delete is None or last[:2] > mark_delete[:2]
        if last[:2] != start[:2]:
            return last[:2] > start[:2]
        if start.batch_index < 0 or self._inclusive:
            return self._inclusive
        return last.batch_index > start.batch_index

    def moved_to(self, target: MessageId | int, *, inclusive: bool) -> None:
        """A seek has been done."""
        self._consumed = self._pinned = None
        if isinstance(target, MessageId):
            self._start, self._inclusive, self._since_ms = target, inclusive, None
        else:
            self._start, self._inclusive = (EARLIEST if self._reader else None), True
            self._since_ms = target if self._reader else None

    def consumed(self, entry: MessageId) -> None:
        """An entry was handed out."""
        if self._reader:
            self._consumed = entry

    def skip(self, entry: MessageId, metadata: MessageMetadata, broker_timestamp: int | None) -> int | None:
        """How many members at the beginning of an entry are to be skipped; None: all of it."""
        if self._since_ms is not None:
            if (broker_timestamp or metadata.publish_time) < self._since_ms:
                return None
            self._since_ms = None  # What follows counts even if its clock ran behind.
        behind = self._consumed or self._pinned
        if behind is not None:
            return None if entry[:2] <= behind[:2] else 0
        start = self._start
        if start is None or start in (EARLIEST, LATEST):
            return 0
        if entry[:2] == start[:2]:
            if start.batch_index < 0:
                return 0 if self._inclusive else None
            return start.batch_index if self._inclusive else start.batch_index + 1
        if not self._reader:
            self._start = None  # The subscription is elsewhere now.
            return 0
        return 0 if entry[:2] > start[:2] else None
