"""The frames between a ledger client and a bookie's server: a codec without I/O. Bytes in `docs/formats/bookie-protocol.md`.

    length 4 | opcode 1 | request id 8 | fields by opcode        big-endian; `length` counts what follows it

Requests are pipelined and answered in any order; an answer's opcode is the request's with the high bit set. Adds
are the hot path: an entry goes in and comes out as views of the bytes given, and one `Added` frame answers many.
The first frame of each side is a hello with the protocol's version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from magnetar.protocol.bookie import (
    MAX_ENTRY_BYTES,
    MAX_RUN_BYTES,
    AddFlags,
    BookieInfo,
    BookieStatus,
    EntryList,
    EntryRead,
    LacRead,
)
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import (
    FrameTooLarge,
    FrameTruncated,
    LyingLength,
    MalformedCommand,
    UnknownCommand,
)

PROTOCOL_VERSION: Final = 1
MAGIC: Final = b"MGBK"
MAX_REQUEST_BYTES: Final = MAX_ENTRY_BYTES + 512
MAX_RESPONSE_BYTES: Final = MAX_RUN_BYTES + MAX_ENTRY_BYTES + 512

_ANSWER = 0x80
HELLO, ADD, READ, READ_RUN, READ_LAC, WRITE_LAC, INFO, LIST, WAIT_LAC = range(1, 10)

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">IBQ")
_HEAD_AFTER_LENGTH = _HEAD.size - _LENGTH.size
_HELLO = struct.Struct(">4sB")
_ADD = struct.Struct(">qqBB")
_ADD_HEAD = struct.Struct(">IBQqqBB")
_READ = struct.Struct(">qqBB")
_READ_RUN = struct.Struct(">qqII")
_READ_LAC = struct.Struct(">qBB")
_WRITE_LAC = struct.Struct(">qqB")
_LEDGER = struct.Struct(">q")
_WAIT_LAC = struct.Struct(">qqI")
_STATUS = struct.Struct(">B")
_ENTRY = struct.Struct(">Bq")
_RUN = struct.Struct(">BI")
_LAC = struct.Struct(">Bqq")
_INFO = struct.Struct(">BQQB")
_RANGE = struct.Struct(">qq")
_FENCE = 1
_BACKGROUND = b"\x01"
_STATUSES: Final = {status.value: status for status in BookieStatus}
_ADD_FLAGS: Final = {value: AddFlags(value) for value in range(8)}


# What is asked.


@dataclass(slots=True)
class Hello:
    """The first frame of a client. The request id is 0, here as in the answer."""

    version: int


@dataclass(slots=True)
class AddRequest:
    request_id: int
    ledger_id: int
    entry_id: int
    flags: AddFlags
    master_key: bytes
    entry: memoryview


@dataclass(slots=True)
class ReadRequest:
    request_id: int
    ledger_id: int
    entry_id: int
    fence: bool
    master_key: bytes


@dataclass(slots=True)
class ReadRunRequest:
    request_id: int
    ledger_id: int
    first: int
    count: int
    max_bytes: int
    background: bool = False


@dataclass(slots=True)
class ReadLacRequest:
    request_id: int
    ledger_id: int
    fence: bool
    master_key: bytes


@dataclass(slots=True)
class WriteLacRequest:
    request_id: int
    ledger_id: int
    lac: int
    master_key: bytes


@dataclass(slots=True)
class InfoRequest:
    request_id: int


@dataclass(slots=True)
class ListRequest:
    request_id: int
    ledger_id: int


@dataclass(slots=True)
class WaitLacRequest:
    request_id: int
    ledger_id: int
    above: int
    timeout_s: float


Request = (
    Hello
    | AddRequest
    | ReadRequest
    | ReadRunRequest
    | ReadLacRequest
    | WriteLacRequest
    | InfoRequest
    | ListRequest
    | WaitLacRequest
)


# What is answered.


@dataclass(slots=True)
class Welcome:
    """The first frame of a server: the version it speaks and who it is."""

    version: int
    bookie_id: str


@dataclass(slots=True)
class Added:
    """One status for all these adds."""

    status: BookieStatus
    request_ids: tuple[int, ...]


@dataclass(slots=True)
class EntryAnswer:
    request_id: int
    read: EntryRead


@dataclass(slots=True)
class RunAnswer:
    request_id: int
    status: BookieStatus
    entries: list[bytes]


@dataclass(slots=True)
class LacAnswer:
    request_id: int
    read: LacRead


@dataclass(slots=True)
class LacWritten:
    request_id: int
    status: BookieStatus


@dataclass(slots=True)
class InfoAnswer:
    request_id: int
    info: BookieInfo


@dataclass(slots=True)
class ListAnswer:
    request_id: int
    entries: EntryList


Answer = Welcome | Added | EntryAnswer | RunAnswer | LacAnswer | LacWritten | InfoAnswer | ListAnswer


# Encoding requests.


def encode_hello(version: int = PROTOCOL_VERSION) -> bytes:
    return _frame(HELLO, 0, _HELLO.pack(MAGIC, version))


def encode_add(
    request_id: int,
    ledger_id: int,
    entry_id: int,
    parts: Sequence[Buffer],
    flags: AddFlags,
    master_key: bytes,
) -> list[Buffer]:
    """The frame of an add as buffers to be written together; `parts` are passed on untouched."""
    size = _ADD_HEAD.size - _LENGTH.size + len(master_key) + sum(map(len, parts))
    head = _ADD_HEAD.pack(size, ADD, request_id, ledger_id, entry_id, flags, len(master_key)) + master_key
    return [head, *parts]


def encode_read(request_id: int, ledger_id: int, entry_id: int, *, fence: bool, master_key: bytes) -> bytes:
    flags = _FENCE if fence else 0
    return _frame(READ, request_id, _READ.pack(ledger_id, entry_id, flags, len(master_key)), master_key)


def encode_read_run(
    request_id: int, ledger_id: int, first: int, count: int, max_bytes: int, *, background: bool = False
) -> bytes:
    fields = _READ_RUN.pack(ledger_id, first, count, max_bytes)
    return _frame(READ_RUN, request_id, fields, _BACKGROUND if background else b"")


def encode_read_lac(request_id: int, ledger_id: int, *, fence: bool, master_key: bytes) -> bytes:
    flags = _FENCE if fence else 0
    return _frame(READ_LAC, request_id, _READ_LAC.pack(ledger_id, flags, len(master_key)), master_key)


def encode_write_lac(request_id: int, ledger_id: int, lac: int, master_key: bytes) -> bytes:
    return _frame(WRITE_LAC, request_id, _WRITE_LAC.pack(ledger_id, lac, len(master_key)), master_key)


def encode_info(request_id: int) -> bytes:
    return _frame(INFO, request_id)


def encode_list(request_id: int, ledger_id: int) -> bytes:
    return _frame(LIST, request_id, _LEDGER.pack(ledger_id))


def encode_wait_lac(request_id: int, ledger_id: int, above: int, timeout_s: float) -> bytes:
    return _frame(WAIT_LAC, request_id, _WAIT_LAC.pack(ledger_id, above, round(timeout_s * 1000)))


# Encoding answers.


def encode_welcome(bookie_id: str, version: int = PROTOCOL_VERSION) -> bytes:
    return _frame(HELLO | _ANSWER, 0, _HELLO.pack(MAGIC, version), bookie_id.encode())


def encode_added(status: BookieStatus, request_ids: Sequence[int]) -> bytes:
    """One frame for many adds that ended alike."""
    ids = struct.pack(f">{len(request_ids)}Q", *request_ids)
    return _frame(ADD | _ANSWER, 0, _STATUS.pack(status), ids)


def encode_entry_answer(request_id: int, read: EntryRead) -> list[Buffer]:
    size = _HEAD_AFTER_LENGTH + _ENTRY.size + len(read.entry)
    head = _HEAD.pack(size, READ | _ANSWER, request_id) + _ENTRY.pack(read.status, read.lac)
    return [head, read.entry] if read.entry else [head]


def encode_run_answer(request_id: int, status: BookieStatus, entries: Sequence[bytes]) -> list[Buffer]:
    lengths = struct.pack(f">{len(entries)}I", *map(len, entries))
    size = _HEAD_AFTER_LENGTH + _RUN.size + len(lengths) + sum(map(len, entries))
    head = _HEAD.pack(size, READ_RUN | _ANSWER, request_id) + _RUN.pack(status, len(entries)) + lengths
    return [head, *entries]


def encode_lac_answer(request_id: int, read: LacRead, opcode: int = READ_LAC) -> list[Buffer]:
    size = _HEAD_AFTER_LENGTH + _LAC.size + len(read.entry)
    head = _HEAD.pack(size, opcode | _ANSWER, request_id)
    head += _LAC.pack(read.status, read.lac, read.last_entry)
    return [head, read.entry] if read.entry else [head]


def encode_lac_written(request_id: int, status: BookieStatus) -> bytes:
    return _frame(WRITE_LAC | _ANSWER, request_id, _STATUS.pack(status))


def encode_info_answer(request_id: int, info: BookieInfo) -> bytes:
    fields = _INFO.pack(BookieStatus.OK, info.free_bytes, info.total_bytes, info.read_only)
    return _frame(INFO | _ANSWER, request_id, fields)


def encode_list_answer(request_id: int, entries: EntryList) -> bytes:
    ranges = b"".join([_RANGE.pack(first, last) for first, last in entries.ranges])
    return _frame(LIST | _ANSWER, request_id, _STATUS.pack(entries.status), ranges)


def _frame(opcode: int, request_id: int, fields: bytes = b"", rest: bytes = b"") -> bytes:
    size = _HEAD_AFTER_LENGTH + len(fields) + len(rest)
    return _HEAD.pack(size, opcode, request_id) + fields + rest


# Decoding.


def _parse_hello(request_id: int, body: memoryview) -> Hello:
    if len(body) != _HELLO.size:
        raise MalformedCommand("a hello of the wrong size")
    return Hello(_version(body))


def _parse_add(request_id: int, body: memoryview) -> AddRequest:
    ledger_id, entry_id, flags, key_length = _ADD.unpack_from(body)
    start = _ADD.size + key_length
    if len(body) < start:
        raise LyingLength("a master key that points past the end of its frame")
    known = _ADD_FLAGS.get(flags)
    if known is None:
        raise MalformedCommand(f"an add with unknown flags {flags:#x}")
    return AddRequest(request_id, ledger_id, entry_id, known, bytes(body[_ADD.size : start]), body[start:])


def _parse_read(request_id: int, body: memoryview) -> ReadRequest:
    ledger_id, entry_id, flags, key_length = _READ.unpack_from(body)
    key = _rest(body, _READ.size, key_length)
    return ReadRequest(request_id, ledger_id, entry_id, _fence(flags), key)


def _parse_read_run(request_id: int, body: memoryview) -> ReadRunRequest:
    ledger_id, first, count, max_bytes = _READ_RUN.unpack_from(body)
    lane = bytes(body[_READ_RUN.size :])
    if lane not in (b"", _BACKGROUND):
        raise MalformedCommand(f"a read of a run with {lane.hex()} behind its fields")
    return ReadRunRequest(request_id, ledger_id, first, count, max_bytes, bool(lane))


def _parse_read_lac(request_id: int, body: memoryview) -> ReadLacRequest:
    ledger_id, flags, key_length = _READ_LAC.unpack_from(body)
    return ReadLacRequest(request_id, ledger_id, _fence(flags), _rest(body, _READ_LAC.size, key_length))


def _parse_write_lac(request_id: int, body: memoryview) -> WriteLacRequest:
    ledger_id, lac, key_length = _WRITE_LAC.unpack_from(body)
    return WriteLacRequest(request_id, ledger_id, lac, _rest(body, _WRITE_LAC.size, key_length))


def _parse_info(request_id: int, body: memoryview) -> InfoRequest:
    _rest(body, 0, 0)
    return InfoRequest(request_id)


def _parse_list(request_id: int, body: memoryview) -> ListRequest:
    _rest(body, _LEDGER.size, 0)
    return ListRequest(request_id, *_LEDGER.unpack_from(body))


def _parse_wait_lac(request_id: int, body: memoryview) -> WaitLacRequest:
    _rest(body, _WAIT_LAC.size, 0)
    ledger_id, above, timeout_ms = _WAIT_LAC.unpack_from(body)
    return WaitLacRequest(request_id, ledger_id, above, timeout_ms / 1000)


def _parse_welcome(request_id: int, body: memoryview) -> Welcome:
    if len(body) < _HELLO.size:
        raise FrameTruncated("a hello that ends too early")
    try:
        return Welcome(_version(body), str(body[_HELLO.size :], "utf-8"))
    except UnicodeDecodeError as error:
        raise MalformedCommand("a bookie id that is not UTF-8") from error


def _parse_added(request_id: int, body: memoryview) -> Added:
    count, odd = divmod(len(body) - _STATUS.size, 8)
    if count < 0 or odd:
        raise MalformedCommand("an answer to adds of the wrong size")
    return Added(_status(body[0]), struct.unpack_from(f">{count}Q", body, _STATUS.size))


def _parse_entry(request_id: int, body: memoryview) -> EntryAnswer:
    status, lac = _ENTRY.unpack_from(body)
    return EntryAnswer(request_id, EntryRead(_status(status), bytes(body[_ENTRY.size :]), lac))


def _parse_run(request_id: int, body: memoryview) -> RunAnswer:
    status, count = _RUN.unpack_from(body)
    start = _RUN.size + 4 * count
    if start > len(body):
        raise LyingLength("a run of entries with more lengths than its frame holds")
    lengths: tuple[int, ...] = struct.unpack_from(f">{count}I", body, _RUN.size)
    if start + sum(lengths) != len(body):
        raise LyingLength("a run of entries that does not fill its frame")
    entries = []
    for length in lengths:
        entries.append(bytes(body[start : start + length]))
        start += length
    return RunAnswer(request_id, _status(status), entries)


def _parse_lac(request_id: int, body: memoryview) -> LacAnswer:
    status, lac, last_entry = _LAC.unpack_from(body)
    return LacAnswer(request_id, LacRead(_status(status), lac, last_entry, bytes(body[_LAC.size :])))


def _parse_lac_written(request_id: int, body: memoryview) -> LacWritten:
    _rest(body, _STATUS.size, 0)
    return LacWritten(request_id, _status(body[0]))


def _parse_info_answer(request_id: int, body: memoryview) -> InfoAnswer:
    _rest(body, _INFO.size, 0)
    status, free_bytes, total_bytes, read_only = _INFO.unpack_from(body)
    _status(status)
    return InfoAnswer(request_id, BookieInfo(free_bytes, total_bytes, bool(read_only)))


def _parse_list_answer(request_id: int, body: memoryview) -> ListAnswer:
    if (len(body) - _STATUS.size) % _RANGE.size:
        raise MalformedCommand("a list of entries of the wrong size")
    ranges = tuple(_RANGE.iter_unpack(body[_STATUS.size :]))
    before = -2
    for first, last in ranges:
        if not before + 1 < first <= last:
            raise MalformedCommand("a list of entries out of order")
        before = last
    return ListAnswer(request_id, EntryList(_status(body[0]), ranges))


def _version(body: memoryview) -> int:
    magic, version = _HELLO.unpack_from(body)
    if magic != MAGIC:
        raise MalformedCommand("a hello of another protocol")
    return int(version)


def _status(value: int) -> BookieStatus:
    status = _STATUSES.get(value)
    if status is None:
        raise MalformedCommand(f"an unknown status {value}")
    return status


def _fence(flags: int) -> bool:
    if flags & ~_FENCE:
        raise MalformedCommand(f"a read with unknown flags {flags:#x}")
    return bool(flags & _FENCE)


def _rest(body: memoryview, start: int, length: int) -> bytes:
    """What follows the fixed fields: exactly `length` bytes."""
    if len(body) != start + length:
        raise LyingLength(f"a frame with {len(body)} bytes of fields instead of {start + length}")
    return bytes(body[start:])


_Message = TypeVar("_Message")


class _Decoder(Generic[_Message]):
    """Cuts a stream into frames. Each frame is copied at most once, whatever the pieces it arrives in."""

    def __init__(
        self, parsers: Mapping[int, Callable[[int, memoryview], _Message]], max_frame_bytes: int
    ) -> None:
        self._parsers = parsers
        self._max_frame_bytes = max_frame_bytes
        self._pieces: list[bytes] = []
        self._needed = _LENGTH.size
        self.pending_bytes = 0
        """Bytes held of a frame that is not complete yet."""

    def feed(self, data: Buffer) -> list[_Message]:
        """The messages completed by `data`. Views in them refer to the bytes fed.

        Raises:
            FrameError: the stream makes no sense; close the connection. Messages before it are lost with it.
        """
        piece = data if type(data) is bytes else bytes(data)
        if self._pieces:
            self._pieces.append(piece)
            if self.pending_bytes + len(piece) < self._needed:
                self.pending_bytes += len(piece)
                return []
            piece = b"".join(self._pieces)
            self._pieces.clear()
        messages: list[_Message] = []
        view, position, end = memoryview(piece), 0, len(piece)
        needed = _LENGTH.size
        while end - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(piece, position)
            if size > self._max_frame_bytes:
                raise FrameTooLarge(size, self._max_frame_bytes)
            needed = _LENGTH.size + size
            if end - position < needed:
                break
            messages.append(self._parse(view[position : position + needed]))
            position += needed
            needed = _LENGTH.size
        self._needed = needed
        self.pending_bytes = end - position
        if self.pending_bytes:
            self._pieces.append(piece[position:])
        return messages

    def _parse(self, frame: memoryview) -> _Message:
        if len(frame) < _HEAD.size:
            raise FrameTruncated(f"a frame of {len(frame)} bytes is shorter than its head")
        _, opcode, request_id = _HEAD.unpack_from(frame)
        parse = self._parsers.get(opcode)
        if parse is None:
            raise UnknownCommand(opcode)
        try:
            return parse(request_id, frame[_HEAD.size :])
        except (struct.error, IndexError) as error:
            raise FrameTruncated(f"the fields of opcode {opcode:#x} end too early") from error


class RequestDecoder(_Decoder[Request]):
    """What a server reads."""

    def __init__(self, max_frame_bytes: int = MAX_REQUEST_BYTES) -> None:
        super().__init__(_REQUEST_PARSERS, max_frame_bytes)


class AnswerDecoder(_Decoder[Answer]):
    """What a client reads."""

    def __init__(self, max_frame_bytes: int = MAX_RESPONSE_BYTES) -> None:
        super().__init__(_ANSWER_PARSERS, max_frame_bytes)


_REQUEST_PARSERS: Final[Mapping[int, Callable[[int, memoryview], Request]]] = {
    HELLO: _parse_hello,
    ADD: _parse_add,
    READ: _parse_read,
    READ_RUN: _parse_read_run,
    READ_LAC: _parse_read_lac,
    WRITE_LAC: _parse_write_lac,
    INFO: _parse_info,
    LIST: _parse_list,
    WAIT_LAC: _parse_wait_lac,
}
_ANSWER_PARSERS: Final[Mapping[int, Callable[[int, memoryview], Answer]]] = {
    HELLO | _ANSWER: _parse_welcome,
    ADD | _ANSWER: _parse_added,
    READ | _ANSWER: _parse_entry,
    READ_RUN | _ANSWER: _parse_run,
    READ_LAC | _ANSWER: _parse_lac,
    WRITE_LAC | _ANSWER: _parse_lac_written,
    INFO | _ANSWER: _parse_info_answer,
    LIST | _ANSWER: _parse_list_answer,
    WAIT_LAC | _ANSWER: _parse_lac,
}
