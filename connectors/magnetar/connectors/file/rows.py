"""Rows of a file, one at a time, with the byte offset each ends at.

A row is whole or it is not there: where a file is still growing, what follows the last complete row is left for later.
Neither reader looks ahead beyond the row it returns, so `offset` is exact.
"""

from __future__ import annotations

import codecs
import csv
import json
from typing import BinaryIO, NamedTuple, NoReturn, Protocol

from magnetar.connectors.errors import MalformedRecord, SourceUnreadable
from magnetar.connectors.file.settings import FileSettings

JsonObject = dict[str, object]


class Row(NamedTuple):
    fields: JsonObject
    value: bytes
    """The row as a JSON object."""
    start: int
    end: int


class HeaderMissing(SourceUnreadable):
    """There is no complete header line; in a file that may grow, not yet."""


class Rows(Protocol):
    """A cursor over a file's rows."""

    @property
    def first(self) -> int:
        """Where the first row begins: after byte order mark and header."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The names every row has; None where each row names its own."""

    @property
    def offset(self) -> int:
        """Where the next row begins."""

    def seek(self, offset: int) -> None:
        """Go on at `offset`, where a row begins."""

    def next(self) -> Row | None:
        """The next row; None at the end. Raises MalformedRecord, after which the cursor is behind that row."""


def open_rows(stream: BinaryIO, path: str, settings: FileSettings) -> Rows:
    """Raises MalformedRecord or SourceUnreadable if the header cannot be used."""
    lines = Lines(stream, path, settings)
    return CsvRows(lines, settings) if settings.format == "csv" else JsonRows(lines)


class Lines:
    """The lines of a file, as bytes or as text, and what offset they lead to."""

    def __init__(self, stream: BinaryIO, path: str, settings: FileSettings) -> None:
        self.path = path
        self.encoding = settings.encoding
        self.may_grow = settings.follow
        self.starved = False
        """The file ended when a line was asked for."""
        self.row_start = 0
        self._stream = stream
        self._max_bytes = settings.max_record_bytes
        mark = stream.read(len(codecs.BOM_UTF8))
        self.offset = len(mark) if mark == codecs.BOM_UTF8 else 0
        self.seek(self.offset)

    def seek(self, offset: int) -> None:
        self._stream.seek(offset)
        self.offset = self.row_start = offset
        self.starved = False

    def next_line(self) -> bytes | None:
        """The next line with its line end; None where none is complete."""
        line = self._stream.readline(self._max_bytes + 1)
        if not line or (self.may_grow and line[-1] != 0x0A and len(line) <= self._max_bytes):
            self.starved = True
            return None
        self.offset += len(line)
        if self.offset - self.row_start > self._max_bytes:
            self._skip_line(line)
            self.malformed(f"is longer than max_record_bytes ({self._max_bytes})")
        return line

    def __iter__(self) -> Lines:
        return self

    def __next__(self) -> str:
        line = self.next_line()
        if line is None:
            raise StopIteration
        return line.decode(self.encoding)

    def malformed(self, reason: str) -> NoReturn:
        raise MalformedRecord(self.path, self.row_start, reason)

    def _skip_line(self, line: bytes) -> None:
        while line and line[-1] != 0x0A:
            line = self._stream.readline(self._max_bytes)
            self.offset += len(line)


class CsvRows:
    """Rows of comma-separated values (RFC 4180: quoted fields may hold delimiters, quotes and line ends)."""

    columns: tuple[str, ...]

    def __init__(self, lines: Lines, settings: FileSettings) -> None:
        self._lines = lines
        self._delimiter = settings.delimiter
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        self._parser = csv.reader(lines, delimiter=self._delimiter)
        csv.field_size_limit(max(csv.field_size_limit(), settings.max_record_bytes))
        self.columns = settings.columns or self._header()
        self.first = lines.offset

    @property
    def offset(self) -> int:
        return self._lines.offset

    def seek(self, offset: int) -> None:
        self._lines.seek(offset)
        self._parser = csv.reader(self._lines, delimiter=self._delimiter)

    def next(self) -> Row | None:
        while True:
            start = self._lines.row_start = self._lines.offset
            values = self._values(start)
            if values is None:
                return None
            if not values:
                continue  # A blank line.
            if len(values) != len(self.columns):
                self._lines.malformed(f"has {len(values)} values for {len(self.columns)} columns")
            fields: JsonObject = dict(zip(self.columns, values, strict=True))
            return Row(fields, self._encode(fields).encode(), start, self._lines.offset)

    def _values(self, start: int) -> list[str] | None:
        try:
            values = next(self._parser, None)
        except (csv.Error, UnicodeDecodeError) as error:
            self.seek(self._lines.offset)
            raise MalformedRecord(self._lines.path, start, f"cannot be parsed: {error}") from error
        except MalformedRecord:
            self.seek(self._lines.offset)
            raise
        if values is not None and not self._lines.starved:
            return values
        if values is not None and not self._lines.may_grow:  # The file ended inside a row, so inside quotes.
            self.seek(self._lines.offset)
            raise MalformedRecord(self._lines.path, start, "opens a quote that is never closed")
        self.seek(start)
        return None

    def _header(self) -> tuple[str, ...]:
        names = self._values(self._lines.offset)
        if not names:
            raise HeaderMissing(self._lines.path, "has no header line; name its columns with `columns`")
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise SourceUnreadable(self._lines.path, f"its header names column {repeated!r} twice")
        return tuple(names)


class JsonRows:
    """Rows of one JSON object a line, passed on as they are written."""

    columns = None

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
        self.first = lines.offset

    @property
    def offset(self) -> int:
        return self._lines.offset

    def seek(self, offset: int) -> None:
        self._lines.seek(offset)

    def next(self) -> Row | None:
        while True:
            start = self._lines.row_start = self._lines.offset
            line = self._lines.next_line()
            if line is None:
                self._lines.seek(start)
                return None
            if line.isspace():
                continue
            return Row(*self._parse(line), start, self._lines.offset)

    def _parse(self, line: bytes) -> tuple[JsonObject, bytes]:
        try:
            text = line.decode(self._lines.encoding).strip()
            fields = self._decode(text)
        except (ValueError, RecursionError) as error:
            raise MalformedRecord(self._lines.path, self._lines.row_start, f"is not JSON: {error}") from error
        if not isinstance(fields, dict):
            self._lines.malformed(f"is not a JSON object but {type(fields).__name__}")
        return fields, text.encode()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
