"""Offsets of a streaming read, and the ranges a micro-batch is cut into. Pure.

An offset is what Spark writes to its checkpoint: a JSON object of topic (each partition of a partitioned topic
on its own) to the last entry read, "LEDGER:ENTRY", where "-1:-1" means nothing yet; and, once every topic was
terminated and read to its end, ENDED. Format version 1 is implied by these shapes; a later one will carry a
key that version 1 refuses as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from magnetar.spark.errors import OptionInvalid

ENDED = "ended"
"""The key that says no more will ever come. No topic has this name: topics begin with their domain."""

NOTHING = "-1:-1"

Offset = dict[str, str | bool]


@dataclass(frozen=True, slots=True, order=True)
class EntryPosition:
    """An entry of a topic, or the place before the first one."""

    ledger_id: int
    entry_id: int

    @classmethod
    def parse(cls, text: str) -> EntryPosition:
        """Read "LEDGER:ENTRY".

        Raises:
            OptionInvalid: the text is something else.
        """
        ledger, separator, entry = text.partition(":")
        try:
            if separator:
                return cls(int(ledger), int(entry))
        except ValueError:
            pass  # Falls through to the one error below, which shows the text.
        raise OptionInvalid("offset", text, "LEDGER:ENTRY, for example 12:345")

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


BEFORE_FIRST = EntryPosition(-1, -1)


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """One ledger of a topic and how many entries it has."""

    ledger_id: int
    entries: int


@dataclass(frozen=True, slots=True)
class TopicExtent:
    """What a topic holds now."""

    ledgers: tuple[LedgerExtent, ...]
    last: EntryPosition
    terminated: bool

    def after(self, start: EntryPosition, entries: int) -> EntryPosition:
        """The position `entries` entries past `start`, or the last one if that comes sooner."""
        left = entries
        for ledger in self.ledgers:
            if ledger.ledger_id < start.ledger_id:
                continue
            read = start.entry_id + 1 if ledger.ledger_id == start.ledger_id else 0
            held = self._entries_of(ledger) - read
            if held >= left:
                return min(self.last, EntryPosition(ledger.ledger_id, read + left - 1))
            left -= max(held, 0)
        return self.last

    def _entries_of(self, ledger: LedgerExtent) -> int:
        if ledger.ledger_id == self.last.ledger_id:
            return max(ledger.entries, self.last.entry_id + 1)  # The open ledger reports no count yet.
        return ledger.entries


@dataclass(frozen=True, slots=True)
class TopicRange:
    """The entries of one topic in (`after`, `through`]."""

    topic: str
    after: EntryPosition
    through: EntryPosition


def next_offset(
    start: Mapping[str, str | bool], topics: Mapping[str, TopicExtent], max_entries: int | None
) -> Offset:
    """How far the next micro-batch may read.

    Args:
        start: the offset already read.
        topics: what each topic holds now. A topic that `start` does not know begins at its first entry.
        max_entries: over all topics; shared out evenly, at least one each. None: no limit.
    """
    offset: Offset = {}
    everything_read = bool(topics)
    share = None if max_entries is None else max(1, max_entries // max(1, len(topics)))
    for topic, extent in topics.items():
        begin = position_of(start, topic)
        end = max(begin, extent.last if share is None else extent.after(begin, share))
        offset[topic] = str(end)
        everything_read = everything_read and extent.terminated and begin >= extent.last
    if start.get(ENDED) or everything_read:
        offset[ENDED] = True
    return offset


def ranges(start: Mapping[str, str | bool], end: Mapping[str, str | bool]) -> list[TopicRange]:
    """What must be read to get from `start` to `end`, a range a topic, in a stable order."""
    found = []
    for topic in sorted(key for key in end if key != ENDED):
        after, through = position_of(start, topic), position_of(end, topic)
        if through > after:
            found.append(TopicRange(topic, after, through))
    return found


def ends_here(start: Mapping[str, str | bool], end: Mapping[str, str | bool]) -> bool:
    """Whether this micro-batch is the one that reports the end of all topics."""
    return bool(end.get(ENDED)) and not start.get(ENDED)


def position_of(offset: Mapping[str, str | bool], topic: str) -> EntryPosition:
    """The last entry of `topic` that `offset` covers."""
    text = offset.get(topic, NOTHING)
    if not isinstance(text, str):
        raise OptionInvalid("offset", text, "LEDGER:ENTRY, for example 12:345")
    return EntryPosition.parse(text)


def extent_from_stats(stats: Mapping[str, object]) -> TopicExtent:
    """Read what `GET …/internalStats` answers."""
    ledgers = stats.get("ledgers")
    listed: Sequence[Mapping[str, int]] = ledgers if isinstance(ledgers, list) else []
    extents = tuple(LedgerExtent(int(ledger["ledgerId"]), int(ledger["entries"])) for ledger in listed)
    last = EntryPosition.parse(str(stats.get("lastConfirmedEntry", NOTHING)))
    if (
        last.entry_id < 0
    ):  # An empty ledger is the newest: what matters is the entry before it, if any is left.
        held = [extent for extent in extents if extent.entries]
        last = EntryPosition(held[-1].ledger_id, held[-1].entries - 1) if held else BEFORE_FIRST
    return TopicExtent(extents, last, stats.get("state") == "Terminated")
