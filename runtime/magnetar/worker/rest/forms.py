"""Multipart bodies, read as they come in: fields are kept, within a limit; a file goes straight to disk.

A refused body is still read to its end, for a while, because a client that is cut off while it sends never reads why.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect

from magnetar.worker.errors import BadRequest, WorkerError

DRAIN_S = 30.0
FIELDS_MAX = 16


class FileSink(Protocol):
    async def write(self, data: bytes) -> None: ...

    async def discard(self) -> None: ...


@dataclass(slots=True)
class Form:
    fields: dict[str, bytes] = field(default_factory=dict)
    file: Any = None
    """What `open_file` returned for the file part; None if there was none."""

    def text(self, name: str) -> str | None:
        """A field as text, None if absent or empty. Raises BadRequest."""
        try:
            return self.fields.get(name, b"").decode().strip() or None
        except UnicodeDecodeError as error:
            raise BadRequest(f"{name}: is not UTF-8") from error

    def json_object(self, name: str) -> dict[str, Any]:
        """A field as a JSON object. Raises BadRequest."""
        text = self.text(name)
        if text is None:
            raise BadRequest(f"{name} is not provided")
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"{name}: is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequest(f"{name}: must be a JSON object, not {type(value).__name__}")
        return value


async def receive_form(
    request: Request,
    *,
    field_bytes_max: int,
    file_part: str | None = None,
    open_file: Callable[[str], Awaitable[FileSink]] | None = None,
) -> Form:
    """Read the request's multipart body.

    Args:
        file_part: the part to hand to `open_file` with its file name. Other parts are fields.
    Raises:
        BadRequest, PackageTooLarge. The file is discarded then; otherwise that is up to the caller.
    """
    reader = _Reader(_boundary(request), field_bytes_max, file_part)
    form = Form(reader.fields)
    stream = request.stream()
    try:
        async for chunk in stream:
            for event in reader.feed(chunk):
                if isinstance(event, _FileBegins):
                    assert open_file is not None
                    form.file = await open_file(event.filename)
                elif form.file is not None:
                    await form.file.write(event)
        reader.finish()
    except BaseException as error:
        if form.file is not None:
            await form.file.discard()
        if isinstance(error, ClientDisconnect):
            raise BadRequest("the client went away before the request was complete") from error
        if isinstance(error, WorkerError):
            await _drain(stream)
        raise
    return form


def _boundary(request: Request) -> bytes:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise BadRequest("the request's body must be multipart/form-data")
    return options[b"boundary"]


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Read and forget what is left of the body."""
    try:
        async with asyncio.timeout(DRAIN_S):
            async for _ in stream:
                continue
    except (TimeoutError, ClientDisconnect):
        return  # It had its chance, or does not want it.


@dataclass(frozen=True, slots=True)
class _FileBegins:
    filename: str


class _Reader:
    """Turns chunks into fields and events of the file part. Without I/O."""

    def __init__(self, boundary: bytes, field_bytes_max: int, file_part: str | None) -> None:
        self.fields: dict[str, bytes] = {}
        self._field_bytes_max = field_bytes_max
        self._file_part = file_part
        self._file_seen = False
        self._events: list[_FileBegins | bytes] = []
        self._header_name = b""
        self._header_value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._in_file = False
        self._value = bytearray()
        self._complete = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begins,
                "on_header_field": self._header_field,
                "on_header_value": self._header_has_value,
                "on_header_end": self._header_ends,
                "on_headers_finished": self._headers_end,
                "on_part_data": self._part_data,
                "on_part_end": self._part_ends,
                "on_end": self._ends,
            },
        )

    def feed(self, chunk: bytes) -> list[_FileBegins | bytes]:
        """What `chunk` brings of the file. Raises BadRequest."""
        self._events = []
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise BadRequest(f"the multipart body is malformed: {error}") from error
        return self._events

    def finish(self) -> None:
        """Raises BadRequest: the body ended too early."""
        if not self._complete:
            raise BadRequest("the multipart body is cut short")

    def _part_begins(self) -> None:
        self._headers = {}
        self._value = bytearray()
        self._in_file = False

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _header_has_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _header_ends(self) -> None:
        self._headers[self._header_name.lower()] = self._header_value
        self._header_name = self._header_value = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._name in self.fields or (self._name == self._file_part and self._file_seen):
            raise BadRequest(f"the part {self._name!r} was sent twice")
        if len(self.fields) >= FIELDS_MAX:
            raise BadRequest(f"there are more than {FIELDS_MAX} parts")
        if self._name == self._file_part:
            filename = options.get(b"filename", b"").decode("utf-8", "replace")
            if not filename:
                raise BadRequest(f"the part {self._name!r} needs a filename: its suffix says what it is")
            self._in_file = self._file_seen = True
            self._events.append(_FileBegins(filename))

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._events.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > self._field_bytes_max:
            raise BadRequest(f"the part {self._name!r} is larger than {self._field_bytes_max} bytes")

    def _part_ends(self) -> None:
        if not self._in_file:
            self.fields[self._name] = bytes(self._value)

    def _ends(self) -> None:
        self._complete = True
