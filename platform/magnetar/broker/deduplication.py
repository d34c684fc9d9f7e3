"""Which messages of a producer are stored already. Pure: `dedup_cursor.py` keeps it across restarts.

Each producer numbers its messages with rising sequence ids. Two marks are kept for each name: the highest id
handed to storage (pushed) and the highest known to be stored (persisted). What lies at or below the second
is a duplicate; what lies between the two may or may not be stored, and nobody can tell until the write in
flight ends. A batch can straddle the mark, because a producer that starts again may group its messages
otherwise: then it is cut. Apache's broker judges a batch by its lowest id alone and drops the new part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

OPAQUE_PREFIX: Final = "\x00opaque:"
"""Before a producer's name in a snapshot: how many messages the unreadable batch at its mark has."""


class Sequences(NamedTuple):
    """The sequence ids of one entry, first and last."""

    lowest: int
    highest: int
    opaque: int = 0
    """For a batch that tells only one id and cannot be opened (it is encrypted): how many messages it has.
    Its ids are taken to follow one another from `lowest` on, where that decides nothing but a refusal."""


class Verdict(Enum):
    """What to do with an entry."""

    NEW = auto()
    """Store it."""
    DUPLICATE = auto()
    """All of it is stored: answer with a receipt that names no position."""
    UNKNOWN = auto()
    """It may be in flight: answer with an error that makes the producer come back later."""
    STRADDLES = auto()
    """Its first messages are stored, its last are not: store it without those at or below the mark."""
    UNTELLABLE = auto()
    """It may straddle, and cannot be opened: refuse it."""


class Push(NamedTuple):
    """A write on its way."""

    producer: str
    sequences: Sequences
    failures: int


class _Mark:
    __slots__ = ("active_at", "failures", "opaque", "persisted", "pushed")

    def __init__(self, persisted: int, active_at: float) -> None:
        self.persisted = persisted
        self.pushed = persisted
        self.opaque = 0
        """Messages in the unreadable batch that set `persisted`; 0 if something else did."""
        self.failures = 0
        self.active_at = active_at


class Deduplication:
    """The marks of all producers of one topic."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def __len__(self) -> int:
        return len(self._marks)

    def last_sequence_id(self, producer: str) -> int:
        """The highest id known to be stored, -1 if there is none."""
        mark = self._marks.get(producer)
        return -1 if mark is None else mark.persisted

    def judge(self, producer: str, sequences: Sequences) -> Verdict:
        """Decide about an entry. Follow `NEW` and `STRADDLES` by `push` before the next question."""
        mark = self._marks.get(producer)
        lowest, highest, opaque = sequences
        if mark is None or lowest > mark.pushed:
            return Verdict.NEW
        if highest <= mark.persisted and not opaque:
            return Verdict.DUPLICATE
        if mark.persisted != mark.pushed:
            return Verdict.UNKNOWN
        if not opaque:
            return Verdict.STRADDLES
        if lowest == mark.persisted and opaque == mark.opaque:
            return Verdict.DUPLICATE  # The very batch that set the mark, sent again.
        if lowest + opaque - 1 <= mark.persisted:
            return Verdict.DUPLICATE
        return Verdict.UNTELLABLE

    def judge_chunk(self, producer: str, sequence_id: int) -> Verdict:
        """Decide about a chunk that is not the last of its message.

        The marks know whole messages only, so that a chunk is a duplicate exactly if its message is.
        """
        mark = self._marks.get(producer)
        if mark is None or sequence_id > mark.pushed:
            return Verdict.NEW
        return Verdict.DUPLICATE if sequence_id <= mark.persisted else Verdict.UNKNOWN

    def push(self, producer: str, sequences: Sequences, now: float) -> Push:
        """An entry goes to storage; report its end by `stored` or `failed`."""
        mark = self._mark(producer, now)
        mark.pushed = max(mark.pushed, sequences.highest)
        return Push(producer, sequences, mark.failures)

    def push_chunk(self, producer: str, now: float) -> Push:
        """A chunk that is not the last goes to storage. Its success raises no mark, but its failure counts."""
        return self.push(producer, Sequences(-1, -1), now)

    def stored(self, push: Push) -> None:
        """A write has succeeded."""
        mark = self._marks.get(push.producer)
        if mark is None or mark.failures != push.failures:
            return  # An earlier one failed and will come again: the mark must not pass over it.
        self._raise(mark, push.sequences)

    def failed(self, push: Push) -> None:
        """A write has failed: its messages, and those behind it, may be sent again."""
        mark = self._marks.get(push.producer)
        if mark is not None and mark.failures == push.failures:
            mark.failures += 1
            mark.pushed = mark.persisted

    def replay(self, producer: str, sequences: Sequences, now: float) -> None:
        """An entry was found in the log."""
        mark = self._mark(producer, now)
        self._raise(mark, sequences)
        mark.pushed = max(mark.pushed, mark.persisted)

    def snapshot(self) -> dict[str, int]:
        """All marks, as of the last write reported."""
        properties: dict[str, int] = {}
        for producer, mark in self._marks.items():
            if mark.persisted >= 0:
                properties[producer] = mark.persisted
                if mark.opaque:
                    properties[OPAQUE_PREFIX + producer] = mark.opaque
        return properties

    def restore(self, properties: Mapping[str, int], now: float) -> None:
        """Begin from a snapshot."""
        for key, number in properties.items():
            if not key.startswith(OPAQUE_PREFIX):
                self._marks[key] = _Mark(number, now)
        for key, number in properties.items():
            if key.startswith(OPAQUE_PREFIX) and key[len(OPAQUE_PREFIX) :] in self._marks:
                self._marks[key[len(OPAQUE_PREFIX) :]].opaque = number

    def forget(self, connected: Collection[str], *, idle_since: float, keep: int) -> list[str]:
        """Drop producers that are gone and were idle since, and the longest idle ones above `keep`."""
        gone = sorted(
            (
                (mark.active_at, producer)
                for producer, mark in self._marks.items()
                if producer not in connected
            )
        )
        surplus = len(self._marks) - keep
        forgotten = [
            producer
            for rank, (active_at, producer) in enumerate(gone)
            if active_at < idle_since or rank < surplus
        ]
        for producer in forgotten:
            del self._marks[producer]
        return forgotten

    def _mark(self, producer: str, now: float) -> _Mark:
        mark = self._marks.get(producer)
        if mark is None:
            mark = self._marks[producer] = _Mark(-1, now)
        mark.active_at = now
        return mark

    @staticmethod
    def _raise(mark: _Mark, sequences: Sequences) -> None:
        if sequences.highest > mark.persisted:
            mark.persisted = sequences.highest
            mark.opaque = sequences.opaque
            mark.pushed = max(mark.pushed, mark.persisted)
