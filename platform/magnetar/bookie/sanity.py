"""Whether a bookie's data directory is whole: `magnetar bookie sanity`. For a bookie that does not run.

`check` only reads: every record of the journal behind the mark, every record of every entry log with its payload, every
place the index knows. `write_and_read` has a bookie keep something on the same disks, in a directory of its own: whether
this one is what the cluster knows nobody has asked yet, and nothing may be added to its journal before. Both look at one
directory; of a bookie with several, each is whole by itself.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.directory import COOKIE_FILE, ENTRIES, INDEX, JOURNAL, LEDGERS, read_cookie
from magnetar.bookie.entry_log import LogFiles, StoredRecord, log_ids
from magnetar.bookie.errors import BookieError, EntryLogCorrupt
from magnetar.bookie.index import EntryIndex, IndexUnusable
from magnetar.bookie.journal_replay import JournalReplay
from magnetar.bookie.ledger_table import LedgerTable, read_table
from magnetar.bookie.mark import Checkpoint, MarkFile
from magnetar.bookie.record import Kind, decode_registration
from magnetar.bookie.segments import Segments
from magnetar.bookie.settings import BookieSettings
from magnetar.environment.clock import Clock, SystemClock
from magnetar.environment.directory_lock import DirectoryLock
from magnetar.environment.disk import Disk, SystemDisk
from magnetar.protocol.bookie import AddFlags, BookieStatus, master_key
from magnetar.protocol.ledger_entry import ENTRY_HEADER, encode_entry_header

_TRIAL_LEDGER = 2**62 + 1
_TRIAL_ENTRIES = 16
_TRIAL_FOLDER = ".sanity"
_WAIT_S = 30.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written."""

    file: str
    what: str
    offset: int | None = None
    ledger_id: int | None = None
    entry_id: int | None = None


@dataclass(slots=True)
class SanityReport:
    bookie_id: str = ""
    journal_records: int = 0
    entry_logs: int = 0
    entries: int = 0
    """Records in entry logs, dead ones too."""
    indexed: int = 0
    ledgers: int = 0
    problems: list[Problem] = field(default_factory=list)

    @property
    def sane(self) -> bool:
        return not self.problems


def check(directory: Path, *, disk: Disk | None = None, clock: Clock | None = None) -> SanityReport:
    """Read all of a data directory and say what is wrong with it.

    Raises:
        DirectoryInUse: a bookie runs on it.
        ForeignDirectory, NewerFormat: it is not one this program can judge.
    """
    lock = DirectoryLock(directory)
    try:
        return _Check(directory, disk or SystemDisk(), clock or SystemClock()).run()
    finally:
        lock.release()


class _Check:
    def __init__(self, directory: Path, disk: Disk, clock: Clock) -> None:
        self._directory = directory
        self._disk = disk
        self._clock = clock
        self._report = SanityReport()
        self._logs = LogFiles(disk, directory / ENTRIES)
        self._deleted_or_journalled: set[tuple[int, int]] = set()

    def run(self) -> SanityReport:
        report = self._report
        cookie = read_cookie(self._disk, self._directory / COOKIE_FILE)
        report.bookie_id = cookie.bookie_id
        self._journal_directory = cookie.journal or self._directory / JOURNAL
        try:
            checkpoint = MarkFile(self._disk, self._directory).read()
        except BookieError as error:
            self._problem(self._directory / "lastMark", error)
            checkpoint = None
        table = self._table(checkpoint)
        if checkpoint is not None:
            self._journal(checkpoint, table)
        report.ledgers = len(table)
        good = self._entry_logs(checkpoint)
        self._index(good, table)
        self._logs.close()
        return report

    def _problem(self, file: Path, error: object, offset: int | None = None) -> None:
        self._report.problems.append(Problem(str(file), str(error), offset))

    def _table(self, checkpoint: Checkpoint | None) -> LedgerTable:
        if checkpoint is None:
            return LedgerTable()
        try:
            return read_table(
                self._disk, self._directory / LEDGERS, checkpoint.ledgers, checkpoint.ledgers_end
            )[0]
        except BookieError as error:
            self._problem(self._directory / LEDGERS, error)
            return LedgerTable()

    def _journal(self, checkpoint: Checkpoint, table: LedgerTable) -> None:
        segments = Segments(
            self._disk, self._journal_directory, segment_bytes=1, first_bytes=1, clock=self._clock
        )
        replay = JournalReplay(segments, checkpoint.mark)
        try:
            for record in replay:
                self._report.journal_records += 1
                if record.kind is Kind.ENTRY:
                    self._deleted_or_journalled.add(ENTRY_HEADER.unpack(record.body[0])[:2])
                elif record.kind is Kind.REGISTRATION:
                    ledger_id, key = decode_registration(record.body[0])
                    if ledger_id not in table:
                        table.register(ledger_id, key)
        except BookieError as error:
            self._problem(self._journal_directory, error, getattr(error, "offset", None))

    def _entry_logs(self, checkpoint: Checkpoint | None) -> dict[tuple[int, int], set[tuple[int, int]]]:
        """Verifies all records; returns the places of the good ones by entry."""
        report = self._report
        good: dict[tuple[int, int], set[tuple[int, int]]] = {}
        present = log_ids(self._disk, self._directory / ENTRIES)
        promised = dict(checkpoint.logs) if checkpoint is not None else {}
        for log_id in sorted(set(promised) - set(present)):
            self._problem(self._logs.path(log_id), "the entry log is missing")
        for log_id in present:
            report.entry_logs += 1
            path = self._logs.path(log_id)
            try:
                self._logs.check_header(log_id)
            except EntryLogCorrupt as error:
                if log_id in promised:
                    self._problem(path, error, error.offset)
            found = self._logs.read_map(log_id)
            reached = 64
            for record in self._logs.scan(log_id, end=found.data_end if found is not None else None):
                report.entries += 1
                reached = record.location.offset + 8 + record.location.length
                if self._is_whole(record):
                    places = good.setdefault((record.ledger_id, record.entry_id), set())
                    places.add(record.location[:2])
            end = max(promised.get(log_id, 0), found.data_end if found is not None else 0)
            if found is not None and log_id in promised:
                end = found.data_end
            if reached < end:
                self._problem(path, "the records end here, and should not", reached)
        return good

    def _is_whole(self, record: StoredRecord) -> bool:
        try:
            self._logs.read(record.location)
        except (EntryLogCorrupt, OSError) as error:
            self._report.problems.append(
                Problem(
                    str(self._logs.path(record.location.log)),
                    str(error),
                    record.location.offset,
                    record.ledger_id,
                    record.entry_id,
                )
            )
            return False
        return True

    def _index(self, good: dict[tuple[int, int], set[tuple[int, int]]], table: LedgerTable) -> None:
        path = self._directory / INDEX
        if not self._disk.exists(path):
            if good:
                self._problem(path, "there is none; the next start builds it anew")
            return
        indexed: set[tuple[int, int]] = set()
        try:
            index = EntryIndex(path)
            try:
                for record in index.places():
                    self._report.indexed += 1
                    key = (record.ledger_id, record.entry_id)
                    indexed.add(key)
                    if record.ledger_id in table and record.location[:2] not in good.get(key, ()):
                        self._report.problems.append(
                            Problem(
                                str(path),
                                f"no whole record at log {record.location.log:#x}, offset {record.location.offset}",
                                None,
                                *key,
                            )
                        )
            finally:
                index.close()
        except IndexUnusable as error:
            self._problem(path, error)
            return
        for key in sorted(set(good) - indexed - self._deleted_or_journalled):
            if key[0] in table:
                self._report.problems.append(
                    Problem(str(path), "a stored entry is not in the index", None, *key)
                )


async def write_and_read(directory: Path) -> list[Problem]:
    """Make a bookie beside the stored data; add, checkpoint, stop, start again, read back, and remove it.

    Raises: what `Bookie.start` raises, and OSError.
    """
    cookie = read_cookie(SystemDisk(), directory / COOKIE_FILE)
    places = [directory / _TRIAL_FOLDER]
    if cookie.journal is not None:
        places.append(cookie.journal.parent / _TRIAL_FOLDER)
    lock = DirectoryLock(directory)
    try:
        await asyncio.to_thread(_remove, places)
        return await _trial_of(directory, BookieSettings(places[0], journal_directories=tuple(places[1:])))
    finally:
        await asyncio.to_thread(_remove, places)
        lock.release()


def _remove(places: list[Path]) -> None:
    for place in places:
        if place.exists():
            shutil.rmtree(place)


async def _trial_of(directory: Path, settings: BookieSettings) -> list[Problem]:
    problems: list[Problem] = []
    entries = [_trial(entry_id) for entry_id in range(_TRIAL_ENTRIES)]

    def problem(what: str, entry_id: int) -> None:
        problems.append(Problem(str(directory), what, None, _TRIAL_LEDGER, entry_id))

    bookie = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="sanity")
    await bookie.start()
    try:
        loop = asyncio.get_running_loop()
        added: list[asyncio.Future[BookieStatus]] = []
        for entry_id, parts in enumerate(entries):
            added.append(loop.create_future())
            key = master_key(b"sanity")
            bookie.add_entry(_TRIAL_LEDGER, entry_id, parts, AddFlags.RECOVERY, key, added[-1].set_result)
        async with asyncio.timeout(_WAIT_S):
            for entry_id, status in enumerate(await asyncio.gather(*added)):
                if status is not BookieStatus.OK:
                    problem(f"a trial entry was refused with {status.name}", entry_id)
            await bookie.checkpoint()
    finally:
        await bookie.stop()
    again = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="sanity")
    await again.start()
    try:
        for entry_id, parts in enumerate(entries):
            read = await again.read_entry(_TRIAL_LEDGER, entry_id)
            if read.entry != b"".join(parts):
                problem(f"a trial entry was not read back: {read.status.name}", entry_id)
    finally:
        await again.stop()
    return problems


def _trial(entry_id: int) -> list[bytes]:
    payload = b"trial %d" % entry_id * 64
    header = encode_entry_header(
        _TRIAL_LEDGER, entry_id, entry_id - 1, (entry_id + 1) * len(payload), [payload]
    )
    return [header, payload]
