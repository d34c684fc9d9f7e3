"""One file, read as records from the position that its topic has stored."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import BinaryIO, cast

from magnetar.connectors.errors import InvalidSetting, MalformedRecord, SourceUnreadable
from magnetar.connectors.file.listing import InputFile
from magnetar.connectors.file.order import SortedRows
from magnetar.connectors.file.rows import Row, open_rows
from magnetar.connectors.file.settings import FileSettings
from magnetar.connectors.interfaces import NOTHING_PUBLISHED, Record

GZIP_MAGIC = b"\x1f\x8b"


class FileReader:
    """Hands out a file's records in order, each with its position as sequence.

    Args:
        last_sequence: the position of the last record that was stored; -1 if there is none.
        on_malformed: called with each row that cannot become a record; it either raises, or the row is left out.
    Raises:
        SourceUnreadable: the file cannot be opened, or is not the one that `last_sequence` was a position in.
        InvalidSetting: a setting names a column that the file does not have.
    """

    def __init__(
        self,
        file: InputFile,
        settings: FileSettings,
        last_sequence: int,
        on_malformed: Callable[[MalformedRecord], None],
    ) -> None:
        self.file = file
        self._settings = settings
        self._on_malformed = on_malformed
        self._failure: MalformedRecord | None = None
        with _readable(file.path):
            self._stream = _open(file.path, settings)
        try:
            with _readable(file.path):
                self._rows = open_rows(self._stream, file.path, settings)
                self._check_columns()
                self._next = (
                    self._in_order(last_sequence) if settings.sort_by else self._as_it_lies(last_sequence)
                )
        except BaseException:
            self._stream.close()
            raise

    @property
    def offset(self) -> int:
        """Where the next row begins, in a file read as it lies."""
        return self._rows.offset

    def read(self, records_max: int, bytes_max: int) -> list[Record]:
        """The next records, at least one if there are any; none at the (present) end of the file."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._on_malformed(failure)
        records: list[Record] = []
        size = 0
        with _readable(self.file.path):
            while len(records) < records_max and size < bytes_max:
                try:
                    found = self._next()
                    if found is None:
                        break
                    record = self._record(*found)
                except MalformedRecord as failure:
                    if records:  # What is good goes out before the reason is told.
                        self._failure = failure
                        break
                    self._on_malformed(failure)
                    continue
                records.append(record)
                size += len(record.value)
        return records

    def close(self) -> None:
        self._stream.close()

    def _check_columns(self) -> None:
        columns = self._rows.columns
        wanted = [("key", self._settings.key), ("event_time", self._settings.event_time)]
        wanted += [("sort_by", column) for column in self._settings.sort_by or ()]
        for setting, column in wanted:
            if columns is not None and column is not None and column not in columns:
                reason = f"{self.file.path} has no column {column!r}; it has {', '.join(columns)}"
                raise InvalidSetting(setting, reason)

    def _as_it_lies(self, last_sequence: int) -> Callable[[], tuple[Row, int] | None]:
        rows = self._rows
        if last_sequence == NOTHING_PUBLISHED:
            rows.seek(rows.first)
        else:
            self._check_boundary(last_sequence)
            rows.seek(last_sequence)

        def next_row() -> tuple[Row, int] | None:
            row = rows.next()
            return None if row is None else (row, row.end)

        return next_row

    def _in_order(self, last_sequence: int) -> Callable[[], tuple[Row, int] | None]:
        rows = SortedRows(self._rows, self._settings.sort_by or (), self._on_malformed)
        if last_sequence >= len(rows):
            raise SourceUnreadable(
                self.file.path,
                f"has {len(rows)} rows, but {last_sequence + 1} were published from it: it was replaced",
            )
        ordinals = iter(range(last_sequence + 1, len(rows)))

        def next_row() -> tuple[Row, int] | None:
            ordinal = next(ordinals, None)
            return None if ordinal is None else (rows.row(ordinal), ordinal)

        return next_row

    def _check_boundary(self, offset: int) -> None:
        """What was published must end where a row of this file ends."""
        if offset == self._rows.first:
            return
        self._stream.seek(max(offset - 1, 0))
        last, after = self._stream.read(1), self._stream.read(1)
        if not last or offset < self._rows.first or (last != b"\n" and after):
            shape = "is shorter than that" if not last else "has no row ending there"
            raise SourceUnreadable(
                self.file.path, f"was published up to byte {offset} but {shape}: it was replaced or altered"
            )

    def _record(self, row: Row, sequence: int) -> Record:
        settings = self._settings
        key = None
        if settings.key is not None:
            key = _key(self._field(row, settings.key))
        event_time_ms = None
        if settings.event_time is not None:
            value = self._field(row, settings.event_time)
            try:
                event_time_ms = _epoch_ms(value)
            except (ValueError, OverflowError) as error:
                reason = f"has no time in {settings.event_time!r} but {value!r}"
                raise MalformedRecord(self.file.path, row.start, reason) from error
        return Record(
            row.value,
            key=key,
            event_time_ms=event_time_ms,
            partition_id=self.file.partition_id,
            sequence=sequence,
        )

    def _field(self, row: Row, column: str) -> object:
        try:
            return row.fields[column]
        except KeyError:
            raise MalformedRecord(self.file.path, row.start, f"has no {column!r}") from None


@contextmanager
def _readable(path: str) -> Iterator[None]:
    """Name the file in what the system says of it."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise SourceUnreadable(path, f"cannot be read: {error}") from error


def _open(path: str, settings: FileSettings) -> BinaryIO:
    if settings.compression == "none" or (settings.compression == "auto" and not _looks_packed(path)):
        return open(path, "rb")
    if settings.follow:
        raise SourceUnreadable(path, "is compressed, and a compressed file cannot be followed")
    if not settings.sort_by:
        return cast(BinaryIO, gzip.open(path, "rb"))
    spool = tempfile.TemporaryFile()  # noqa: SIM115 - it is the reader's to close.
    with gzip.open(path, "rb") as unpacked:  # Sorted rows are read back and forth: costly in a packed file.
        shutil.copyfileobj(unpacked, spool)
    spool.seek(0)
    return cast(BinaryIO, spool)


def _looks_packed(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def _key(value: object) -> str | None:
    """A cell as a message key. An empty one is no key."""
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True)


def _epoch_ms(value: object) -> int | None:
    if value is None or value == "":
        return None
    if isinstance(value, str) and not value.isascii():
        raise ValueError(value)
    if isinstance(value, (int, float)) or (isinstance(value, str) and value.isdecimal()):
        milliseconds = int(value)
    else:
        moment = datetime.fromisoformat(str(value))
        milliseconds = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if not 0 <= milliseconds < 2**63:
        raise ValueError(value)
    return milliseconds
