"""Reading a log: from the tail cache, else from the ledgers' bookies."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from magnetar.environment.logs import get_logger
from magnetar.ledger.errors import LedgerError, NoSuchLedger, ReadFailed
from magnetar.ledger.reader import LedgerReader
from magnetar.managed_ledger.catch_up_cache import CatchUpCache
from magnetar.managed_ledger.catch_up_pace import AppendRate, CatchUpPace
from magnetar.managed_ledger.entry import Entry, stored_entry
from magnetar.managed_ledger.entry_cache import TailCache
from magnetar.managed_ledger.errors import EntryUnreadable, StorageUnavailable
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.read_budget import ReadBudget
from magnetar.protocol.errors import ProtocolError
from magnetar.protocol.message import split_message

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.managed_ledger")

READ_BYTES_MAX = 4 * 1024 * 1024
_READERS_MAX = 64
IN_FLIGHT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class UnreadableLedger:
    """A ledger of which a read failed on all replicas."""

    ledger_id: int
    entry_id: int
    since_ms: int
    reason: str


class SharedReads:
    """What all logs of a process read behind their tails with."""

    def __init__(
        self, cache_bytes: int, in_flight_bytes: int = IN_FLIGHT_BYTES, pace: CatchUpPace | None = None
    ) -> None:
        self.cache = CatchUpCache(cache_bytes)
        self.budget = ReadBudget(in_flight_bytes)
        self.pace = pace
        """None: nobody is held back."""
        self.appended_at = float("-inf")
        """When an append was answered last, in any log."""


class _Reading:
    """A read under way."""

    __slots__ = ("sharers", "task")

    def __init__(self, task: asyncio.Task[list[Entry]]) -> None:
        self.task = task
        self.sharers = 0


class ReadPath:
    """The read side of one log."""

    def __init__(self, owner: ManagedLedger, cache: TailCache) -> None:
        self._owner = owner
        self._cache = cache
        self._readers: OrderedDict[int, LedgerReader] = OrderedDict()
        self._reading: dict[tuple[int, int, int, int], _Reading] = {}
        """By ledger, first and last entry, and bytes."""
        self._append_rate = AppendRate()
        self.unreadable: dict[int, UnreadableLedger] = {}

    async def read_run(self, first: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `first` on, which exists, within its ledger: at least one.

        Raises:
            EntryUnreadable: no replica gives it, or what they give is no entry.
            StorageUnavailable: the ledger cannot be opened now.
        """
        ledger_id, entry_id = first
        span = self._owner.ledgers.span(ledger_id)
        last = min(entry_id + max(max_entries, 1), span.entries if span is not None else 0) - 1
        if span is None or entry_id > last:
            raise EntryUnreadable(self._owner.name, f"entry {first} does not exist")
        cached = self._cache.read(ledger_id, entry_id, last, max_bytes)
        if cached:
            return cached
        if self._owner.shared_reads.pace is not None:
            max_bytes = min(max_bytes, await self._rested(self._owner.shared_reads.pace))
        return await self._read_behind(ledger_id, entry_id, last, max_bytes)

    async def _rested(self, pace: CatchUpPace) -> int:
        """Let those who append go first. Returns how many bytes may be read at once."""
        owner, now = self._owner, self._owner.clock.monotonic()
        rate = self._append_rate.look(owner.ledgers.bytes_through(owner.ledgers.last_position), now)
        rest_s, turn_bytes = pace.turn(owner.shared_reads.appended_at, rate, now)
        if rest_s:
            await asyncio.sleep(rest_s)
        return READ_BYTES_MAX if turn_bytes is None else turn_bytes

    async def _read_behind(self, ledger_id: int, entry_id: int, last: int, max_bytes: int) -> list[Entry]:
        """What the cache of the tail does not have."""
        shared = self._owner.shared_reads
        key, now = (self._cache, ledger_id), self._owner.clock.monotonic()
        cached = shared.cache.read(key, entry_id, last, max_bytes, now)
        if cached:
            return cached
        wanted = (entry_id, last, max_bytes)
        reading = self._reading.get((ledger_id, *wanted))
        if reading is None:
            # The same read, asked for by several at once, is done once; and goes on if one of them gives up.
            task = asyncio.get_running_loop().create_task(self._read(ledger_id, *wanted))
            reading = self._reading[ledger_id, *wanted] = _Reading(task)
            task.add_done_callback(lambda task: self._was_read(ledger_id, wanted, task))
        reading.sharers += 1
        return await asyncio.shield(reading.task)

    def _was_read(
        self, ledger_id: int, wanted: tuple[int, int, int], task: asyncio.Task[list[Entry]]
    ) -> None:
        reading = self._reading.pop((ledger_id, *wanted))
        if not task.cancelled() and task.exception() is None:
            entries = task.result()
            expected = self._owner.readers_near(entries[0].position) - reading.sharers
            now = self._owner.clock.monotonic()
            self._owner.shared_reads.cache.offer((self._cache, ledger_id), entries, expected, now)

    async def _read(self, ledger_id: int, entry_id: int, last: int, max_bytes: int) -> list[Entry]:
        owner = self._owner
        span = owner.ledgers.span(ledger_id)
        average = span.size // span.entries + 1 if span is not None and span.entries else max_bytes
        most = min(max_bytes, READ_BYTES_MAX)
        # Where a ledger is striped, each entry is asked for by itself: not for many that would be too much.
        last = min(last, entry_id + most // average)
        try:
            async with owner.shared_reads.budget.room_for(min(most, average * (last - entry_id + 1))):
                reader = await self._reader(ledger_id)
                found = await reader.read(entry_id, last, max_bytes=most)
            entries = [stored_entry(Position(ledger_id, each.entry_id), each.payload) for each in found]
        except (LedgerError, ProtocolError, EntryUnreadable) as error:
            self._readers.pop(ledger_id, None)  # Its replicas may have been moved.
            self._report(ledger_id, entry_id, str(error))
            if isinstance(error, EntryUnreadable):
                raise
            absent = isinstance(error, ReadFailed) and error.absent
            lost: Literal["entry"] | None = "entry" if absent else None
            raise EntryUnreadable(self._owner.name, str(error), lost=lost) from error
        if self.unreadable:
            self.unreadable.pop(ledger_id, None)
        return entries

    def _report(self, ledger_id: int, entry_id: int, reason: str) -> None:
        """Once for each ledger, until it is read again."""
        if ledger_id in self.unreadable:
            return
        self.unreadable[ledger_id] = UnreadableLedger(
            ledger_id, entry_id, self._owner.clock.time_ms(), reason
        )
        span = self._owner.ledgers.span(ledger_id)
        log.error(
            "ledger.unreadable",
            log=self._owner.name,
            ledger_id=ledger_id,
            entry_id=entry_id,
            entries=span.entries if span is not None else 0,
            reason=reason,
        )

    async def _reader(self, ledger_id: int) -> LedgerReader:
        writer = self._owner.writer
        if writer is not None and writer.ledger_id == ledger_id:
            return writer.reader()
        reader = self._readers.get(ledger_id)
        if reader is None:
            try:
                reader = await self._owner.client.open(ledger_id, recover=True)
            except NoSuchLedger as error:
                raise EntryUnreadable(self._owner.name, str(error), lost="ledger") from error
            except LedgerError as error:
                raise StorageUnavailable(self._owner.name, str(error)) from error
            self._readers[ledger_id] = reader
            if len(self._readers) > _READERS_MAX:
                self._readers.popitem(last=False)
        else:
            self._readers.move_to_end(ledger_id)
        return reader

    def forget(self, ledger_id: int) -> None:
        self._readers.pop(ledger_id, None)
        self._owner.shared_reads.cache.forget((self._cache, ledger_id))
        self.unreadable.pop(ledger_id, None)

    def forget_all(self) -> None:
        """Nobody reads the log here any more."""
        for span in self._owner.ledgers:
            self._owner.shared_reads.cache.forget((self._cache, span.ledger_id))

    # Finding by time.

    async def position_at_time(self, timestamp_ms: int) -> Position | None:
        """The first entry not older than `timestamp_ms`; None if all are older.

        Broker timestamps never fall within a log, so that two binary searches find it: over ledgers, by their
        last entries, then over the entries of one.
        """
        spans = [span for span in self._owner.ledgers if span.entries]
        low, high = 0, len(spans)
        while low < high:
            middle = (low + high) // 2
            span = spans[middle]
            if await self._time_of(Position(span.ledger_id, span.entries - 1)) < timestamp_ms:
                low = middle + 1
            else:
                high = middle
        if low == len(spans):
            return None
        ledger_id = spans[low].ledger_id
        first, last = 0, spans[low].entries - 1
        while first < last:
            middle = (first + last) // 2
            if await self._time_of(Position(ledger_id, middle)) < timestamp_ms:
                first = middle + 1
            else:
                last = middle
        return Position(ledger_id, first)

    async def _time_of(self, position: Position) -> int:
        entry = (await self.read_run(position, 1, READ_BYTES_MAX))[0]
        if entry.broker_timestamp >= 0:
            return entry.broker_timestamp
        try:
            return int(split_message(entry.data, verify=False).metadata.publish_time)
        except ProtocolError:
            return 0  # No message at all: as old as can be, so that it is never searched for.
