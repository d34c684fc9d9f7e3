"""Entries without receipts, in the order they were made: what to resend, and what never again. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from magnetar.client.outgoing import Entry
from magnetar.protocol.batch import cut_batch


class ReceiptOutOfStep(Exception):
    """A receipt for something behind the oldest entry: receipts come in order, so one was lost."""


@dataclass(frozen=True, slots=True)
class Settled:
    """An entry of which the broker has, after a reconnection, said that it stored the first messages."""

    entry: Entry
    duplicates: int
    """How many of its messages are stored already."""
    finished: bool
    """Whether that is all of them, and the entry has left the outbox."""


class Outbox:
    """The queue between sending and receipt."""

    __slots__ = ("_entries", "messages")

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self.messages = 0
        """How many messages the entries hold."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    @property
    def oldest(self) -> Entry | None:
        """The entry whose receipt comes next."""
        return self._entries[0] if self._entries else None

    def push(self, entry: Entry) -> None:
        """Add an entry that has been, or will be, sent."""
        self._entries.append(entry)
        self.messages += entry.num_messages

    def take(self, sequence_id: int) -> Entry | None:
        """The oldest entry, if a receipt for `sequence_id` is its; None for a late receipt.

        Raises:
            ReceiptOutOfStep: it is for an entry behind the oldest.
        """
        if not self._entries or sequence_id < self._entries[0].sequence_id:
            return None
        if sequence_id > self._entries[0].sequence_id:
            raise ReceiptOutOfStep(
                f"receipt for {sequence_id} while {self._entries[0].sequence_id} is the oldest message without one"
            )
        return self._pop()

    def take_failed(self, sequence_id: int) -> Entry | None:
        """The oldest entry, if an error for `sequence_id`, which names its highest, is its."""
        oldest = self.oldest
        if oldest is None or sequence_id not in (oldest.sequence_id, oldest.highest_id):
            return None
        return self._pop()

    def settle(self, last_sequence_id: int) -> list[Settled]:
        """Drop what the broker says, at a connect, that it has: everything up to `last_sequence_id`.

        A batch that lies across it is cut to its later messages. Nothing at or below it is ever sent
        again, which is what makes a replay exact where deduplication is on.
        """
        settled = []
        while self._entries and self._entries[0].highest_id <= last_sequence_id:
            entry = self._pop()
            settled.append(Settled(entry, entry.num_messages, finished=True))
        oldest = self.oldest
        if oldest is not None and oldest.sequence_id <= last_sequence_id:
            dropped = cut_entry(oldest, last_sequence_id)
            self.messages -= dropped
            settled.append(Settled(oldest, dropped, finished=False))
        return settled

    def clear(self) -> list[Entry]:
        """Take everything out."""
        entries = list(self._entries)
        self._entries.clear()
        self.messages = 0
        return entries

    def _pop(self) -> Entry:
        entry = self._entries.popleft()
        self.messages -= entry.num_messages
        return entry


def cut_entry(entry: Entry, last_sequence_id: int) -> int:
    """Shorten a batch to its messages above `last_sequence_id`; return how many went.

    Raises:
        BatchUnopenable: it cannot be read.
    """
    kept: list[int] = []

    def keep(_index: int, sequence_id: int) -> bool:
        if sequence_id <= last_sequence_id:
            return False
        kept.append(sequence_id)
        return True

    entry.message = (b"", cut_batch(b"".join(entry.message), keep))
    dropped = entry.num_messages - len(kept)
    entry.num_messages = len(kept)
    entry.sequence_id = kept[0]
    return dropped
