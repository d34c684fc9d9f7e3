"""Whether an entry may have been acknowledged, from what its replicas answer. Pure.

Recovery ends a ledger at the first entry that cannot have been acknowledged, so the difference between "I
never had it" and silence decides whether data is lost. Source: BookKeeper `PendingReadOp`, BP-46.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from magnetar.protocol.bookie import BookieStatus


class Verdict(Enum):
    PRESENT = auto()
    """A replica has it, so that it may have been acknowledged: keep it."""
    ABSENT = auto()
    """So many replicas vouch they never had it that an ack quorum cannot have: the ledger ends before it."""
    UNKNOWN = auto()
    """All have answered and neither can be told: nothing may be decided."""


class QuorumRead:
    """Gathers the answers of one entry's write set until they amount to a verdict."""

    __slots__ = ("_ack_quorum", "_negative", "_present", "_waiting", "_write_quorum")

    def __init__(self, slots: Iterable[int], ack_quorum: int) -> None:
        self._waiting = set(slots)
        self._write_quorum = len(self._waiting)
        self._ack_quorum = ack_quorum
        self._negative = 0
        self._present = False

    def answered(self, slot: int, status: BookieStatus) -> Verdict | None:
        """Take the answer of `slot`; None while the verdict is open. A repeated answer counts once.

        A replica that was read but whose bytes do not match their checksum counts as `UNKNOWN`.
        """
        if slot in self._waiting:
            self._waiting.discard(slot)
            if status.is_positive:
                self._present = True
            elif status.is_negative:
                self._negative += 1
        return self.verdict

    @property
    def verdict(self) -> Verdict | None:
        if self._present:
            return Verdict.PRESENT
        if self._negative >= negatives_needed(self._write_quorum, self._ack_quorum):
            return Verdict.ABSENT
        return None if self._waiting else Verdict.UNKNOWN


def negatives_needed(write_quorum: int, ack_quorum: int) -> int:
    """How many replicas must vouch for an entry's absence: fewer might all lie outside its ack quorum."""
    return write_quorum - ack_quorum + 1
