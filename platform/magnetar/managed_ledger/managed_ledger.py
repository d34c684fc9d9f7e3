"""A topic's log, opened by its owner. Made by `opening.py`, asked for through `factory.py`.

The parts: `appends.py` writes, `reads.py` reads, cursors keep places, and this holds them together: the list
of ledgers, its record in metadata, trimming, and the moment when ownership is lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.owned_tasks import OwnedTasks
from magnetar.ledger.writer import LedgerWriter
from magnetar.managed_ledger.appends import AppendDone, AppendPath
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.cursor import Cursor
from magnetar.managed_ledger.cursor_set import CursorSet
from magnetar.managed_ledger.entry import Entry
from magnetar.managed_ledger.entry_cache import TailCache
from magnetar.managed_ledger.errors import (
    EntryUnreadable,
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    NoSuchLedgerInLog,
    StorageUnavailable,
)
from magnetar.managed_ledger.ledger_list import LedgerList
from magnetar.managed_ledger.position import Position
from magnetar.managed_ledger.reads import READ_BYTES_MAX, ReadPath, SharedReads, UnreadableLedger
from magnetar.managed_ledger.record_keeper import RecordKeeper
from magnetar.managed_ledger.records import LogRecord, LostLedger
from magnetar.managed_ledger.retention import droppable
from magnetar.protocol.buffers import Buffer

if TYPE_CHECKING:
    from magnetar.metadata.store import MetadataStore

log = get_logger("magnetar.managed_ledger")

Initial = Literal["earliest", "latest"]
T = TypeVar("T")

_DROP_PASSED_EVERY_S = 0.02
_DROPPED_AT_ONCE = 500
_DOOMED_MAX = 1000


class ManagedLedger:
    """One log. All its methods belong to one event loop, and to one owner at a time."""

    def __init__(
        self,
        name: str,
        config: ManagedLedgerConfig,
        *,
        metadata: MetadataStore,
        client: LedgerClient,
        clock: Clock,
        dice: random.Random,
        tasks: OwnedTasks,
        cache: TailCache,
        rolls: asyncio.Semaphore,
        shared_reads: SharedReads,
        ledgers: LedgerList,
        keeper: RecordKeeper,
        next_index: int,
        last_timestamp_ms: int,
    ) -> None:
        self.name = name
        self.config = config
        self.client = client
        self.clock = clock
        self.dice = dice
        self.shared_reads = shared_reads
        self.rolls = rolls
        """How many logs may be having their next ledger made at a time."""
        self.tasks = tasks
        self.cache = cache
        self.ledgers = ledgers
        self.highest_ledger_id = max(keeper.record.ledger_ids, default=-1)
        self.read_bytes_max = READ_BYTES_MAX
        self.fenced = False
        self.keeper = keeper
        self._trim_lock = asyncio.Lock()
        self._trimming = False
        self._cursors_known = False
        """Until all cursors are back, nothing may be trimmed: what one of them needs would be taken for free."""
        self._appends = AppendPath(self, next_index, last_timestamp_ms)
        self._reads = ReadPath(self, cache)
        self.entries_given_up = 0
        """Passed over because they are lost and the settings say so."""
        self._readers: list[Cursor] = []
        self._passed_dropped_at = 0.0
        self._append_listeners: list[Callable[[], None]] = []
        self._fenced_listeners: list[Callable[[], None]] = []
        self._close_listeners: list[Callable[[], None]] = []
        self._closing: asyncio.Task[None] | None = None
        """Whoever closes it once more waits for the first."""
        self._state: Literal["open", "terminated", "closed"] = (
            "open" if keeper.record.terminated is None else "terminated"
        )
        self.cursor_set = CursorSet(self, metadata, dice)

    # What is known.

    @property
    def state(self) -> str:
        """ "open", "terminated", "closed" or "fenced"."""
        return "fenced" if self.fenced else self._state

    @property
    def terminated(self) -> bool:
        return self.keeper.record.terminated is not None

    @property
    def last_confirmed(self) -> Position:
        """The last entry stored; the place before the first one if there is none."""
        return self.ledgers.last_position

    @property
    def first_position(self) -> Position:
        """The first entry there is, or where the first will be."""
        return self.ledgers.first_position

    @property
    def number_of_entries(self) -> int:
        return self.ledgers.entries

    @property
    def total_size(self) -> int:
        """Bytes of all entries."""
        return self.ledgers.size

    @property
    def next_index(self) -> int:
        """The index the next message will get; so many messages were ever stored."""
        return self._appends.next_index

    @property
    def properties(self) -> Mapping[str, str]:
        return self.keeper.record.properties

    @property
    def cursors(self) -> Mapping[str, Cursor]:
        return self.cursor_set.cursors

    @property
    def writer(self) -> LedgerWriter | None:
        """Of the open ledger."""
        return self._appends.writer

    def set_config(self, config: ManagedLedgerConfig) -> None:
        """Use other settings from now on; the quorums hold from the next ledger on."""
        self.config = config
        self.ledger_changed()

    async def take_over(self) -> None:
        """Put our name to the record, with a new ledger unless the log is terminated."""
        if self.terminated:
            self._appends.refuse(ManagedLedgerTerminated(self.name))
            await self.change_record(lambda record: record)
        else:
            await self._appends.open_next()

    # Appending.

    def append(self, parts: Sequence[Buffer], number_of_messages: int, done: AppendDone) -> None:
        """Store an entry: `parts` are a message, or batch, from its 0x0e01 on, and must not change any more.

        `done` is called later, on the loop, in the order of appends: with position and index of the last
        message, or with an error. After `AppendFailed` the entry may or may not be in the log. Nobody waits
        longer than for bookies' time-outs and `storage_retry_s` together.
        """
        self._appends.append(parts, number_of_messages, done)

    def on_append(self, listener: Callable[[], None]) -> None:
        """Call `listener` once for each batch of appends that complete together."""
        self._append_listeners.append(listener)

    def appended(self) -> None:
        for listener in self._append_listeners:
            listener()

    async def roll(self) -> None:
        """Go on in a new ledger, if this one holds anything."""
        self.check_open()
        await self._appends.roll()

    # Reading.

    async def read_run(self, first: Position, max_entries: int, max_bytes: int) -> list[Entry]:
        """Entries from `first` on, which exists: at least one, all of one ledger.

        Raises:
            EntryUnreadable, StorageUnavailable
        """
        return await self._reads.read_run(first, max_entries, max_bytes)

    async def read_entry(self, position: Position) -> Entry:
        """
        Raises:
            EntryUnreadable: also where there is no such entry.
            StorageUnavailable
        """
        return (await self._reads.read_run(position, 1, READ_BYTES_MAX))[0]

    async def position_at_time(self, timestamp_ms: int) -> Position | None:
        """The first entry not older than `timestamp_ms`, by broker timestamp, else publish time; None: none is."""
        return await self._reads.position_at_time(timestamp_ms)

    def position_before(self, position: Position) -> Position:
        """The entry before `position`, or else the place just before the first one."""
        return self.ledgers.before(position)

    # The cache, and who reads along.

    def position_after(self, position: Position, entries: int) -> Position:
        """The entry so many entries after `position`, or the last one."""
        return self.ledgers.at_ordinal(self.ledgers.ordinal(position) + entries)

    @property
    def has_readers(self) -> bool:
        return bool(self._readers)

    def readers_near(self, position: Position) -> int:
        """How many of those who read along are at `position`, or so close before it that they will soon read it."""
        if len(self._readers) < 2:
            return len(self._readers)
        window = self.shared_reads.cache.max_bytes // 2
        through = self.ledgers.bytes_through(position)
        return sum(
            cursor.read_position <= position
            and through - self.ledgers.bytes_through(cursor.read_position) <= window
            for cursor in self._readers
        )

    def readers_changed(self) -> None:
        self._readers = [cursor for cursor in self.cursors.values() if cursor.active]
        if not self._readers:
            self.cache.clear()

    def reader_advanced(self) -> None:
        """Now and then, let go of what everyone who reads along has passed."""
        if self.cache:
            now = self.clock.monotonic()
            if now - self._passed_dropped_at >= _DROP_PASSED_EVERY_S:
                self._drop_passed(now)

    def _drop_passed(self, now: float) -> None:
        self._passed_dropped_at = now
        if self._readers:
            slowest = min(cursor.read_position for cursor in self._readers)
            self.cache.drop_before(slowest.ledger_id, slowest.entry_id)

    # Cursors.

    async def open_cursor(
        self,
        name: str,
        *,
        initial: Initial = "latest",
        properties: Mapping[str, str] | None = None,
        durable: bool = True,
        start: Position | None = None,
    ) -> Cursor:
        """The cursor `name`, made if there is none.

        Args:
            initial: where a new one begins: before all entries, or after those that are there now.
            properties: a new one's own properties.
            durable: whether a new one outlives this object, and holds entries back from trimming.
            start: the first entry a new one reads, instead of `initial`.
        Raises:
            StorageUnavailable, ManagedLedgerFenced, ManagedLedgerClosed
        """
        if start is None and initial == "earliest":
            start = self.ledgers.first_position
        return await self.guarded(
            self.cursor_set.open(name, start=start, durable=durable, properties=dict(properties or {}))
        )

    async def delete_cursor(self, name: str) -> None:
        """
        Raises:
            NoSuchCursor, StorageUnavailable, ManagedLedgerFenced
        """
        await self.guarded(self.cursor_set.delete(name))

    def cursors_restored(self) -> None:
        """All cursors that the metadata name are back: what none of them needs may go."""
        self._cursors_known = True
        self.ledger_changed()

    def cursor_closed(self) -> None:
        self.readers_changed()
        self.ledger_changed()

    # The record.

    async def change_record(self, change: Callable[[LogRecord], LogRecord]) -> None:
        """Store what `change` makes of the record.

        Raises:
            ManagedLedgerFenced, StorageUnavailable
        """
        if self.fenced:
            raise ManagedLedgerFenced(self.name)
        await self.keeper.change(change)

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        """Replace the log's properties. Durable when it returns."""
        self.check_open()
        await self.guarded(self.change_record(lambda record: replace(record, properties=dict(properties))))

    async def put_property(self, name: str, value: str) -> None:
        """Set one of the log's properties; the others stay. Durable when it returns."""
        self.check_open()
        await self.guarded(
            self.change_record(lambda record: replace(record, properties={**record.properties, name: value}))
        )

    # Trimming.

    def ledger_changed(self) -> None:
        """A ledger was closed, or a cursor has left one: perhaps one can go."""
        if not self._trimming and not self.fenced and self._state != "closed" and self._droppable():
            self._trimming = True
            self.tasks.spawn(self._trim_guarded())

    def _droppable(self) -> int:
        if self._state == "closed" or not self._cursors_known or len(self.ledgers) < 2:
            return 0  # Once it closes, its cursors go one by one, and with each what it holds back.
        marks = [cursor.mark_delete for cursor in self.cursors.values() if cursor.durable]
        return droppable(self.ledgers, min(marks, default=None), self.config, self.clock.time_ms())

    async def trim(self) -> None:
        """Drop the ledgers that nobody needs, as the retention has it.

        Raises:
            StorageUnavailable, ManagedLedgerFenced
        """
        self.check_open()
        await self.guarded(self._trim())

    async def _trim_guarded(self) -> None:
        try:
            await self.guarded(self._trim())
        except (ManagedLedgerError, LedgerError) as error:
            log.warning("log.not_trimmed", log=self.name, reason=str(error))
        finally:
            self._trimming = False

    async def _trim(self) -> None:
        async with self._trim_lock:
            while number := self._droppable():
                # In turns, because the record names what is not deleted yet.
                if self.keeper.doomed_left >= _DOOMED_MAX:
                    await self.keeper.delete_doomed()
                    if self.keeper.doomed_left >= _DOOMED_MAX:
                        return
                await self._drop_first(min(number, _DROPPED_AT_ONCE))

    async def _drop_first(self, number: int) -> None:
        dropped = [span.ledger_id for span in list(self.ledgers)[:number]]

        crash_point("managed_ledger.before_trim")
        await self.change_record(lambda record: record.with_front_dropped(dropped))
        crash_point("managed_ledger.after_trim")
        self.ledgers.drop_first(number)
        for cursor in list(self.cursors.values()):
            cursor.ledgers_dropped()
        for ledger_id in dropped:
            self._reads.forget(ledger_id)
        log.info("log.trimmed", log=self.name, ledgers=",".join(map(str, dropped)))

    # What is lost.

    @property
    def unreadable_ledgers(self) -> Mapping[int, UnreadableLedger]:
        """Ledgers of which the last read failed on all replicas, and why."""
        return self._reads.unreadable

    async def may_pass(self, position: Position, error: EntryUnreadable) -> bool:
        """Whether a reader may pass over an entry that it could not read, because it is lost and the settings say so.

        Raises:
            StorageUnavailable, ManagedLedgerFenced
        """
        if not self.config.auto_skip_lost or error.lost is None:
            return False
        if error.lost == "entry":
            self.entries_given_up += 1
            log.error("entry.given_up", log=self.name, position=str(position), reason=str(error))
            return True
        span = self.ledgers.span(position.ledger_id)
        if span is None:
            return True  # Another reader was here first.
        if not span.closed_ms:
            return False
        try:
            given_up = await self.skip_lost_ledger(position.ledger_id)
        except NoSuchLedgerInLog:
            return True  # So was one just now.
        self.entries_given_up += given_up.entries
        return True

    async def skip_lost_ledger(self, ledger_id: int) -> LostLedger:
        """Go on without a closed ledger that cannot be read: by an operator's consent only.

        Its entries are gone for readers, and count as acknowledged. It is kept, and named as lost, until the
        ledgers before it are trimmed.

        Raises:
            NoSuchLedgerInLog: it is no closed ledger of this log.
            StorageUnavailable, ManagedLedgerFenced
        """
        self.check_open()
        return await self.guarded(self.tasks.shielded(self._skip(ledger_id)))

    async def _skip(self, ledger_id: int) -> LostLedger:
        async with self._trim_lock:
            span = self.ledgers.span(ledger_id)
            if span is None or not span.closed_ms:
                raise NoSuchLedgerInLog(self.name, ledger_id)
            now_ms = self.clock.time_ms()
            crash_point("managed_ledger.before_skip")
            await self.change_record(lambda record: record.with_lost(ledger_id, now_ms, 0))
            crash_point("managed_ledger.after_skip")
            self.ledgers.take_out(ledger_id)
            for cursor in list(self.cursors.values()):
                cursor.ledger_lost(ledger_id)
            self._reads.forget(ledger_id)
            lost = next(each for each in self.keeper.record.lost if each.ledger_id == ledger_id)
        log.error(
            "ledger.given_up", log=self.name, ledger_id=ledger_id, entries=lost.entries, bytes=lost.size
        )
        self.ledger_changed()
        return lost

    def delete_later(self, ledger_id: int) -> None:
        """Delete a ledger that no record ever named."""
        self.tasks.spawn(self.client.delete(ledger_id))

    # Losing, ending, closing.

    def fence(self, reason: str) -> None:
        """Ownership is lost: complete nothing any more, and tell the owner to let go."""
        if self.fenced:
            return
        self.fenced = True
        log.warning("log.fenced", log=self.name, reason=reason)
        self._appends.depose(ManagedLedgerFenced(self.name, reason))
        self.cache.clear()
        for listener in self._fenced_listeners:
            asyncio.get_running_loop().call_soon(listener)

    def on_fenced(self, listener: Callable[[], None]) -> None:
        """Call `listener` when ownership is found lost; at once, if it was lost already."""
        self._fenced_listeners.append(listener)
        if self.fenced:
            asyncio.get_running_loop().call_soon(listener)

    def on_close(self, listener: Callable[[], None]) -> None:
        self._close_listeners.append(listener)

    async def terminate(self) -> Position:
        """Take no more entries, ever, once those on their way are stored. Returns the last one.

        Raises:
            StorageUnavailable: it still may have been; call again.
            ManagedLedgerFenced
        """
        self.check_open()
        return await self.guarded(self.tasks.shielded(self._terminate()))

    async def _terminate(self) -> Position:
        self.check_open()  # It may have been closed since it was asked for, and what closes stays closed.
        if self.keeper.record.terminated is None:
            self._state = "terminated"
            await self._appends.finish(ManagedLedgerTerminated(self.name))
            last = self.ledgers.last_position
            await self.change_record(lambda record: replace(record, terminated=last))
            log.info("log.terminated", log=self.name, last=str(last))
        assert self.keeper.record.terminated is not None
        return self.keeper.record.terminated

    async def close(self) -> None:
        """Complete what is on its way, write the cursors, close the ledger and let go.

        What cannot be written now is recovered by the next owner; nothing acknowledged is lost by that.
        """
        if self._closing is None:
            if self._state == "closed":
                return  # Abandoned.
            self._state = "closed"
            self._closing = self.tasks.start(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            cursors = list(self.cursors.values())
            await asyncio.gather(*(self._tolerated("cursor.not_closed", each.close()) for each in cursors))
            await self._tolerated("log.not_closed", self._appends.finish(ManagedLedgerClosed(self.name)))
            await self.keeper.delete_doomed()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go without writing anything, e.g. before the log is deleted."""
        self._state = "closed"
        self._appends.refuse(ManagedLedgerClosed(self.name))
        self.cache.close()
        self._reads.forget_all()
        for listener in self._close_listeners:
            listener()

    async def _tolerated(self, event: str, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except (ManagedLedgerError, LedgerError) as error:
            log.warning(event, log=self.name, reason=str(error))

    async def guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """Notice the loss of ownership wherever it shows, and speak this room's language."""
        try:
            return await work
        except ManagedLedgerFenced as error:
            self.fence(str(error))
            raise
        except LedgerError as error:
            raise StorageUnavailable(self.name, str(error)) from error

    def check_open(self) -> None:
        if self.fenced:
            raise ManagedLedgerFenced(self.name)
        if self._state == "closed":
            raise ManagedLedgerClosed(self.name)

    # The clock.

    def tick(self, now: float) -> None:
        """About once a second: roll by age, write cursors, let go of what is no longer needed."""
        if self.fenced or self._state == "closed":
            return
        self._appends.tick(now)
        for cursor in list(self.cursors.values()):
            cursor.tick(now)
        if self.cache:
            self._drop_passed(now)
        self.ledger_changed()

    # Statistics.

    def internal_stats(self) -> dict[str, object]:
        """In the shape of Pulsar's internal statistics of a topic."""
        last = self.ledgers.last if len(self.ledgers) else None
        return {
            "entriesAddedCounter": self.ledgers.end_ordinal,
            "numberOfEntries": self.ledgers.entries,
            "totalSize": self.ledgers.size,
            "currentLedgerEntries": last.entries if last is not None and not last.closed_ms else 0,
            "currentLedgerSize": last.size if last is not None and not last.closed_ms else 0,
            "waitingCursorsCount": sum(1 for cursor in self.cursors.values() if not cursor.has_more()),
            "pendingAddEntriesCount": self._appends.pending,
            "lastConfirmedEntry": str(self.last_confirmed),
            "state": {
                "open": "LedgerOpened",
                "terminated": "Terminated",
                "closed": "Closed",
                "fenced": "Fenced",
            }[self.state],
            "ledgers": [
                {
                    "ledgerId": span.ledger_id,
                    "entries": span.entries if span.closed_ms else 0,
                    "size": span.size if span.closed_ms else 0,
                    "offloaded": False,
                    "underReplicated": False,
                }
                for span in self.ledgers
            ],
            "cursors": {name: cursor.stats() for name, cursor in self.cursors.items()},
            "properties": dict(self.properties),
            "pendingDeletes": list(self.keeper.record.doomed),
            "lostLedgers": [
                {
                    "ledgerId": each.ledger_id,
                    "entries": each.entries,
                    "size": each.size,
                    "skippedAt": each.skipped_ms,
                }
                for each in self.keeper.record.lost
            ],
            "unreadableLedgers": [
                {
                    "ledgerId": each.ledger_id,
                    "entryId": each.entry_id,
                    "since": each.since_ms,
                    "reason": each.reason,
                }
                for each in self.unreadable_ledgers.values()
            ],
        }

    async def internal_stats_in_full(self, *, ledgers_max: int = 1000) -> dict[str, object]:
        """`internal_stats`, and for each of the latest ledgers what the bookies' metadata say of it.

        One whose metadata cannot be read tells why, instead.
        """
        stats = self.internal_stats()
        listed = stats["ledgers"]
        assert isinstance(listed, list)
        for each in listed[-ledgers_max:]:
            each.update(await self._storage_of(each["ledgerId"]))
        for name, cursor in list(self.cursors.items()):
            shown = cursor.stats()
            if shown["cursorLedger"] != -1:
                shown["cursorLedgerStorage"] = await self._storage_of(cursor.ledger_id)
            cursors = stats["cursors"]
            assert isinstance(cursors, dict)
            cursors[name] = shown
        return stats

    async def _storage_of(self, ledger_id: int) -> dict[str, object]:
        try:
            metadata = await self.client.metadata_of(ledger_id)
        except LedgerError as error:
            return {"error": str(error)}
        return {
            "ensembleSize": metadata.ensemble_size,
            "writeQuorum": metadata.write_quorum,
            "ackQuorum": metadata.ack_quorum,
            "ledgerState": metadata.state.name,
            "ensembles": {str(each.first_entry): list(each.ensemble) for each in metadata.segments},
        }
