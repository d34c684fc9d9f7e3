"""Counters as plain numbers, rates computed from them now and then, and the shapes stats are told in.

Whoever counts adds to `Meter.count`; a tick over all topics turns the difference into a rate. Nothing here
locks, and nothing is done per message but an addition. JSON names are Pulsar's: TopicStats, PublisherStats,
SubscriptionStats and ConsumerStats.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]


class Meter:
    """A count, and how fast it grew over the last tick."""

    __slots__ = ("_counted", "count", "rate")

    def __init__(self) -> None:
        self.count = 0
        self.rate = 0.0
        self._counted = 0

    def tick(self, seconds: float) -> None:
        self.rate = (self.count - self._counted) / seconds
        self._counted = self.count


class Flow:
    """Messages, their bytes, and the entries they came in, in one direction."""

    __slots__ = ("bytes", "chunks", "entries", "messages")

    def __init__(self) -> None:
        self.messages = Meter()
        self.bytes = Meter()
        self.entries = Meter()
        self.chunks = Meter()

    def add(self, messages: int, size: int) -> None:
        """One entry passed."""
        self.messages.count += messages
        self.bytes.count += size
        self.entries.count += 1

    def tick(self, seconds: float) -> None:
        self.messages.tick(seconds)
        self.bytes.tick(seconds)
        self.entries.tick(seconds)
        self.chunks.tick(seconds)

    @property
    def average_message_bytes(self) -> float:
        """Over the last tick."""
        return self.bytes.rate / self.messages.rate if self.messages.rate else 0.0


def flow_in(flow: Flow) -> Json:
    """What came in, as topics and publishers tell it."""
    return {
        "msgRateIn": flow.messages.rate,
        "msgThroughputIn": flow.bytes.rate,
        "averageMsgSize": flow.average_message_bytes,
    }


def flow_out(flow: Flow) -> Json:
    """What went out, as subscriptions and consumers tell it."""
    return {
        "msgRateOut": flow.messages.rate,
        "msgThroughputOut": flow.bytes.rate,
        "bytesOutCounter": flow.bytes.count,
        "msgOutCounter": flow.messages.count,
    }


def iso_time(time_ms: int) -> str:
    """A moment as stats tell it."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
