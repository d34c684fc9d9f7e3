"""Entry logs: the bytes of their headers, records, maps and trailers, and one file of each kind of use.

`LogWriter` appends to the newest log, `LogFiles` reads any of them. Format: `docs/formats/entry-log.md`.
"""

from __future__ import annotations

import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, islice, repeat
from pathlib import Path
from typing import Final, NamedTuple

from google_crc32c import extend as _untyped_extend

from magnetar.bookie.errors import EntryLogCorrupt, NewerFormat
from magnetar.bookie.write_cache import Parts
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk, DiskFile
from magnetar.protocol.bookie import MAX_ENTRY_BYTES
from magnetar.protocol.checksum import crc32c
from magnetar.protocol.ledger_entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, entry_digest_matches

VERSION: Final = 1
HEADER_BYTES: Final = 64
RECORD_HEAD_BYTES: Final = 8
SUFFIX: Final = ".log"
_MAGIC = b"MGEL"
_TRAILER_MAGIC = b"MGEM"
_CHECKSUM = struct.Struct(">I")
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">II")
_HEADER = struct.Struct(">IIQQ")
_TRAILER = struct.Struct(">IIQQQQ")
_TRAILER_BYTES = len(_TRAILER_MAGIC) + _CHECKSUM.size + _TRAILER.size
_MAP_COUNT = struct.Struct(">I")
_MAP_PAIR = struct.Struct(">qQ")
_CHUNK = 512
_JOINED_MAX = 1 << 20
"""Up to here one copy costs less than many small buffers do; beyond it takes new pages each time."""
_LIKE_A_LENGTH = re.compile(rb"\x00(?=(?!\x00\x00\x00).{3}\x00)", re.DOTALL)
"""Where a record's length may be: below 16 MiB and not 0, and a ledger id below 2^56 behind it. A disk that lost what was
there often gives zeros, for megabytes."""
_extend: Callable[[int, bytes], int] = _untyped_extend
_WINDOW = 256 * 1024
_OPEN_FILES_MAX = 128


class Location(NamedTuple):
    """Where an entry lies: the offset is that of its record, the length that of the entry."""

    log: int
    offset: int
    length: int


class StoredRecord(NamedTuple):
    ledger_id: int
    entry_id: int
    location: Location


@dataclass(frozen=True, slots=True)
class LedgerMap:
    """What a log holds: bytes of records by ledger, and where the records end."""

    bytes_by_ledger: Mapping[int, int]
    data_end: int


def log_path(directory: Path, log: int) -> Path:
    return directory / f"{log:08x}{SUFFIX}"


def log_ids(disk: Disk, directory: Path) -> list[int]:
    return sorted(int(name[: -len(SUFFIX)], 16) for name in disk.list(directory) if name.endswith(SUFFIX))


class LogWriter:
    """The log that is being written. Belongs to the storage thread."""

    def __init__(self, disk: Disk, directory: Path, log: int, now_ms: int) -> None:
        """Create the log; its name is durable when this returns."""
        self.log = log
        self._disk = disk
        self._path = log_path(directory, log)
        self._file = disk.create(self._path)
        self.synced_end = 0
        try:
            self._file.write(0, [_encode_header(log, now_ms)])
        except OSError:
            self.abandon()
            raise
        crash_point("bookie.log.written")
        disk.sync_directory(directory)
        crash_point("bookie.log.created")
        self.end = HEADER_BYTES
        self.bytes_by_ledger: dict[int, int] = {}

    def append(self, entries: Iterable[tuple[int, int, Parts]]) -> list[StoredRecord]:
        """Write entries one after the other, unsynced; returns where they lie."""
        stored: list[StoredRecord] = []
        entries = iter(entries)
        while chunk := list(islice(entries, _CHUNK)):
            stored += self._append_chunk(chunk)
        return stored

    def _append_chunk(self, chunk: list[tuple[int, int, Parts]]) -> Iterator[StoredRecord]:
        """Column by column, because a step of the interpreter for each entry and column costs more than its bytes do."""
        ledger_ids, entry_ids, bodies = zip(*chunk, strict=True)
        lengths = [sum(map(len, parts)) for parts in bodies]
        covered = [_LENGTH.pack(length) + parts[0] for length, parts in zip(lengths, bodies, strict=True)]
        heads = map(_CHECKSUM.pack, map(_extend, repeat(0), covered))
        offsets = list(accumulate(map(RECORD_HEAD_BYTES.__add__, lengths), initial=self.end))
        usage = self.bytes_by_ledger
        for ledger_id, length in zip(ledger_ids, lengths, strict=True):
            usage[ledger_id] = usage.get(ledger_id, 0) + RECORD_HEAD_BYTES + length
        rests = [parts[1] if len(parts) == 2 else b"".join(parts[1:]) for parts in bodies]
        self._write(
            list(chain.from_iterable(zip(heads, covered, rests, strict=True))), offsets[-1] - offsets[0]
        )
        new = tuple.__new__
        places = map(new, repeat(Location), zip(repeat(self.log), offsets, lengths))
        return map(new, repeat(StoredRecord), zip(ledger_ids, entry_ids, places, strict=True))

    def sync(self) -> None:
        self._file.sync()
        self.synced_end = self.end

    def seal(self) -> None:
        """Append the ledger map, durably, and close."""
        self._file.write(self.end, [encode_map(self.log, self.bytes_by_ledger, self.end, self.end)])
        crash_point("bookie.log.before_seal")
        self.sync()
        crash_point("bookie.log.sealed")
        self.close()

    def abandon(self) -> None:
        """Close after a failed write. What lies behind the last sync is dead, and its space is given back."""
        try:
            if self.synced_end:
                self._file.truncate(self.synced_end)
            else:
                self._disk.remove(self._path)
        finally:
            self._file.close()

    def close(self) -> None:
        self._file.close()

    def _write(self, buffers: list[bytes], size: int) -> None:
        if buffers:
            joined = size <= _JOINED_MAX
            self.end += self._file.write(self.end, [b"".join(buffers)] if joined else buffers)


class LogFiles:
    """Reads any log from any thread; keeps a bounded number of files open."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = threading.Lock()
        self._idle: OrderedDict[int, list[DiskFile]] = OrderedDict()
        self._idle_count = 0
        self._forgotten: set[int] = set()

    def path(self, log: int) -> Path:
        return log_path(self._directory, log)

    @contextmanager
    def opened(self, log: int) -> Iterator[DiskFile]:
        """A handle nobody else uses meanwhile. Raises FileNotFoundError where the log is gone."""
        with self._lock:
            handles = self._idle.get(log)
            file = handles.pop() if handles else None
            if file is not None:
                self._idle_count -= 1
            if not handles:
                self._idle.pop(log, None)
        if file is None:
            file = self._disk.open(self.path(log))
        try:
            yield file
        finally:
            self._give_back(log, file)

    def forget(self, log: int) -> None:
        """Close what is open of a log that is going away, and later what is in use now."""
        with self._lock:
            self._forgotten.add(log)
            handles = self._idle.pop(log, [])
            self._idle_count -= len(handles)
        for file in handles:
            file.close()

    def close(self) -> None:
        for log in list(self._idle):
            self.forget(log)

    def read(self, location: Location, window: int = 0) -> list[tuple[int, int, bytes]]:
        """The entry at `location` and, from up to `window` bytes read at once, whole ones of its ledger after it.

        Raises:
            EntryLogCorrupt: the first is damaged; later ones that are merely end the list.
            FileNotFoundError, OSError
        """
        size = RECORD_HEAD_BYTES + location.length
        with self.opened(location.log) as file:
            data = file.read(location.offset, max(size, window))
        found: list[tuple[int, int, bytes]] = []
        position = 0
        while len(data) - position >= RECORD_HEAD_BYTES + ENTRY_HEADER_BYTES:
            entry = _entry_at(data, position)
            if entry is None:
                break
            ledger_id, entry_id = ENTRY_HEADER.unpack_from(entry)[:2]
            if found and ledger_id != found[0][0]:
                break
            found.append((ledger_id, entry_id, entry))
            position += RECORD_HEAD_BYTES + len(entry)
        if not found or len(found[0][2]) != location.length:
            raise EntryLogCorrupt(
                self.path(location.log), location.offset, "the record is damaged or not where it was"
            )
        return found

    def scan(self, log: int, start: int = HEADER_BYTES, end: int | None = None) -> Iterator[StoredRecord]:
        """The records from `start` up to `end` or to the first that is none; payloads are passed over unread."""
        with self.opened(log) as file:
            end = file.size() if end is None else min(end, file.size())
            position = max(start, HEADER_BYTES)
            window, window_at = b"", 0
            need = RECORD_HEAD_BYTES + ENTRY_HEADER_BYTES
            while position + need <= end:
                at = position - window_at
                if at < 0 or at + need > len(window):
                    window, window_at, at = file.read(position, _WINDOW), position, 0
                if len(window) - at < need:
                    return
                head = _head_at(window, at)
                if head is None or position + RECORD_HEAD_BYTES + head[2] > end:
                    return
                ledger_id, entry_id, length = head
                yield StoredRecord(ledger_id, entry_id, Location(log, position, length))
                position += RECORD_HEAD_BYTES + length

    def resume(self, log: int, damaged: int, end: int) -> int | None:
        """Where records go on behind a damaged head at `damaged`, before `end`; None if nowhere.

        Where its length says, if a record begins there; else at the next place at which a whole entry lies, payload
        included: the damaged length may have been anything.
        """
        need = RECORD_HEAD_BYTES + ENTRY_HEADER_BYTES
        with self.opened(log) as file:
            end = min(end, file.size())
            head = file.read(damaged, need)
            if len(head) < need:
                return None
            length: int = _LENGTH.unpack_from(head, _CHECKSUM.size)[0]
            after = damaged + RECORD_HEAD_BYTES + length
            if length <= MAX_ENTRY_BYTES and after + need <= end and _head_at(file.read(after, need), 0):
                return after
            window_at = damaged + 1
            while window_at + need <= end:
                window = file.read(window_at, _WINDOW)
                for match in _LIKE_A_LENGTH.finditer(window, _CHECKSUM.size):
                    place = match.start() - _CHECKSUM.size
                    if place > len(window) - need:
                        break
                    if (found := _head_at(window, place)) is not None:
                        record = file.read(window_at + place, RECORD_HEAD_BYTES + found[2])
                        if window_at + place + len(record) <= end and _entry_at(record, 0) is not None:
                            return window_at + place
                window_at += max(1, len(window) - need + 1)
        return None

    def check_header(self, log: int) -> None:
        """Raises: EntryLogCorrupt, NewerFormat, FileNotFoundError."""
        path = self.path(log)
        with self.opened(log) as file:
            header = file.read(0, HEADER_BYTES)
        start = len(_MAGIC) + _CHECKSUM.size
        rest = header[start : start + _HEADER.size]
        if len(header) < HEADER_BYTES or not header.startswith(_MAGIC):
            raise EntryLogCorrupt(path, 0, "no header")
        if _CHECKSUM.unpack_from(header, len(_MAGIC))[0] != crc32c(rest):
            raise EntryLogCorrupt(path, 0, "the header's checksum differs")
        version, _, stored_log, _ = _HEADER.unpack(rest)
        if version > VERSION:
            raise NewerFormat(path, version, VERSION)
        if stored_log != log:
            raise EntryLogCorrupt(path, 0, f"this is entry log {stored_log}")

    def read_map(self, log: int) -> LedgerMap | None:
        """What a sealed log says it holds; None if it is not sealed."""
        with self.opened(log) as file:
            size = file.size()
            trailer = file.read(max(0, size - _TRAILER_BYTES), _TRAILER_BYTES)
            if len(trailer) < _TRAILER_BYTES or not trailer.startswith(_TRAILER_MAGIC):
                return None
            rest = trailer[-_TRAILER.size :]
            version, _, map_at, data_end, stored_log, _ = _TRAILER.unpack(rest)
            if stored_log != log or version > VERSION or not HEADER_BYTES <= map_at <= size - _TRAILER_BYTES:
                return None
            pairs = file.read(map_at, size - _TRAILER_BYTES - map_at)
        if _CHECKSUM.unpack_from(trailer, len(_TRAILER_MAGIC))[0] != crc32c(pairs, rest):
            return None
        return LedgerMap(dict(_MAP_PAIR.iter_unpack(pairs[_MAP_COUNT.size :])), data_end)

    def _give_back(self, log: int, file: DiskFile) -> None:
        surplus: list[DiskFile] = []
        with self._lock:
            if log in self._forgotten:
                surplus.append(file)
            else:
                if self._idle_count >= _OPEN_FILES_MAX:
                    _, surplus = self._idle.popitem(last=False)
                    self._idle_count -= len(surplus)
                self._idle.setdefault(log, []).append(file)
                self._idle.move_to_end(log)
                self._idle_count += 1
        for handle in surplus:
            handle.close()


def encode_map(log: int, bytes_by_ledger: Mapping[int, int], data_end: int, at: int) -> bytes:
    """Map and trailer, to be written at `at` as the end of the file."""
    pairs = _MAP_COUNT.pack(len(bytes_by_ledger)) + b"".join(
        _MAP_PAIR.pack(ledger_id, size) for ledger_id, size in sorted(bytes_by_ledger.items())
    )
    rest = _TRAILER.pack(VERSION, 0, at, data_end, log, 0)
    return pairs + _TRAILER_MAGIC + _CHECKSUM.pack(crc32c(pairs, rest)) + rest


def _encode_header(log: int, now_ms: int) -> bytes:
    rest = _HEADER.pack(VERSION, HEADER_BYTES, log, now_ms)
    encoded = _MAGIC + _CHECKSUM.pack(crc32c(rest)) + rest
    return encoded + bytes(HEADER_BYTES - len(encoded))


def _head_at(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Ledger, entry and length of the record at `at`, if its head is one."""
    stored, length = _HEAD.unpack_from(data, at)
    covered = data[at + _CHECKSUM.size : at + RECORD_HEAD_BYTES + ENTRY_HEADER_BYTES]
    if not ENTRY_HEADER_BYTES <= length <= MAX_ENTRY_BYTES or crc32c(covered) != stored:
        return None
    ledger_id, entry_id = ENTRY_HEADER.unpack_from(data, at + RECORD_HEAD_BYTES)[:2]
    return ledger_id, entry_id, length


def _entry_at(data: bytes, at: int) -> bytes | None:
    """The whole, undamaged entry of the record at `at`."""
    head = _head_at(data, at)
    if head is None:
        return None
    start = at + RECORD_HEAD_BYTES
    entry = data[start : start + head[2]]
    if len(entry) < head[2] or not entry_digest_matches(
        entry[:ENTRY_HEADER_BYTES], (entry[ENTRY_HEADER_BYTES:],)
    ):
        return None
    return entry
