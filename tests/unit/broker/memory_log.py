"""A managed ledger in memory, simple enough to be right by inspection: what the broker's own tests store in.

It keeps the contract of `magnetar.managed_ledger` (positions over several ledgers, ack sets that are merged by
AND, cursors that skip what is acknowledged, appends that complete in a later turn of the loop), and nothing of
its means. `hold_appends` and `fail_appends` decide when, and whether, appends complete.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.errors import (
    AppendFailed,
    CursorClosed,
    EntryUnreadable,
    ManagedLedgerTerminated,
    NoSuchCursor,
    NoSuchManagedLedger,
)
from magnetar.managed_ledger.position import EARLIEST, LATEST, Position
from magnetar.protocol import ack_sets
from magnetar.protocol.message import read_metadata

Done = Callable[[Position | None, int, Exception | None], None]


class MemoryCursor:
    """A cursor: what is acknowledged, and where reading goes on."""

    def __init__(
        self, log: MemoryLog, name: str, *, durable: bool, start: Position, properties: Mapping[str, str]
    ) -> None:
        self.log = log
        self.name = name
        self.durable = durable
        self.mark_delete = log.before(start)
        self.read_position = start
        self.properties: dict[str, int] = {}
        self.cursor_properties = dict(properties)
        self.acked: set[Position] = set()
        self.ack_sets: dict[Position, list[int]] = {}
        self.flushes = 0
        self.closed = False
        self.read_limit: Position | None = None

    def unacknowledged(self) -> list[Position]:
        first = bisect_right(self.log.positions, self.mark_delete)
        return [position for position in self.log.positions[first:] if position not in self.acked]

    @property
    def backlog(self) -> int:
        return len(self.unacknowledged())

    @property
    def backlog_bytes(self) -> int:
        return sum(len(self.log.entries[position].data) for position in self.unacknowledged())

    @property
    def acknowledged_ranges(self) -> int:
        return len(self.individually_acknowledged)

    @property
    def individually_acknowledged(self) -> list[Position]:
        return sorted(self.acked)

    def has_more(self) -> bool:
        return any(self._readable(position) for position in self.unacknowledged())

    def _readable(self, position: Position) -> bool:
        return position >= self.read_position and (self.read_limit is None or position < self.read_limit)

    async def read(self, max_entries: int, max_bytes: int) -> list[Entry]:
        self.check_open()
        await self.log.pause()
        entries: list[Entry] = []
        for position in self.unacknowledged():
            if self._readable(position) and len(entries) < max_entries:
                entries.append(self.log.entries[position])
        if entries:
            self.read_position = Position(entries[-1].position.ledger_id, entries[-1].position.entry_id + 1)
        return entries

    async def read_entries_at(self, positions: Sequence[Position]) -> list[Entry]:
        await self.log.pause()
        unacknowledged = set(self.unacknowledged())
        return [self.log.entries[position] for position in sorted(positions) if position in unacknowledged]

    def rewind(self) -> None:
        unacknowledged = self.unacknowledged()
        self.read_position = unacknowledged[0] if unacknowledged else self.log.next_position

    def check_open(self) -> None:
        if self.closed:
            raise CursorClosed(self.name)

    def acknowledge(self, positions: Iterable[tuple[Position, Sequence[int] | None]]) -> list[Position]:
        self.check_open()
        done: list[Position] = []
        for position, ack_set in positions:
            if position <= self.mark_delete or position in self.acked or position not in self.log.entries:
                continue
            if ack_set is not None:
                size = self.log.messages_at(position)
                merged = ack_sets.and_(self.ack_sets.get(position, ack_sets.all_unacked(size)), ack_set)
                if not ack_sets.is_empty(merged):
                    self.ack_sets[position] = merged
                    continue
            self.ack_sets.pop(position, None)
            self.acked.add(position)
            done.append(position)
        self._advance()
        return done

    def acknowledge_cumulative(
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> None:
        last = position if ack_set is None else Position(position.ledger_id, position.entry_id - 1)
        covered = [each for each in self.unacknowledged() if each <= last]
        self.acknowledge((each, None) for each in covered)
        if ack_set is not None:
            self.acknowledge([(position, ack_set)])
        if properties is not None:
            self.properties = dict(properties)

    def _advance(self) -> None:
        for position in self.log.positions[bisect_right(self.log.positions, self.mark_delete) :]:
            if position not in self.acked:
                break
            self.acked.discard(position)
            self.mark_delete = position

    async def flush(self) -> None:
        await self.log.pause()
        self.flushes += 1

    async def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        await self.log.pause()
        if position == EARLIEST:
            target = self.log.positions[0] if self.log.positions else self.log.next_position
        elif position.ledger_id == LATEST.ledger_id:
            target = self.log.next_position
        else:
            target = position
        self.acked.clear()
        self.ack_sets.clear()
        self.mark_delete = self.log.before(target)
        self.read_position = target
        if ack_set:
            self.ack_sets[target] = list(ack_set)

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        await self.log.pause()
        self.cursor_properties = dict(properties)

    def ack_set(self, position: Position) -> list[int] | None:
        return self.ack_sets.get(position)

    def deactivate(self) -> None:
        """There is no cache here that could wait for it."""

    def is_acknowledged(self, position: Position) -> bool:
        return position <= self.mark_delete or position in self.acked

    async def close(self) -> None:
        self.closed = True
        self.log.cursors.pop(self.name, None)
        if self.durable:
            self.log.stored_cursors[self.name] = self


class MemoryLog:
    """One topic's log."""

    def __init__(
        self, name: str, config: ManagedLedgerConfig, *, entries_per_ledger: int, pauses: bool
    ) -> None:
        self.name = name
        self.config = config
        self.properties: dict[str, str] = {}
        self.cursors: dict[str, MemoryCursor] = {}
        self.stored_cursors: dict[str, MemoryCursor] = {}
        self.entries: dict[Position, Entry] = {}
        self.positions: list[Position] = []
        self.next_index = 0
        self.terminated = False
        self.hold_appends = False
        self.fail_appends = False
        self.store_what_fails = False
        """With `fail_appends`: the entry is stored all the same, as after a time-out."""
        self.now_ms = 1_000
        self._entries_per_ledger = entries_per_ledger
        self._pauses = pauses
        self._listeners: list[Callable[[], None]] = []
        self._fenced: list[Callable[[], None]] = []
        self._pending: list[tuple[bytes, int, Done]] = []
        self._scheduled = False

    async def pause(self) -> None:
        if self._pauses:
            await asyncio.sleep(0)

    @property
    def next_position(self) -> Position:
        count = len(self.positions)
        return Position(1 + count // self._entries_per_ledger, count % self._entries_per_ledger)

    @property
    def last_confirmed(self) -> Position:
        return self.positions[-1] if self.positions else Position(1, -1)

    @property
    def number_of_entries(self) -> int:
        return len(self.positions)

    @property
    def total_size(self) -> int:
        return sum(len(entry.data) for entry in self.entries.values())

    def position_before(self, position: Position) -> Position:
        return self.before(position)

    @property
    def first_position(self) -> Position:
        return self.positions[0] if self.positions else self.next_position

    @property
    def fenced(self) -> bool:
        return False

    def before(self, position: Position) -> Position:
        index = bisect_left(self.positions, position)
        return self.positions[index - 1] if index else Position(1, -1)

    def messages_at(self, position: Position) -> int:
        metadata = read_metadata(self.entries[position].data)
        return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1

    def set_config(self, config: ManagedLedgerConfig) -> None:
        self.config = config

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        await self.pause()
        self.properties = dict(properties)

    async def put_property(self, name: str, value: str) -> None:
        await self.pause()
        self.properties[name] = value

    def append(self, parts: Sequence[bytes | memoryview], number_of_messages: int, done: Done) -> None:
        self._pending.append((b"".join(parts), number_of_messages, done))
        if not self.hold_appends:
            self.release_appends()

    def release_appends(self) -> None:
        """Let what was appended complete, in a later turn of the loop."""
        self.hold_appends = False
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._complete)

    def _complete(self) -> None:
        self._scheduled = False
        pending, self._pending = self._pending, []
        for data, messages, done in pending:
            if self.terminated:
                done(None, -1, ManagedLedgerTerminated(self.name))
            elif self.fail_appends:
                if self.store_what_fails:
                    self._store(data, messages)
                done(None, -1, AppendFailed(self.name, "told to"))
            else:
                done(self._store(data, messages), self.next_index - 1, None)
        for listener in self._listeners:
            listener()

    def _store(self, data: bytes, messages: int) -> Position:
        position = self.next_position
        self.next_index += messages
        self.entries[position] = Entry(position, data, self.next_index - 1, self.now_ms)
        self.positions.append(position)
        return position

    async def read_entry(self, position: Position) -> Entry:
        await self.pause()
        if position not in self.entries:
            raise EntryUnreadable(self.name, f"no entry at {position}")
        return self.entries[position]

    async def open_cursor(
        self,
        name: str,
        *,
        initial: str = "latest",
        properties: Mapping[str, str] | None = None,
        durable: bool = True,
        start: Position | None = None,
    ) -> MemoryCursor:
        await self.pause()
        if name in self.cursors:
            return self.cursors[name]
        if start is None or start.ledger_id == LATEST.ledger_id:
            first = self.positions[0] if initial == "earliest" and self.positions else self.next_position
            if start is not None and start.ledger_id == LATEST.ledger_id:
                first = self.next_position
        else:
            first = self.positions[0] if start == EARLIEST and self.positions else start
        cursor = MemoryCursor(self, name, durable=durable, start=first, properties=properties or {})
        self.cursors[name] = cursor
        return cursor

    async def delete_cursor(self, name: str) -> None:
        await self.pause()
        cursor = self.cursors.pop(name, None)
        if cursor is None:
            raise NoSuchCursor(self.name, name)
        cursor.closed = True

    def on_append(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def on_fenced(self, listener: Callable[[], None]) -> None:
        self._fenced.append(listener)

    def fence(self, reason: str = "") -> None:
        for listener in self._fenced:
            listener()

    def position_after(self, position: Position, entries: int) -> Position:
        at = bisect_right(self.positions, position) - 1 + entries
        return self.positions[min(at, len(self.positions) - 1)]

    async def position_at_time(self, timestamp_ms: int) -> Position | None:
        await self.pause()
        return next(
            (each for each in self.positions if self.entries[each].broker_timestamp >= timestamp_ms), None
        )

    async def terminate(self) -> Position:
        await self.pause()
        self.terminated = True
        return self.last_confirmed

    def internal_stats(self) -> dict[str, Any]:
        return {"entriesAddedCounter": len(self.positions), "cursors": {name: {} for name in self.cursors}}

    async def close(self) -> None:
        await self.pause()
        self._listeners.clear()
        for cursor in list(self.cursors.values()):
            await cursor.close()


class MemoryLogs:
    """The factory: what is closed can be opened again, as if it had been on disk."""

    def __init__(self, *, entries_per_ledger: int = 1000, pauses: bool = True) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.opens = 0
        self.cache = EntryCache()
        self.finished: list[str] = []
        """Logs whose deletion was to be finished, if it had been cut short."""
        self._entries_per_ledger = entries_per_ledger
        self._pauses = pauses

    async def open(
        self,
        name: str,
        config: ManagedLedgerConfig,
        *,
        create: bool = True,
        properties: Mapping[str, str] | None = None,
    ) -> MemoryLog:
        await asyncio.sleep(0)
        self.opens += 1
        if name not in self.logs:
            if not create:
                raise NoSuchManagedLedger(name)
            self.logs[name] = MemoryLog(
                name, config, entries_per_ledger=self._entries_per_ledger, pauses=self._pauses
            )
        log = self.logs[name]
        log.cursors, log.stored_cursors = log.stored_cursors, {}
        for cursor in log.cursors.values():
            cursor.closed = False
            cursor.rewind()
        return log

    async def exists(self, name: str) -> bool:
        await asyncio.sleep(0)
        return name in self.logs

    async def delete(self, name: str) -> None:
        await asyncio.sleep(0)
        if self.logs.pop(name, None) is None:
            raise NoSuchManagedLedger(name)

    async def finish_deletion(self, name: str) -> None:
        """A deletion here is done at once: none is ever cut short."""
        await asyncio.sleep(0)
        self.finished.append(name)

    async def list(self, prefix: str) -> list[str]:
        await asyncio.sleep(0)
        return sorted(name for name in self.logs if name.startswith(prefix + "/"))

    async def close(self) -> None:
        await asyncio.sleep(0)
