"""What a consumer has acknowledged and not yet told the broker. Pure: the consumer owns the timer."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from magnetar.protocol import ack_sets
from magnetar.protocol.ids import MessageId

Place: TypeAlias = tuple[int, int]
"""Ledger and entry."""
Positions: TypeAlias = list[tuple[MessageId, Sequence[int]]]
"""Entries as an ACK names them: each with its ack set, empty for the whole entry."""


@dataclass(slots=True)
class Untold:
    """Acknowledgements taken out of the group, about to be told."""

    individual: Positions = field(default_factory=list)
    cumulative: tuple[MessageId, Sequence[int]] | None = None
    through: MessageId | None = None
    """What `cumulative` was made of."""

    def __bool__(self) -> bool:
        return bool(self.individual) or self.cumulative is not None


class AcknowledgementGroup:
    """Gathers acknowledgements so that many travel in one command.

    A message of a batch acknowledges its bit; the entry is acknowledged as a whole when all of its
    messages are. Bits are kept per entry until then, told or not.
    """

    def __init__(self) -> None:
        self._whole: dict[Place, MessageId] = {}
        self._partial: dict[Place, tuple[MessageId, int]] = {}  # Bits: 1 = unacknowledged.
        self._changed: dict[Place, None] = {}  # Which partial ones have not been told as they are now.
        self._cumulative: tuple[MessageId, Sequence[int]] | None = None
        self._through: MessageId | None = None  # How far, since the connection was made.

    def __len__(self) -> int:
        return len(self._whole) + len(self._changed) + (self._cumulative is not None)

    def add_entries(self, ids: Iterable[MessageId]) -> None:
        """Acknowledge whole entries."""
        for message_id in ids:
            place = message_id[:2]
            self._whole[place] = message_id
            if self._partial:
                self._partial.pop(place, None)
                self._changed.pop(place, None)

    def add_member(self, message_id: MessageId, already: Sequence[int] = ()) -> bool:
        """Acknowledge one message of a batch; tell whether that makes its entry whole.

        `already` is the ack set the entry was delivered with, if any.
        """
        place = message_id[:2]
        if place in self._whole:
            return True
        _, bits = self._partial.get(place, (None, None))
        if bits is None:
            bits = (1 << message_id.batch_size) - 1
            if already:
                bits &= ack_sets.to_bits(already)
        bits &= ~(1 << message_id.batch_index)
        if bits == 0:
            self.add_entries((message_id.entry,))
            return True
        entry = MessageId(
            message_id.ledger_id, message_id.entry_id, message_id.partition, -1, message_id.batch_size
        )
        self._partial[place] = entry, bits
        self._changed[place] = None
        return False

    def add_cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and with `message_id`; what lies behind it already stays so."""
        if self._through is not None and _reach(message_id) <= _reach(self._through):
            return
        self._through = message_id
        ack_set: Sequence[int] = ()
        entry = message_id.entry
        if 0 <= message_id.batch_index < message_id.batch_size - 1:
            ack_set = ack_sets.unacked_from(message_id.batch_index + 1, message_id.batch_size)
            entry = entry._replace(batch_size=message_id.batch_size)
        self._cumulative = entry, ack_set
        if self._whole or self._partial:
            reached = entry[:2]
            for place in [place for place in self._whole if place < reached]:
                del self._whole[place]
            for place in [place for place in self._partial if place < reached]:
                del self._partial[place]
                self._changed.pop(place, None)

    def holds(self, place: Place) -> bool:
        """Whether an entry that is delivered again was acknowledged, but the broker not told yet."""
        if place in self._whole:
            return True
        if self._cumulative is not None:
            entry, ack_set = self._cumulative
            return place < entry[:2] or (place == entry[:2] and not ack_set)
        return False

    def take(self) -> Untold:
        """Take out what is to be told now."""
        individual: Positions = [(message_id, ()) for message_id in self._whole.values()]
        for place in self._changed:
            entry, bits = self._partial[place]
            individual.append((entry, ack_sets.from_bits(bits)))
        untold = Untold(individual, self._cumulative, self._through)
        self._whole = {}
        self._changed = {}
        self._cumulative = None
        return untold

    def put_back(self, untold: Untold) -> None:
        """What was taken out could not be told."""
        for message_id, ack_set in untold.individual:
            if not ack_set:
                self._whole.setdefault(message_id[:2], message_id)
            elif message_id[:2] in self._partial:
                self._changed[message_id[:2]] = None
        if untold.cumulative is None or untold.through is None:
            return
        if self._through is None or _reach(untold.through) >= _reach(self._through):
            self._cumulative, self._through = untold.cumulative, untold.through

    def on_detached(self) -> None:
        """The connection is gone, and perhaps what was told last with it: it may be told again."""
        if self._cumulative is None:
            self._through = None

    def clear(self) -> None:
        """Forget everything: the subscription was moved."""
        self._whole.clear()
        self._partial.clear()
        self._changed.clear()
        self._cumulative = None
        self._through = None


def acknowledged_part(
    message_id: MessageId, *, member: bool, cumulative: bool
) -> tuple[MessageId, Sequence[int]]:
    """An entry as an ACK names it, with the ack set of one message of a batch, or of all up to it."""
    index, size = message_id.batch_index, message_id.batch_size
    entry = message_id.entry
    if index < 0 or size <= 0 or not (member or cumulative):
        return entry, ()
    left = (1 << size) - (1 << index + 1) if cumulative else (1 << size) - 1 & ~(1 << index)
    return (entry, ()) if not left else (entry._replace(batch_size=size), ack_sets.from_bits(left))


def _reach(message_id: MessageId) -> tuple[int, int, int]:
    """How far a cumulative acknowledgement goes: an entry named as a whole, or by its last message, goes furthest."""
    partial = 0 <= message_id.batch_index < message_id.batch_size - 1
    return *message_id[:2], message_id.batch_index if partial else sys.maxsize
