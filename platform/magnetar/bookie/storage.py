"""Storage: entry logs, their index and the ledger table, behind the write cache.

Everything that writes runs in one thread, one call after the other, so a flush and a compaction never see each other
half done. Reads come from several threads: a place read from the index stays good unless a compaction moves the
entry, and then a second look finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from magnetar.bookie.directory import ENTRIES, INDEX, LEDGERS
from magnetar.bookie.entry_log import (
    HEADER_BYTES,
    LedgerMap,
    Location,
    LogFiles,
    LogWriter,
    StoredRecord,
    encode_map,
    log_ids,
)
from magnetar.bookie.errors import DirectoryDamaged, EntryLogCorrupt
from magnetar.bookie.index import EntryIndex, IndexState, IndexUnusable, remove_index
from magnetar.bookie.ledger_table import LedgerTable, LedgerTableFile
from magnetar.bookie.limbo import Lost, refuse
from magnetar.bookie.mark import Checkpoint, Mark, MarkFile
from magnetar.bookie.page_window import PageWindow
from magnetar.bookie.segments import Segments
from magnetar.bookie.write_cache import CacheHalf, Parts
from magnetar.environment.clock import Clock
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk
from magnetar.environment.logs import get_logger
from magnetar.protocol.ledger_entry import ENTRY_HEADER_BYTES

_INDEX_CHUNK = 20_000
_COMPACTION_STEP_BYTES = 8 << 20

log = get_logger("magnetar.bookie.storage")


@dataclass(frozen=True, slots=True)
class StoredEntry:
    ledger_id: int
    entry_id: int
    entry: bytes


@dataclass(frozen=True, slots=True)
class DamagedEntry:
    """An entry that the index knows and that is not whole where it should lie."""

    ledger_id: int
    entry_id: int
    file: Path
    offset: int


@dataclass(frozen=True, slots=True)
class Verified:
    """A step through an entry log."""

    position: int | None
    """Where to go on; None: the log is done."""
    bytes: int
    damaged: list[DamagedEntry]


class Storage:
    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        instance: str,
        clock: Clock,
        entry_log_bytes: int,
        read_ahead_bytes: int,
        cached_bytes: int,
        read_cached_bytes: int,
        open_index: Callable[[Path], EntryIndex] = EntryIndex,
        remove_index: Callable[[Path], None] = remove_index,
    ) -> None:
        self._disk = disk
        self._entries = directory / ENTRIES
        self._index_path = directory / INDEX
        self._instance = instance
        self._clock = clock
        self._entry_log_bytes = entry_log_bytes
        self._read_ahead_bytes = read_ahead_bytes
        self.logs = LogFiles(disk, self._entries)
        self._window = PageWindow(self.logs, cached_bytes, read_cached_bytes)
        self._marks = MarkFile(disk, directory)
        self._table_file = LedgerTableFile(disk, directory / LEDGERS)
        self._new_index = open_index
        self._remove_index = remove_index
        self._opened_index: EntryIndex | None = None
        self._writer: LogWriter | None = None
        self._next_log = 1
        self._salvaged = False
        """Whether ledgers may be missing from the table."""
        self.checkpoint_state = Checkpoint(Mark(0, 0, 0))
        self.flushed_entries = 0
        self.flushed_bytes = 0

    # Opening.

    def open(self, segments: Segments, lost: Lost = refuse, *, salvage: bool = False) -> LedgerTable:
        """Read the mark and the ledger table, open the index and bring it up to the entry logs.

        `salvage`: ledgers may be missing from the table: what is stored of them is indexed, too.

        Raises: NewerFormat, IndexUnusable, and what `lost` raises, which is told of all that is not there any more.
        """
        self._salvaged = salvage
        try:
            self.checkpoint_state = self._marks.read()
        except DirectoryDamaged as error:
            lost(error)
            self.checkpoint_state = Checkpoint(segments.beginning(), ledgers=0)
        state = self.checkpoint_state
        try:
            table = self._table_file.load(state.ledgers, state.ledgers_end)
        except DirectoryDamaged as error:
            lost(error)
            table = self._table_file.salvage()
            state = replace(state, ledgers=self._table_file.number, ledgers_end=self._table_file.end)
            self.checkpoint_state = state
            self._marks.write(state)
            self._salvaged = True
        present = log_ids(self._disk, self._entries)
        self._next_log = max([0, *present, *self.checkpoint_state.logs]) + 1
        missing = sorted(set(self.checkpoint_state.logs) - set(present))
        if missing:
            log.error("entry_logs.missing", logs=missing)
        index = self._open_index()
        self._catch_up(index, table, present, missing)
        self._opened_index = index
        return table

    @property
    def _index(self) -> EntryIndex:
        index = self._opened_index
        if index is None:
            raise IndexUnusable(f"index {self._index_path} is being built")
        return index

    def rebuild_index(self, table: LedgerTable) -> None:
        """Throw the index away and build it anew from the entry logs; meanwhile readers get `IndexUnusable`."""
        index, self._opened_index = self._opened_index, None
        if index is not None:
            index.close()
        crash_point("bookie.index.before_remove")
        self._remove_index(self._index_path)
        crash_point("bookie.index.removed")
        index = self._new_index(self._index_path)
        present = log_ids(self._disk, self._entries)
        self._catch_up(index, table, present, sorted(set(self.checkpoint_state.logs) - set(present)))
        self._opened_index = index

    def forget_missing_logs(self) -> None:
        """Let the index know only what is here: what lay in logs that are gone counts as missing, and not as held."""
        if self.missing_logs():
            self._salvaged = True
            self.rebuild_index(LedgerTable())  # Which ledgers are known does not matter.

    @property
    def doubt(self) -> str | None:
        """Why an entry that is not found may exist all the same; None if it cannot."""
        index = self._opened_index
        if index is None or index.state is None:
            return "the index is not built"
        return index.state.doubt

    def end_doubt(self) -> None:
        """All that could be missing is here again, or known to be missing. Entry logs that are gone are missed no more."""
        if self.doubt is None:
            return  # The index may still lead to a log that is gone: a scrub looks for what it held.
        present = set(log_ids(self._disk, self._entries))
        logs = {log_id: end for log_id, end in self.checkpoint_state.logs.items() if log_id in present}
        if len(logs) < len(self.checkpoint_state.logs):
            self.checkpoint_state = replace(self.checkpoint_state, logs=logs)
            self._marks.write(self.checkpoint_state)
        state = self._index.state
        if state is not None and state.doubt is not None:
            self._index.put_state(replace(state, doubt=None))
            crash_point("bookie.index.doubt_ended")
            self._index.sync()

    def _open_index(self) -> EntryIndex:
        try:
            index = self._new_index(self._index_path)
            if index.state is None or index.state.instance == self._instance:
                return index
            index.close()
            log.warning("index.foreign", instance=index.state.instance)
        except IndexUnusable as error:
            log.warning("index.unusable", reason=str(error))
        self._remove_index(self._index_path)
        return self._new_index(self._index_path)

    def _catch_up(
        self, index: EntryIndex, table: LedgerTable, present: list[int], missing: list[int]
    ) -> None:
        """Index what the entry logs hold beyond the place the index has reached."""
        state = index.state
        rebuilding = state is None
        if state is None:
            state = IndexState(self._instance, doubt=f"entry logs {missing} are missing" if missing else None)
        indexed = 0
        for log_id in present:
            if log_id < state.log:
                continue
            start = state.offset if log_id == state.log else HEADER_BYTES
            state, count = self._index_log(index, log_id, start, state, table)
            indexed += count
        if rebuilding or indexed:
            index.put_state(state)
            index.sync()
            crash_point("bookie.index.caught_up")
        if indexed:
            log.info("index.caught_up", entries=indexed, rebuilt=rebuilding)
        if state.doubt is not None:
            log.error("index.in_doubt", reason=state.doubt)

    def _index_log(
        self, index: EntryIndex, log_id: int, start: int, state: IndexState, table: LedgerTable
    ) -> tuple[IndexState, int]:
        promised = self.checkpoint_state.logs.get(log_id, 0)
        try:
            self.logs.check_header(log_id)
        except EntryLogCorrupt as error:
            if not promised:
                log.info("entry_log.passed_over", log=log_id, reason=str(error))
                return state, 0
            state = replace(state, doubt=state.doubt or str(error))  # Its records vouch for themselves.
        ledger_map = self.logs.read_map(log_id)
        end = ledger_map.data_end if ledger_map is not None else None
        promised = max(promised, end or 0)
        pending: list[StoredRecord] = []
        reached, count = max(start, HEADER_BYTES), 0
        while True:
            for record in self.logs.scan(log_id, reached, end):
                reached = record.location.offset + 8 + record.location.length
                if record.ledger_id in table or self._salvaged:
                    pending.append(record)
                    count += 1
                if len(pending) >= _INDEX_CHUNK:
                    state = replace(state, log=log_id, offset=reached)
                    index.put(pending, state)
                    pending = []
            if reached >= promised:
                break
            # Only what was durable is looked for: behind it lies what a crash has torn, and the journal has it.
            resumed = self.logs.resume(log_id, reached, promised)
            reason = f"entry log {self.logs.path(log_id)} is damaged from offset {reached} to {resumed or promised}"
            log.error("entry_log.damaged", log=log_id, reason=reason)
            state = replace(state, doubt=state.doubt or reason)
            if resumed is None:
                break
            reached = resumed
        state = replace(state, log=log_id, offset=reached)
        if pending:
            index.put(pending, state)
        return state, count

    # Writing, in the storage thread.

    def write_entries(self, entries: Iterable[tuple[int, int, Parts]]) -> None:
        """Append entries to the log and the index, all of it durable when this returns.

        After an error nothing of it counts: the entries may be written again.
        """
        writer = self._writer
        if writer is None:
            number = self._next_log
            self._next_log += 1  # Used up even if it cannot be created: a file may be left of the attempt.
            writer = self._writer = LogWriter(self._disk, self._entries, number, self._clock.time_ms())
        try:
            stored = writer.append(entries)
            crash_point("bookie.flush.middle")
            writer.sync()
        except OSError:
            self._writer = None  # Go on with a new log.
            writer.abandon()
            raise
        crash_point("bookie.flush.log_synced")
        index = self._index
        assert index.state is not None
        index.put(stored, replace(index.state, log=writer.log, offset=writer.end))
        crash_point("bookie.flush.indexed")
        index.sync()
        crash_point("bookie.flush.index_synced")
        self.flushed_entries += len(stored)
        self.flushed_bytes += sum(record.location.length for record in stored)
        self._note_log(writer)
        self._window.written(writer.log, stored)
        if writer.end >= self._entry_log_bytes:
            self._seal_current()

    def checkpoint(
        self, half: CacheHalf, changes: list[bytes], mark: Mark, table_snapshot: list[bytes] | None
    ) -> None:
        """Make a half of the write cache and the ledgers' changes durable, then move the mark.

        `table_snapshot`, given when the table's file wants to be rewritten, replaces it as a whole.
        """
        if half.count:
            self.write_entries(half.sorted_entries())
        old_table = self._table_file.number
        if table_snapshot is not None:
            self._table_file.create(old_table + 1, table_snapshot)
        else:
            self._table_file.append(changes)
        self.checkpoint_state = replace(
            self.checkpoint_state, ledgers=self._table_file.number, ledgers_end=self._table_file.end
        )
        if mark > self.checkpoint_state.mark:
            self.checkpoint_state = replace(self.checkpoint_state, mark=mark)
        self._marks.write(self.checkpoint_state)
        if self._table_file.number != old_table:
            crash_point("bookie.ledgers.before_remove")
            self._table_file.remove(old_table)

    @property
    def table_wants_rewrite(self) -> bool:
        return self._table_file.wants_rewrite

    def delete_ledgers(self, ledger_ids: Collection[int]) -> None:
        """Drop ledgers from the index. Their bytes stay until their logs go."""
        crash_point("bookie.ledgers_deleted.before_index")
        self._index.delete_ledgers(ledger_ids)
        self._index.sync()
        crash_point("bookie.ledgers_deleted.index_synced")

    def _note_log(self, writer: LogWriter) -> None:
        self.checkpoint_state = replace(
            self.checkpoint_state, logs={**self.checkpoint_state.logs, writer.log: writer.synced_end}
        )

    def _seal_current(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.seal()
            log.debug("entry_log.sealed", log=writer.log, bytes=writer.end)

    def close(self, *, seal: bool = True) -> None:
        """Close everything, by default with a map at the end of the current log."""
        if seal:
            self._seal_current()
        elif self._writer is not None:
            self._writer.close()
        self._table_file.close()
        if self._opened_index is not None:
            self._opened_index.close()
        self.logs.close()

    # Reading, in any thread.

    def read(self, ledger_id: int, entry_id: int) -> list[StoredEntry]:
        """An entry and what of its ledger was read along with it; empty if the index does not know it.

        Raises: EntryLogCorrupt, IndexUnusable, OSError.
        """
        for attempt in (1, 2):
            location = self._index.get(ledger_id, entry_id)
            if location is None:
                return []
            try:
                return self._read_at(location, ledger_id, entry_id)
            except FileNotFoundError:
                if attempt == 2:
                    raise
        return []

    def read_run(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[StoredEntry]:
        """Entries from `first` on without a gap: at least one if it is there, then until `max_bytes`."""
        run: list[StoredEntry] = []
        total = 0
        while len(run) < count and (not run or total < max_bytes):
            expected = first + len(run)
            before = len(run)
            try:
                found = self.read(ledger_id, expected)
            except (EntryLogCorrupt, OSError):
                if run:
                    break  # Those before it are whole; whoever asks for it will be told.
                raise
            for stored in found:
                if stored.entry_id != expected or len(run) == count:
                    break
                if run and total + len(stored.entry) > max_bytes:
                    return run
                run.append(stored)
                total += len(stored.entry)
                expected += 1
            if len(run) == before:
                break
        return run

    def last(self, ledger_id: int) -> StoredEntry | None:
        """The highest entry held of a ledger."""
        for attempt in (1, 2):
            found = self._index.last(ledger_id)
            if found is None:
                return None
            entry_id, location = found
            try:
                return self._read_at(location, ledger_id, entry_id, window=0)[0]
            except FileNotFoundError:
                if attempt == 2:
                    raise
        return None

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        """The entries the index knows of a ledger, rising. Raises: IndexUnusable."""
        return self._index.entry_ids(ledger_id)

    def _read_at(
        self, location: Location, ledger_id: int, entry_id: int, *, window: int | None = None
    ) -> list[StoredEntry]:
        window = self._read_ahead_bytes if window is None else window
        try:
            found = self.logs.read(location, window)
        except FileNotFoundError:
            raise
        except OSError:
            if not window:
                raise
            found = self.logs.read(location)  # What cannot be read may lie behind it.
        self._window.read(location.log, location.offset, location.offset + max(location.length, window))
        if found[0][:2] != (ledger_id, entry_id):
            raise EntryLogCorrupt(
                self.logs.path(location.log),
                location.offset,
                f"holds entry {found[0][0]}:{found[0][1]} instead of {ledger_id}:{entry_id}",
            )
        return [StoredEntry(*stored) for stored in found]

    # Garbage, in the storage thread.

    def log_boundary(self) -> int:
        """Logs below this number are complete: nothing will be added to them."""
        writer = self._writer  # Read once: this is asked from the loop.
        return writer.log if writer is not None else self._next_log

    def complete_logs(self, below: int) -> list[int]:
        return [log_id for log_id in log_ids(self._disk, self._entries) if log_id < below]

    def ledger_map(self, log_id: int) -> LedgerMap:
        """What a complete log holds. One that a crash left without a map gets it now.

        Raises:
            EntryLogCorrupt: it has no map, and its records end before they should.
        """
        found = self.logs.read_map(log_id)
        if found is not None:
            return found
        usage: dict[int, int] = {}
        data_end = HEADER_BYTES
        for record in self.logs.scan(log_id):
            size = 8 + record.location.length
            usage[record.ledger_id] = usage.get(record.ledger_id, 0) + size
            data_end = record.location.offset + size
        if data_end < self.checkpoint_state.logs.get(log_id, 0):
            raise EntryLogCorrupt(self.logs.path(log_id), data_end, "the records end too early")
        file = self._disk.open(self.logs.path(log_id), writable=True)
        try:
            at = file.size()
            file.write(at, [encode_map(log_id, usage, data_end, at)])
            crash_point("bookie.log.before_map_sync")
            file.sync()
            crash_point("bookie.log.mapped")
        finally:
            file.close()
        return LedgerMap(usage, data_end)

    def compact_step(self, log_id: int, position: int, data_end: int, live: Collection[int]) -> int | None:
        """Copy some live entries of a log to the current one and point the index to the copies.

        Returns where to go on, or None when nothing live is left in the log.

        Raises:
            EntryLogCorrupt: a live entry is damaged; the log must stay.
        """
        copies: list[tuple[int, int, Parts]] = []
        copied = 0
        for record in self.logs.scan(log_id, position, data_end):
            position = record.location.offset + 8 + record.location.length
            if record.ledger_id not in live:
                continue
            if self._index.get(record.ledger_id, record.entry_id) != record.location:
                continue
            entry = self.logs.read(record.location)[0][2]
            parts = (entry[:ENTRY_HEADER_BYTES], entry[ENTRY_HEADER_BYTES:])
            copies.append((record.ledger_id, record.entry_id, parts))
            copied += len(entry)
            if copied >= _COMPACTION_STEP_BYTES:
                break
        else:
            if position < data_end:
                raise EntryLogCorrupt(self.logs.path(log_id), position, "a record is damaged")
        if copies:
            self.write_entries(copies)
            crash_point("bookie.compaction.copied")
        return position if copied >= _COMPACTION_STEP_BYTES else None

    def missing_logs(self) -> list[int]:
        """Logs that must exist, and do not."""
        return sorted(set(self.checkpoint_state.logs) - set(log_ids(self._disk, self._entries)))

    def verify_step(self, log_id: int, position: int, max_bytes: int) -> Verified:
        """Verify the records of a complete log from `position` on, some `max_bytes` of them. From any thread.

        Raises:
            EntryLogCorrupt: a record's head is damaged: what lies behind it can only be found by the index.
        """
        found = self.logs.read_map(log_id)
        promised = found.data_end if found is not None else self.checkpoint_state.logs.get(log_id, 0)
        damaged: list[DamagedEntry] = []
        seen, position = 0, max(position, HEADER_BYTES)
        start = position
        for record in self.logs.scan(log_id, position, found.data_end if found is not None else None):
            position = record.location.offset + 8 + record.location.length
            seen += 8 + record.location.length
            if not self._is_whole(record) and self._index.get(*record[:2]) == record.location:
                damaged.append(self._damaged(record))
            if seen >= max_bytes:
                self._window.read(log_id, start, position)
                return Verified(position, seen, damaged)
        if position < promised:
            raise EntryLogCorrupt(self.logs.path(log_id), position, "the records end too early")
        return Verified(None, seen, damaged)

    def verify_places(self, log_id: int, ledger_id: int) -> list[DamagedEntry]:
        """The entries of a ledger that should lie in this log and are not whole there. From any thread."""
        return [
            self._damaged(record)
            for record in self._places(log_id, ledger_id)
            if not self._is_whole(record) and self._index.get(*record[:2]) == record.location
        ]

    def _places(self, log_id: int, ledger_id: int) -> Iterator[StoredRecord]:
        for entry_id in self._index.entry_ids(ledger_id):
            location = self._index.get(ledger_id, entry_id)
            if location is not None and location.log == log_id:
                yield StoredRecord(ledger_id, entry_id, location)

    def _is_whole(self, record: StoredRecord) -> bool:
        try:
            return self.logs.read(record.location)[0][:2] == record[:2]
        except (EntryLogCorrupt, FileNotFoundError):
            return False

    def _damaged(self, record: StoredRecord) -> DamagedEntry:
        location = record.location
        return DamagedEntry(record.ledger_id, record.entry_id, self.logs.path(location.log), location.offset)

    def rescue(self, log_id: int, live: Collection[int]) -> bool:
        """Copy what is whole of a damaged log, found by the index, to the current one. Whether nothing live is left in it."""
        clean = True
        for ledger_id in live:
            copies: list[tuple[int, int, Parts]] = []
            for record in list(self._places(log_id, ledger_id)):
                if not self._is_whole(record):
                    clean = False
                    continue
                entry = self.logs.read(record.location)[0][2]
                copies.append((*record[:2], (entry[:ENTRY_HEADER_BYTES], entry[ENTRY_HEADER_BYTES:])))
                if sum(len(parts[1]) for _, _, parts in copies) >= _COMPACTION_STEP_BYTES:
                    self.write_entries(copies)
                    copies = []
            if copies:
                self.write_entries(copies)
            crash_point("bookie.rescue.copied")
        return clean

    def remove_logs(self, gone: Collection[int]) -> None:
        """Remove logs of which the index needs nothing any more."""
        remaining = {log_id: end for log_id, end in self.checkpoint_state.logs.items() if log_id not in gone}
        self.checkpoint_state = replace(self.checkpoint_state, logs=remaining)
        self._marks.write(self.checkpoint_state)
        crash_point("bookie.compaction.before_remove")
        for log_id in sorted(gone):
            self.logs.forget(log_id)
            self._disk.remove(self.logs.path(log_id))
        crash_point("bookie.compaction.removed")
        self._disk.sync_directory(self._entries)
        crash_point("bookie.compaction.removal_synced")
