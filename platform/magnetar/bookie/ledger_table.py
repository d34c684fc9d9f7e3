"""What a bookie knows of its ledgers besides their entries, and the file that keeps it.

`LedgerTable` is the memory of it and belongs to the loop; `LedgerTableFile` belongs to the storage thread. Format:
`docs/formats/bookie-directory.md`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from magnetar.bookie.errors import DirectoryDamaged, NewerFormat
from magnetar.environment.crash import crash_point
from magnetar.environment.disk import Disk, DiskFile
from magnetar.environment.logs import get_logger
from magnetar.protocol.bookie import NO_LAC
from magnetar.protocol.checksum import crc32c

NO_ENTRY: Final = -1
VERSION: Final = 1
FIRST_TABLE: Final = 1
HEADER_BYTES: Final = 32
_MAGIC = b"MGLT"
_SUFFIX = ".ledgers"
_CHECKSUM = struct.Struct(">I")
_HEADER = struct.Struct(">IIQQ")
_RECORD = struct.Struct(">HBBqq")
_STATE, _DELETED = 1, 2
_FENCED = 1
_REWRITE_MIN_BYTES = 256 * 1024

log = get_logger("magnetar.bookie.storage")


class LedgerState:
    """One ledger on this bookie."""

    __slots__ = (
        "explicit_lac",
        "fenced",
        "fencing",
        "lac",
        "last_entry",
        "ledger_id",
        "master_key",
        "tail_known",
    )

    def __init__(self, ledger_id: int, master_key: bytes) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.fenced = False
        self.explicit_lac = NO_LAC
        # What follows is not kept on disk.
        self.fencing: asyncio.Future[None] | None = None
        """Done when the fence is durable; None when it is, or there is none."""
        self.lac = NO_LAC
        """The highest LAC that may be told: explicit ones once durable, and piggy-backed ones."""
        self.last_entry = NO_ENTRY
        self.tail_known = False
        """Whether `last_entry` and `lac` include what earlier processes stored."""


class LedgerTable:
    """All ledgers of this bookie, and which of them changed since the last checkpoint."""

    def __init__(self) -> None:
        self._ledgers: dict[int, LedgerState] = {}
        self._changed: dict[int, None] = {}
        self._keys: dict[bytes, bytes] = {}
        """Most ledgers have the same master key: one object for all of them."""
        self.get = self._ledgers.get

    def __len__(self) -> int:
        return len(self._ledgers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ledgers)

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers

    @property
    def has_changes(self) -> bool:
        return bool(self._changed)

    def register(self, ledger_id: int, master_key: bytes) -> LedgerState:
        """A ledger never seen before: this bookie holds nothing else of it."""
        state = self._ledgers[ledger_id] = LedgerState(ledger_id, self._shared(master_key))
        state.tail_known = True
        self._changed[ledger_id] = None
        return state

    def load(self, state: LedgerState) -> None:
        """A ledger as the file has it."""
        state.master_key = self._shared(state.master_key)
        self._ledgers[state.ledger_id] = state

    def _shared(self, master_key: bytes) -> bytes:
        return self._keys.setdefault(master_key, master_key)

    def changed(self, state: LedgerState) -> None:
        """What is kept on disk of this ledger differs from the file now."""
        self._changed[state.ledger_id] = None

    def doubt_tails(self) -> None:
        """What was lost of a ledger, and what is left of it, has to be found out."""
        for state in self._ledgers.values():
            state.tail_known = False

    def remove(self, ledger_id: int) -> bool:
        if self._ledgers.pop(ledger_id, None) is None:
            return False
        self._changed[ledger_id] = None
        return True

    def take_changes(self) -> list[bytes]:
        """The records that bring the file up to this moment."""
        records = []
        for ledger_id in self._changed:
            state = self._ledgers.get(ledger_id)
            records.append(encode_deletion(ledger_id) if state is None else encode_state(state))
        self._changed.clear()
        return records

    def snapshot(self) -> list[bytes]:
        """The records of the whole table."""
        return [encode_state(state) for state in self._ledgers.values()]


def encode_state(state: LedgerState) -> bytes:
    flags = _FENCED if state.fenced else 0
    return _encode(_STATE, flags, state.ledger_id, state.explicit_lac, state.master_key)


def encode_deletion(ledger_id: int) -> bytes:
    return _encode(_DELETED, 0, ledger_id, NO_LAC, b"")


def _encode(kind: int, flags: int, ledger_id: int, lac: int, key: bytes) -> bytes:
    rest = _RECORD.pack(len(key) + _RECORD.size - 2, kind, flags, ledger_id, lac) + key
    return _CHECKSUM.pack(crc32c(rest)) + rest


class LedgerTableFile:
    """The file: appended to at each checkpoint, written anew when most of it is superseded."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._directory = directory
        self._file: DiskFile | None = None
        self._fresh_bytes = HEADER_BYTES
        self.number = FIRST_TABLE
        self.end = HEADER_BYTES

    def path(self, number: int) -> Path:
        return table_path(self._directory, number)

    def load(self, number: int, durable_end: int) -> LedgerTable:
        """Read table `number`, which was durable up to `durable_end`, and remove the others.

        Raises:
            DirectoryDamaged: it is missing, or damaged before that place: fences may be lost.
            NewerFormat
        """
        path = self.path(number)
        table, position = read_table(self._disk, self._directory, number, durable_end)
        self.number, self.end = number, position
        if position > durable_end:
            # What a killed process appended and did not come to sync is part of the table now.
            self._file = self._disk.open(path, writable=True)
            self._file.sync()
        self._fresh_bytes = HEADER_BYTES + sum(map(len, table.snapshot()))
        for name in self._disk.list(self._directory):
            if name != path.name:
                self._disk.remove(self._directory / name)
        return table

    def salvage(self) -> LedgerTable:
        """What can still be read of the newest table there is, written anew as the next one."""
        numbers = [int(name[: -len(_SUFFIX)], 16) for name in self._disk.list(self._directory)
                   if name.endswith(_SUFFIX)]  # fmt: skip
        newest = max(numbers, default=0)
        table = LedgerTable()
        try:
            table, _ = read_table(self._disk, self._directory, newest, 0)
        except DirectoryDamaged as error:
            log.error("ledger_table.unreadable", reason=str(error))
        self.create(newest + 1, table.snapshot())
        for number in numbers:
            self._disk.remove(self.path(number))
        return table

    def create(self, number: int, records: Iterable[bytes]) -> None:
        """Write a whole table as `number`, durably, and go on with it."""
        data = _encode_header(number) + b"".join(records)
        crash_point("bookie.ledgers.before_rewrite")
        self._disk.replace_file(self.path(number), data)
        crash_point("bookie.ledgers.after_rewrite")
        self.close()
        self.number, self.end, self._fresh_bytes = number, len(data), len(data)

    def append(self, records: list[bytes]) -> None:
        """Make changes durable."""
        if not records:
            return
        if self._file is None:
            self._file = self._disk.open(self.path(self.number), writable=True)
        self.end += self._file.write(self.end, [b"".join(records)])
        crash_point("bookie.ledgers.before_sync")
        self._file.sync()
        crash_point("bookie.ledgers.after_sync")

    @property
    def wants_rewrite(self) -> bool:
        """Whether more than half of the file is superseded, going by its size when it was fresh."""
        return self.end > max(_REWRITE_MIN_BYTES, 2 * self._fresh_bytes)

    def remove(self, number: int) -> None:
        """Remove a table that `lastMark` no longer names."""
        self._disk.remove(self.path(number))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def table_path(directory: Path, number: int) -> Path:
    return directory / f"{number:08x}{_SUFFIX}"


def read_table(disk: Disk, directory: Path, number: int, durable_end: int) -> tuple[LedgerTable, int]:
    """Table `number`, which was durable up to `durable_end`, and where its records end. Raises as `load` does."""
    path = table_path(directory, number)
    try:
        data = disk.read_file(path)
    except FileNotFoundError as error:
        raise DirectoryDamaged(path, "the ledger table is missing") from error
    _check_header(path, data, number)
    table = LedgerTable()
    position = HEADER_BYTES
    while (end := _read_record(data, position, table)) is not None:
        position = end
    if position < durable_end:
        raise DirectoryDamaged(
            path, f"damaged at offset {position}; fences may be lost. Re-replicate this bookie's ledgers"
        )
    return table, position


def _read_record(data: bytes, position: int, table: LedgerTable) -> int | None:
    """Apply the record at `position`; returns its end, or None where there is none."""
    start = position + _CHECKSUM.size
    if len(data) < start + _RECORD.size:
        return None
    size, kind, flags, ledger_id, lac = _RECORD.unpack_from(data, start)
    end: int = start + 2 + size
    if size + 2 < _RECORD.size or end > len(data):
        return None
    if _CHECKSUM.unpack_from(data, position)[0] != crc32c(data[start:end]):
        return None
    if kind == _DELETED:
        table.remove(ledger_id)
        table.take_changes()
    else:
        state = LedgerState(ledger_id, data[start + _RECORD.size : end])
        state.fenced = bool(flags & _FENCED)
        state.explicit_lac = state.lac = lac
        table.load(state)
    return end


def _encode_header(number: int) -> bytes:
    rest = _HEADER.pack(VERSION, 0, number, 0)
    return _MAGIC + _CHECKSUM.pack(crc32c(rest)) + rest


def _check_header(path: Path, data: bytes, number: int) -> None:
    start = len(_MAGIC) + _CHECKSUM.size
    rest = data[start:HEADER_BYTES]
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        raise DirectoryDamaged(path, "not a ledger table")
    if _CHECKSUM.unpack_from(data, len(_MAGIC))[0] != crc32c(rest):
        raise DirectoryDamaged(path, "the header's checksum differs")
    version, _, stored_number, _ = _HEADER.unpack(rest)
    if version > VERSION:
        raise NewerFormat(path, version, VERSION)
    if stored_number != number:
        raise DirectoryDamaged(path, f"this is ledger table {stored_number}")
