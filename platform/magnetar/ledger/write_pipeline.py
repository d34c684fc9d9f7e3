"""The write side of a ledger: ids, acknowledgements in order, and changes of the ensemble. Pure.

An entry is confirmed once `ack_quorum` members of its write set hold it and all entries before it are
confirmed. `last_confirmed` (LAC) stands still while the ensemble changes, because the new segment begins
right after it: an entry confirmed meanwhile would lie where the metadata does not say.
Source: BookKeeper `LedgerHandle`, `PendingAddOp`, traps T4-T6 of the storage fact sheet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, auto
from typing import Generic, TypeVar

from magnetar.ledger.fragment import Fragment, replace_slots
from magnetar.protocol.bookie import BookieStatus

Done = TypeVar("Done")

_FATAL = frozenset({BookieStatus.FENCED, BookieStatus.UNAUTHORIZED, BookieStatus.BAD_REQUEST})


class PendingAdd(Generic[Done]):
    """An entry on its way. `acked` and `failed` are bit sets of slots."""

    __slots__ = ("acked", "acks", "done", "entry_id", "failed", "length", "parts", "size")

    def __init__(self, entry_id: int, size: int, length: int, done: Done) -> None:
        self.entry_id = entry_id
        self.size = size
        self.length = length
        """Of the ledger, up to and with this entry."""
        self.done = done
        self.parts: Sequence[bytes | bytearray | memoryview] = ()
        """What is sent: header and payload. Kept for a bookie that joins the ensemble later."""
        self.acked = 0
        self.acks = 0
        self.failed = 0


class AddOutcome(Enum):
    """What a failed add means for the ledger."""

    LATE = auto()
    """The bookie is no longer in that slot: nothing."""
    REPLACE = auto()
    """The bookie should be replaced."""
    FATAL = auto()
    """No further entry may be acknowledged."""


class WritePipeline(Generic[Done]):
    """The entries of one writer between append and confirmation."""

    __slots__ = (
        "_ack_quorum",
        "_pending",
        "_size",
        "_slots",
        "_spare",
        "changing",
        "confirmed_length",
        "ensemble",
        "failed",
        "last_confirmed",
        "last_pushed",
        "length",
        "stopped",
        "write_quorum",
    )

    def __init__(self, fragment: Fragment, *, last_confirmed: int = -1, length: int = 0) -> None:
        self.ensemble = fragment.ensemble
        self._size = len(fragment.ensemble)
        self._ack_quorum = fragment.ack_quorum
        self.write_quorum = fragment.write_quorum
        self._spare = fragment.write_quorum - fragment.ack_quorum
        # The write set of an entry depends only on its id modulo the ensemble's size.
        self._slots = tuple(fragment.write_slots(turn) for turn in range(self._size))
        self._pending: deque[PendingAdd[Done]] = deque()
        self.last_confirmed = last_confirmed
        self.last_pushed = last_confirmed
        self.confirmed_length = length
        self.length = length
        self.failed: dict[int, str] = {}
        """Slots, and the bookies in them, that have failed and are not replaced yet."""
        self.changing = False
        self.stopped = False

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def pending(self) -> Iterator[PendingAdd[Done]]:
        """The entries not confirmed yet, in order."""
        return iter(self._pending)

    def write_slots(self, entry_id: int) -> tuple[int, ...]:
        return self._slots[entry_id % self._size]

    def push(self, size: int, done: Done) -> PendingAdd[Done]:
        """Give the next entry its id. Send it to each of its `write_slots`."""
        assert not self.stopped
        self.last_pushed += 1
        self.length += size
        add = PendingAdd(self.last_pushed, size, self.length, done)
        self._pending.append(add)
        return add

    def add_succeeded(self, add: PendingAdd[Done], slot: int, bookie: str) -> bool:
        """A bookie holds the entry, durably. True if `take_confirmed` may have something to give."""
        if self.ensemble[slot] != bookie:
            return False  # Replaced meanwhile: the metadata does not name it for this entry.
        bit = 1 << slot
        if not add.acked & bit:
            add.acked |= bit
            add.acks += 1
        return add.acks >= self._ack_quorum and not self.changing

    def add_failed(self, add: PendingAdd[Done], slot: int, bookie: str, status: BookieStatus) -> AddOutcome:
        """A bookie has not taken the entry, or it is not known whether it has."""
        if status in _FATAL:
            return AddOutcome.FATAL
        if self.ensemble[slot] != bookie:
            return AddOutcome.LATE
        add.failed |= 1 << slot
        self.failed[slot] = bookie
        return AddOutcome.REPLACE

    def take_confirmed(self) -> list[PendingAdd[Done]]:
        """The entries newly confirmed, in order. Their callers may be told."""
        confirmed: list[PendingAdd[Done]] = []
        if self.changing or self.stopped:
            return confirmed
        pending = self._pending
        while pending and pending[0].acks >= self._ack_quorum:
            add = pending.popleft()
            self.last_confirmed = add.entry_id
            self.confirmed_length = add.length
            confirmed.append(add)
        return confirmed

    def is_lost(self, add: PendingAdd[Done]) -> bool:
        """Whether an entry can no longer reach its ack quorum with this ensemble."""
        return add.failed.bit_count() > self._spare and add.entry_id > self.last_confirmed

    @property
    def quorum_lost(self) -> bool:
        """Whether any entry is lost."""
        return any(map(self.is_lost, self._pending))

    # Changes of the ensemble.

    def begin_change(self) -> int:
        """Hold confirmations back. Returns the entry at which the new segment must begin."""
        assert not self.changing
        self.changing = True
        return self.last_confirmed + 1

    def end_change(self, replacements: Mapping[int, str]) -> list[tuple[PendingAdd[Done], int]]:
        """The metadata names `replacements` now. Returns what to send them, entry and slot.

        What the replaced bookies had acknowledged no longer counts. With no replacement, go on as before.
        Call `take_confirmed` afterwards: entries may have been waiting for the change alone.
        """
        assert self.changing
        self.changing = False
        self.ensemble = replace_slots(self.ensemble, replacements)
        resent = []
        for slot in replacements:
            self.failed.pop(slot, None)
        for add in self._pending:
            slots = self.write_slots(add.entry_id)
            for slot in replacements:
                if slot in slots:
                    bit = 1 << slot
                    add.failed &= ~bit
                    if add.acked & bit:
                        add.acked &= ~bit
                        add.acks -= 1
                    resent.append((add, slot))
        return resent

    # The end.

    def stop(self) -> list[PendingAdd[Done]]:
        """Confirm nothing more. Returns the entries whose outcome is unknown, in order."""
        self.stopped = True
        unconfirmed = list(self._pending)
        self._pending.clear()
        self.length = self.confirmed_length
        return unconfirmed
