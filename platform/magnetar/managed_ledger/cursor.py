"""A subscription's place in a log: the shell around `cursor_state.py` that reads and persists."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from magnetar.environment.logs import get_logger
from magnetar.managed_ledger.cursor_state import CursorState
from magnetar.managed_ledger.cursor_store import CursorStore
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.errors import CursorClosed, EntryUnreadable, ManagedLedgerFenced
from magnetar.managed_ledger.position import Position

if TYPE_CHECKING:
    from magnetar.managed_ledger.managed_ledger import ManagedLedger

log = get_logger("magnetar.managed_ledger")

_RANGES_SHOWN = 1000
"""Of so many acknowledged ranges the statistics tell each; of more, only their number."""

_IDLE_AFTER_S = 60.0
"""A cursor with a backlog that has not read for so long is no longer waited for by the cache."""


class Cursor:
    """One cursor. Acknowledgements change it at once, in memory; a durable one is written now and then.

    Methods that move or read it raise `CursorClosed` after `close`, and `ManagedLedgerFenced` once the log
    has another owner.
    """

    def __init__(
        self, owner: ManagedLedger, name: str, state: CursorState, store: CursorStore | None
    ) -> None:
        self.name = name
        self.durable = store is not None
        self._owner = owner
        self._state = state
        state.tracked = store is not None
        self._store = store
        self._properties: dict[str, str] = {} if store is None else store.properties
        self._properties_lock = asyncio.Lock()
        self._storing = asyncio.Lock()
        """What is stored of it changes in turns: its state, its properties, its end."""
        self._generation = 0
        """Counts what moves the read position under a read in flight."""
        self._changes = 0
        self._written = 0
        """The change up to which the stored state goes."""
        self._writing: asyncio.Task[None] | None = None
        self._wrote_at = 0.0
        self._closed = False
        self.active = False
        """Whether it reads along, so that the cache keeps for it what it has not read yet."""
        self._read_at = 0.0
        self.read_limit: Position | None = None
        """Neither it nor what lies behind it is read until it is lifted: nobody may see that yet. Not stored."""

    # What is known.

    @property
    def mark_delete(self) -> Position:
        """The last entry of the prefix that is acknowledged."""
        return self._state.mark_delete

    @property
    def read_position(self) -> Position:
        """Where the next read begins."""
        return self._state.read_position

    @property
    def properties(self) -> Mapping[str, int]:
        """What was given with the last cumulative acknowledgement that gave any."""
        return self._state.properties

    @property
    def cursor_properties(self) -> Mapping[str, str]:
        return self._properties

    @property
    def ledger_id(self) -> int:
        """The ledger it is kept in; -1: it is in metadata, or nowhere."""
        return -1 if self._store is None else self._store.ledger_id

    @property
    def backlog(self) -> int:
        """How many entries are not acknowledged."""
        return self._state.backlog

    @property
    def backlog_bytes(self) -> int:
        """About how many bytes they have."""
        ledgers = self._owner.ledgers
        behind = ledgers.bytes_through(ledgers.last_position) - ledgers.bytes_through(self.mark_delete)
        between = ledgers.end_ordinal - ledgers.ordinal(self.mark_delete)
        return behind * self.backlog // between if between else 0

    @property
    def acknowledged_ranges(self) -> int:
        """How many ranges are acknowledged above the mark."""
        return self._state.range_count

    @property
    def individually_acknowledged(self) -> Sequence[tuple[Position, Position]]:
        """The ranges acknowledged above the mark, first and last entry of each."""
        return [
            (Position(ledger_id, start), Position(ledger_id, end))
            for ledger_id, start, end in self._state.ranges()
        ]

    def is_acknowledged(self, position: Position) -> bool:
        return self._state.is_acknowledged(position)

    def ack_set(self, position: Position) -> list[int] | None:
        """The messages left of an entry acknowledged in part; None where nothing or all of it is."""
        return self._state.ack_set(position)

    def has_more(self) -> bool:
        """Whether `read` would give something now."""
        first = self._state.unacknowledged_from(self._state.read_position)
        return first is not None and (self.read_limit is None or first < self.read_limit)

    # Reading.

    async def read(self, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from the read position on that are not acknowledged, and move on; none if there are none.

        At least one entry comes if there is any, whatever its size. If the cursor is moved meanwhile, nothing
        comes and it stays where it was put.

        Raises:
            EntryUnreadable, CursorClosed
        """
        self._check_open()
        self._read_at = self._owner.clock.monotonic()
        if not self.active:
            self.active = True
            self._owner.readers_changed()
        generation = self._generation
        state = self._state
        while True:
            first = state.unacknowledged_from(state.read_position)
            if first is None or (self.read_limit is not None and first >= self.read_limit):
                return []
            try:
                entries = await self._owner.read_run(first, max_entries, max_bytes)
            except EntryUnreadable as error:
                if not await self._owner.may_pass(first, error):
                    raise
                self._check_open()  # Or it could not be passed over, and would be read again for ever.
                if error.lost == "entry":
                    self.acknowledge([(first, None)])
                continue
            if generation != self._generation:
                return []
            if self.read_limit is not None:
                limit = self.read_limit
                entries = [entry for entry in entries if entry.position < limit]
                if not entries:
                    return []
            state.read_position = max(state.read_position, entries[-1].position.following)
            self._owner.reader_advanced()
            if state.has_ranges or entries[0].position <= state.mark_delete:
                entries = [entry for entry in entries if not state.is_acknowledged(entry.position)]
            if entries:
                return entries

    async def read_entries_at(self, positions: Sequence[Position]) -> list[Entry]:
        """The entries at `positions` that still exist, in order; the read position stays.

        Raises:
            EntryUnreadable, CursorClosed
        """
        self._check_open()
        entries: list[Entry] = []
        for first, last in _runs(sorted(set(positions))):
            span = self._owner.ledgers.span(first.ledger_id)
            if span is None:
                continue
            entry_id, end = max(first.entry_id, 0), min(last.entry_id, span.entries - 1)
            while entry_id <= end:
                run = await self._owner.read_run(
                    Position(first.ledger_id, entry_id), end - entry_id + 1, self._owner.read_bytes_max
                )
                entries += run
                entry_id = run[-1].position.entry_id + 1
        return entries

    def rewind(self) -> None:
        """Let the next read begin at the first entry that is not acknowledged."""
        self._generation += 1
        self._state.rewind()

    def read_on_from(self, position: Position) -> None:
        """Let the next read begin at `position`, if that is further on; what is acknowledged stays."""
        if position > self._state.read_position:
            self._generation += 1
            self._state.read_position = position

    def deactivate(self) -> None:
        """Nobody reads along: the cache need not wait for it. The next read tells otherwise."""
        if self.active:
            self.active = False
            self._owner.readers_changed()

    # Acknowledging.

    def acknowledge(self, positions: Iterable[tuple[Position, Sequence[int] | None]]) -> list[Position]:
        """Acknowledge entries, or parts of entries, one by one.

        Args:
            positions: each with None for the whole entry, or an ack set: its 1-bits are not acknowledged.
        Returns:
            The entries of which nothing is left now, and something was before.
        """
        self._check_open()
        state = self._state
        ledger_id = state.mark_delete.ledger_id
        finished = []
        for position, ack_set in positions:
            if state.acknowledge(position) if ack_set is None else state.acknowledge_part(position, ack_set):
                finished.append(position)
        self._changed(ledger_id)
        return finished

    def acknowledge_cumulative(
        self,
        position: Position,
        ack_set: Sequence[int] | None = None,
        properties: Mapping[str, int] | None = None,
    ) -> None:
        """Acknowledge everything up to `position`; with `ack_set`, of that entry only the bits that are 0.

        A position past the end counts as the last entry, one before the mark changes nothing. `properties`
        are kept with the mark; None keeps those there are.
        """
        self._check_open()
        ledger_id = self._state.mark_delete.ledger_id
        self._state.acknowledge_cumulative(position, ack_set)
        if properties is not None:
            self._state.set_properties(properties)
        self._changed(ledger_id)

    async def reset(self, position: Position, ack_set: Sequence[int] | None = None) -> None:
        """Let `position`, or the first entry after it, be read next, and nothing from it on be acknowledged.

        Durable when it returns.

        Raises:
            StorageUnavailable: it stands there in memory, but may be back after a restart.
        """
        self._check_open()
        ledger_id = self._state.mark_delete.ledger_id
        self._generation += 1
        self._state.reset(position, ack_set)
        self._changed(ledger_id)
        await self.flush()

    def ledgers_dropped(self) -> None:
        """The log has dropped ledgers at its front."""
        before = self._state.mark_delete
        self._state.ledgers_dropped()
        if self._state.mark_delete != before:
            self._changes += 1

    def ledger_lost(self, ledger_id: int) -> None:
        """The log goes on without a ledger that cannot be read."""
        self._generation += 1
        self._state.ledger_lost(ledger_id)
        self._changes += 1

    # Persisting.

    @property
    def dirty(self) -> bool:
        """Whether something is not written yet."""
        return self.durable and self._written < self._changes

    async def flush(self) -> None:
        """Make everything acknowledged before this call durable.

        Raises:
            StorageUnavailable, ManagedLedgerFenced
        """
        wanted = self._changes
        while self.durable and self._written < wanted:
            self._check_open()
            await asyncio.shield(self._write())

    def tick(self, now: float) -> None:
        """Write what has changed, if the last write lies back far enough."""
        if self.dirty and self._writing is None and not self._closed:
            rate = self._owner.config.mark_delete_rate_per_s
            if now - self._wrote_at >= 1 / rate:
                self._write()
        if self.active and now - self._read_at >= _IDLE_AFTER_S and self.has_more():
            self.deactivate()

    def _changed(self, ledger_before: int) -> None:
        self._changes += 1
        if self._state.mark_delete.ledger_id != ledger_before:
            self._owner.ledger_changed()

    def _write(self) -> asyncio.Task[None]:
        """The write under way, or a new one: all that wait share it."""
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._persist())
            self._writing.add_done_callback(self._persisted)
        return self._writing

    async def _persist(self) -> None:
        assert self._store is not None
        async with self._storing:
            changes = self._changes
            self._wrote_at = self._owner.clock.monotonic()
            await self._store.persist(self._state)
            self._written = changes

    def _persisted(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ManagedLedgerFenced):
            self._owner.fence(str(error))
        elif error is not None:
            log.warning("cursor.not_written", log=self._owner.name, cursor=self.name, reason=str(error))

    async def set_cursor_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the cursor's own properties. Durable when it returns."""
        self._check_open()
        if self._store is not None:
            async with self._storing:
                self._check_open()
                await self._store.set_properties(dict(properties))
        self._properties = dict(properties)

    async def put_cursor_property(self, name: str, value: str) -> None:
        """Set one of the cursor's own properties; the others stay. Durable when it returns."""
        async with self._properties_lock:
            await self.set_cursor_properties({**self._properties, name: value})

    async def remove_cursor_property(self, name: str) -> None:
        """Remove one of the cursor's own properties, if it is there. Durable when it returns."""
        async with self._properties_lock:
            if name in self._properties:
                left = {key: value for key, value in self._properties.items() if key != name}
                await self.set_cursor_properties(left)

    # The end.

    async def close(self) -> None:
        """Write the last state and let go. A cursor that is not durable is gone with this.

        Raises:
            StorageUnavailable: what was not written may be delivered again.
        """
        if self._closed:
            return
        self._closed = True
        self._owner.cursor_set.forget(self)
        if self._store is not None and not self._owner.fenced:
            await self._owner.cursor_set.alone_with(self.name, self._close_store(self._store))

    async def _close_store(self, store: CursorStore) -> None:
        await self._quiet()
        async with self._storing:
            changes = self._changes
            await store.close(self._state, changed=self._written < changes)
            self._written = changes

    async def delete(self) -> None:
        """Delete it and what is stored of it. The log's `delete_cursor` is the way to call this."""
        self._closed = True
        self._owner.cursor_set.forget(self)
        if self._store is not None:
            await self._owner.cursor_set.alone_with(self.name, self._delete_store(self._store))

    async def _delete_store(self, store: CursorStore) -> None:
        await self._quiet()
        async with self._storing:
            await store.delete()

    async def _quiet(self) -> None:
        """Wait for the write under way. How it ends is told to those that asked for it."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
            await asyncio.sleep(0)

    def _check_open(self) -> None:
        if self._owner.fenced:
            raise ManagedLedgerFenced(self._owner.name)
        if self._closed:
            raise CursorClosed(self.name)

    def stats(self) -> dict[str, object]:
        """As Pulsar's internal statistics show a cursor."""
        shown = islice(self._state.ranges(), _RANGES_SHOWN)
        ranges = ",".join(f"({ledger}:{start - 1}..{ledger}:{end}]" for ledger, start, end in shown)
        store = self._store
        return {
            "markDeletePosition": str(self.mark_delete),
            "readPosition": str(self.read_position),
            "waitingReadOp": False,
            "pendingReadOps": 0,
            "messagesConsumedCounter": self._owner.ledgers.end_ordinal - self.backlog,
            "cursorLedger": -1 if store is None else store.ledger_id,
            "cursorLedgerLastEntry": -1 if store is None else store.ledger_last_entry,
            "individuallyDeletedMessages": f"[{ranges}]",
            "state": "Closed" if self._closed else "Open" if self.durable else "NonDurable",
            "numberOfEntriesSinceFirstNotAckedMessage": self._owner.ledgers.end_ordinal
            - self._owner.ledgers.ordinal(self.mark_delete),
            "totalNonContiguousDeletedMessagesRange": self._state.range_count,
            "partlyAcknowledgedEntries": self._state.part_count,
            "stateLost": "" if store is None else store.lost,
            "properties": dict(self.properties),
            "cursorProperties": dict(self._properties),
            "active": self.active,
        }


def _runs(positions: Sequence[Position]) -> Iterable[tuple[Position, Position]]:
    """First and last of each run of consecutive entries."""
    start = 0
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] != positions[at - 1].following:
            yield positions[start], positions[at - 1]
            start = at
