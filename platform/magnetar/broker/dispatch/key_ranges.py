"""Which consumer a key belongs to: by consistent hashing, or by the ranges consumers ask for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import ConsumerNotAssignable
from magnetar.protocol.routing import KEY_SLOTS, murmur3_32

if TYPE_CHECKING:
    from magnetar.broker.dispatch.member import Member

POINTS_PER_CONSUMER: Final = 100

Range = tuple[int, int]
"""First and last slot, both included."""


class KeySelector(ABC):
    """Divides the slots among consumers."""

    @abstractmethod
    def add(self, member: Member, ranges: Sequence[Range]) -> None: ...

    @abstractmethod
    def remove(self, member: Member) -> None: ...

    @abstractmethod
    def select(self, slot: int) -> Member | None:
        """Whose slot this is; None if nobody's."""

    @abstractmethod
    def ranges_of(self, member: Member) -> list[Range]:
        """The slots of a consumer, for stats."""


class HashRing(KeySelector):
    """Auto-split: 100 points a consumer on a ring, so that one that joins or leaves moves few keys."""

    def __init__(self) -> None:
        self._points: list[tuple[int, int]] = []
        self._members: dict[int, Member] = {}

    def add(self, member: Member, ranges: Sequence[Range]) -> None:
        self._members[member.ordinal] = member
        for point in self._points_of(member):
            insort(self._points, (point, member.ordinal))

    def remove(self, member: Member) -> None:
        del self._members[member.ordinal]
        self._points = [(point, owner) for point, owner in self._points if owner != member.ordinal]

    def select(self, slot: int) -> Member | None:
        if not self._points:
            return None
        index = bisect_left(self._points, (slot, 0))
        return self._members[self._points[index % len(self._points)][1]]

    def ranges_of(self, member: Member) -> list[Range]:
        ranges: list[Range] = []
        previous = -1
        for point, owner in self._points:
            if owner == member.ordinal and point > previous:
                ranges.append((previous + 1, point))
            previous = point
        if self._points and self._points[0][1] == member.ordinal and previous < KEY_SLOTS - 1:
            ranges.append((previous + 1, KEY_SLOTS - 1))
        return ranges

    @staticmethod
    def _points_of(member: Member) -> list[int]:
        """Same-named consumers are told apart by the order in which they came."""
        return [
            murmur3_32(f"{member.name}#{member.ordinal}#{point}".encode()) % KEY_SLOTS
            for point in range(POINTS_PER_CONSUMER)
        ]


class StickyRanges(KeySelector):
    """Sticky: each consumer names its ranges; what nobody names stays undelivered."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int, int]] = []
        """First slot, last slot, ordinal; in order, never overlapping."""
        self._members: dict[int, Member] = {}

    def add(self, member: Member, ranges: Sequence[Range]) -> None:
        if not ranges:
            raise ConsumerNotAssignable("a sticky key-shared consumer must name its hash ranges")
        taken = [(first, last) for first, last, _ in self._ranges]
        for first, last in ranges:
            if not 0 <= first <= last < KEY_SLOTS:
                raise ConsumerNotAssignable(
                    f"hash range {first}..{last} is not within 0..{KEY_SLOTS - 1}, first before last"
                )
            for other_first, other_last in taken:
                if first <= other_last and other_first <= last:
                    raise ConsumerNotAssignable(
                        f"hash range {first}..{last} overlaps {other_first}..{other_last}: choose free ranges"
                    )
            taken.append((first, last))
        self._members[member.ordinal] = member
        self._ranges.extend((first, last, member.ordinal) for first, last in ranges)
        self._ranges.sort()

    def remove(self, member: Member) -> None:
        del self._members[member.ordinal]
        self._ranges = [each for each in self._ranges if each[2] != member.ordinal]

    def select(self, slot: int) -> Member | None:
        index = bisect_left(self._ranges, (slot + 1, 0, 0)) - 1
        if index < 0 or slot > self._ranges[index][1]:
            return None
        return self._members[self._ranges[index][2]]

    def ranges_of(self, member: Member) -> list[Range]:
        return [(first, last) for first, last, ordinal in self._ranges if ordinal == member.ordinal]
