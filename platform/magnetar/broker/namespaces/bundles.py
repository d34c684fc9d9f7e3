"""Bundles: the ranges of topic hashes that brokers own. Pure.

A topic's hash is the CRC-32 of its full name. A namespace has boundaries, the first 0x00000000 and the last
0xffffffff, and bundle `i` reaches from boundary `i` up to boundary `i + 1`, the last bundle including its
end. Source: Pulsar NamespaceBundleFactory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from magnetar.naming import NamespaceName, TopicName

FULL_UPPER_BOUND: Final = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True, order=True)
class Bundle:
    """One range of a namespace's topics."""

    namespace: NamespaceName
    lower: int
    upper: int

    @property
    def range(self) -> str:
        """As REST paths and stats write it: `0x00000000_0x40000000`."""
        return f"0x{self.lower:08x}_0x{self.upper:08x}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.range}"

    @classmethod
    def parse(cls, text: str) -> Bundle:
        """From what `str` makes of one.

        Raises:
            ValueError: it is none.
        """
        namespace, _, bounds = text.rpartition("/")
        lower, _, upper = bounds.partition("_")
        return cls(NamespaceName.parse(namespace), int(lower, 16), int(upper, 16))

    def holds(self, topic_hash: int) -> bool:
        return self.lower <= topic_hash < self.upper or topic_hash == self.upper == FULL_UPPER_BOUND


@dataclass(frozen=True, slots=True)
class Bundles:
    """All bundles of a namespace."""

    namespace: NamespaceName
    boundaries: tuple[int, ...]

    def __post_init__(self) -> None:
        rising = list(self.boundaries) == sorted(set(self.boundaries))
        if (
            len(self.boundaries) < 2
            or not rising
            or self.boundaries[0] != 0
            or self.boundaries[-1] != FULL_UPPER_BOUND
        ):
            raise ValueError(
                f"bundle boundaries of {self.namespace} must rise from 0x00000000 to 0xffffffff: {self.boundaries}"
            )

    @classmethod
    def even(cls, namespace: NamespaceName, count: int) -> Bundles:
        """`count` bundles of one size. Source: Pulsar PoliciesUtil.getBundles."""
        segment = 0x1_0000_0000 // count
        return cls(namespace, (*(segment * i for i in range(count)), FULL_UPPER_BOUND))

    @classmethod
    def parse(cls, namespace: NamespaceName, boundaries: Iterable[str]) -> Bundles:
        """From the boundaries as policies hold them: `["0x00000000", …, "0xffffffff"]`."""
        return cls(namespace, tuple(int(boundary, 16) for boundary in boundaries))

    def __len__(self) -> int:
        return len(self.boundaries) - 1

    def __getitem__(self, index: int) -> Bundle:
        return Bundle(self.namespace, self.boundaries[index], self.boundaries[index + 1])

    def find(self, topic: TopicName) -> Bundle:
        """The bundle a topic lies in."""
        index = bisect_right(self.boundaries, topic_hash(topic)) - 1
        return self[min(index, len(self) - 1)]

    def texts(self) -> list[str]:
        """The boundaries as policies hold them."""
        return [f"0x{boundary:08x}" for boundary in self.boundaries]


def topic_hash(topic: TopicName) -> int:
    """Where a topic lies among its namespace's bundles."""
    return crc32(str(topic).encode())
