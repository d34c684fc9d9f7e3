"""The frames between an instance host and its user process. Both run the same release: there is no version.

A frame is a 4-byte length (of what follows it), a kind, and a body: JSON, or for entries and results the packed
forms below. Entries are answered in the order they were sent.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

FRAME_BYTES_MAX = 256 * 1024 * 1024
FRAME_HEADER = struct.Struct(">IB")

_ENTRY = struct.Struct(">IHIBqqiqIiI")
_RESULT = struct.Struct(">IIBIQHI")
_GROUP = struct.Struct(">iIIIB")
_RECORDS = struct.Struct(">IH")
_RECORD_GROUP = struct.Struct(">HiIqqI")
_HEADED = struct.Struct(">I")
_BEAT = struct.Struct(">II")


class ToProcess(IntEnum):
    """What the host says."""

    JOB = 1
    """First of all: what to run (JSON)."""
    TOPIC = 2
    """The name of an input, by the number entries refer to it with (JSON)."""
    ENTRY = 3
    ANSWER = 4
    """To a PUBLISH, ASK or RECORDS (JSON with the call's number)."""
    CLOSE = 5
    """Finish and exit."""


class ToHost(IntEnum):
    """What the user process says."""

    READY = 1
    REFUSED = 2
    """The package cannot be loaded, or the connector not opened (JSON)."""
    RESULT = 3
    LOGS = 4
    METRICS = 5
    BEAT = 6
    """Where a long entry has got to."""
    PUBLISH = 7
    """`context.publish` (a JSON head, then the encoded message)."""
    ACK = 8
    """`context.ack` (JSON)."""
    RECORDS = 9
    """What a source has read."""
    ASK = 10
    """A question the user process waits for an ANSWER to (JSON)."""
    ENDED = 11
    """The source has no more."""


class EntryFlag(IntFlag):
    NONE = 0
    ISOLATE = 1
    """A sink's last attempt: write each message alone, so that only those at fault fail."""
    ALONE = 2
    """Not together with other entries: it was in hand when a process died, or failed in a sink. When the process dies
    again, the host must know whether of this one."""


class ResultFlag(IntFlag):
    NONE = 0
    STALE = 1
    """Not run: an earlier message of the same ordered input has failed and will be sent again first."""


@dataclass(slots=True)
class Entry:
    """An entry to run. `payload` is that of a batch, also where the entry holds one plain message."""

    serial: int
    """Counts the entries sent to this process."""
    topic: int
    generation: int
    """Of its input: rises whenever an ordered input has to go back."""
    ledger_id: int
    entry_id: int
    partition: int
    first_index: int
    """The broker's index of its first message; -1 if unknown."""
    count: int
    route: int
    """The partition for results without a key; -1 leaves it to the producer."""
    ordinals: Sequence[int]
    """Which of its messages to run; empty: all."""
    flags: int
    """Of EntryFlag."""
    payload: bytes | memoryview


@dataclass(slots=True)
class OutputGroup:
    """Results for one partition of the output, encoded as the payload of a batch."""

    route: int
    ordinals: Sequence[int]
    """Which message of the entry each came from, ascending."""
    payload: bytes
    after_failures: int = 0
    """How many of the result's failures come before it. Ordered inputs commit in that order."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One message that could not be processed."""

    ordinal: int
    error: str
    """The exception as one line."""
    traceback: str = ""
    rejected: bool = False
    """Trying again is pointless: a sink gave up on it."""


@dataclass(slots=True)
class Result:
    """What became of an entry."""

    serial: int
    generation: int
    flags: int
    """Of ResultFlag."""
    ran_through: int
    """Messages below this ordinal were run or were not asked for; an ordered input stops at its first failure."""
    elapsed_ns: int
    groups: list[OutputGroup]
    failures: list[Failure]


@dataclass(slots=True)
class RecordGroup:
    """Records of one partition of a source."""

    partition_id: str
    route: int
    count: int
    lowest: int
    """The first record's sequence; -1: it has none."""
    highest: int
    payload: bytes


def json_frame(kind: int, value: Any) -> bytes:
    body = json.dumps(value).encode()
    return FRAME_HEADER.pack(len(body) + 1, kind) + body


def headed_frame(kind: int, head: Any, payload: bytes) -> bytes:
    """A JSON head and bytes."""
    text = json.dumps(head).encode()
    return (
        FRAME_HEADER.pack(1 + 4 + len(text) + len(payload), kind) + _HEADED.pack(len(text)) + text + payload
    )


def split_headed(body: bytes | memoryview) -> tuple[Any, bytes]:
    view = memoryview(body)
    (size,) = _HEADED.unpack_from(view)
    return json.loads(bytes(view[4 : 4 + size])), bytes(view[4 + size :])


def beat_frame(serial: int, done: int) -> bytes:
    return FRAME_HEADER.pack(1 + _BEAT.size, ToHost.BEAT) + _BEAT.pack(serial, done)


def read_beat(body: bytes | memoryview) -> tuple[int, int]:
    """Serial of the entry, messages done of it."""
    serial, done = _BEAT.unpack(body)
    return serial, done


def entry_frame(entry: Entry) -> bytes:
    """Everything of the frame but the payload, which follows it as it is."""
    ordinals = array("I", entry.ordinals).tobytes() if entry.ordinals else b""
    head = _ENTRY.pack(
        entry.serial,
        entry.topic,
        entry.generation,
        entry.flags,
        entry.ledger_id,
        entry.entry_id,
        entry.partition,
        entry.first_index,
        entry.count,
        entry.route,
        len(ordinals),
    )
    length = 1 + len(head) + len(ordinals) + len(entry.payload)
    return FRAME_HEADER.pack(length, ToProcess.ENTRY) + head + ordinals


def read_entry(body: bytes) -> Entry:
    serial, topic, generation, flags, ledger, entry, partition, index, count, route, size = (
        _ENTRY.unpack_from(body)
    )
    start = _ENTRY.size
    ordinals: Sequence[int] = ()
    if size:
        ordinals = array("I", body[start : start + size])
    return Entry(
        serial,
        topic,
        generation,
        ledger,
        entry,
        partition,
        index,
        count,
        route,
        ordinals,
        flags,
        body[start + size :],
    )


def result_frame(result: Result) -> bytes:
    """The whole frame. A group whose ordinals have no gap is packed without a list of them."""
    chunks = [b""]
    for group in result.groups:
        ordinals = group.ordinals
        first, count = ordinals[0], len(ordinals)
        dense = ordinals[-1] - first + 1 == count
        chunks.append(_GROUP.pack(group.route, first, count, len(group.payload), dense))
        chunks.append(_HEADED.pack(group.after_failures))
        if not dense:
            chunks.append(array("I", ordinals).tobytes())
        chunks.append(group.payload)
    failures = b""
    if result.failures:
        failures = json.dumps(
            [[f.ordinal, f.error, f.traceback, f.rejected] for f in result.failures]
        ).encode()
        chunks.append(failures)
    head = _RESULT.pack(
        result.serial,
        result.generation,
        result.flags,
        result.ran_through,
        result.elapsed_ns,
        len(result.groups),
        len(failures),
    )
    length = 1 + len(head) + sum(map(len, chunks))
    chunks[0] = FRAME_HEADER.pack(length, ToHost.RESULT) + head
    return b"".join(chunks)


def read_result(body: memoryview) -> Result:
    serial, generation, flags, ran_through, elapsed, group_count, failure_bytes = _RESULT.unpack_from(body)
    position = _RESULT.size
    groups = []
    for _ in range(group_count):
        route, first, count, size, dense = _GROUP.unpack_from(body, position)
        (after,) = _HEADED.unpack_from(body, position + _GROUP.size)
        position += _GROUP.size + _HEADED.size
        ordinals: Sequence[int] = range(first, first + count)
        if not dense:
            listed = array("I")
            listed.frombytes(body[position : position + 4 * count])
            position += 4 * count
            ordinals = listed
        groups.append(OutputGroup(route, ordinals, bytes(body[position : position + size]), after))
        position += size
    failures = []
    if failure_bytes:
        failures = [
            Failure(*fields) for fields in json.loads(bytes(body[position : position + failure_bytes]))
        ]
    return Result(serial, generation, flags, ran_through, elapsed, groups, failures)


def records_frame(number: int, groups: Sequence[RecordGroup]) -> bytes:
    chunks = [b"", _RECORDS.pack(number, len(groups))]
    for group in groups:
        name = group.partition_id.encode()
        chunks.append(
            _RECORD_GROUP.pack(
                len(name), group.route, group.count, group.lowest, group.highest, len(group.payload)
            )
        )
        chunks += [name, group.payload]
    chunks[0] = FRAME_HEADER.pack(1 + sum(map(len, chunks)), ToHost.RECORDS)
    return b"".join(chunks)


def read_records(body: memoryview) -> tuple[int, list[RecordGroup]]:
    number, group_count = _RECORDS.unpack_from(body)
    position = _RECORDS.size
    groups = []
    for _ in range(group_count):
        name_bytes, route, count, lowest, highest, size = _RECORD_GROUP.unpack_from(body, position)
        position += _RECORD_GROUP.size
        name = bytes(body[position : position + name_bytes]).decode()
        position += name_bytes
        groups.append(
            RecordGroup(name, route, count, lowest, highest, bytes(body[position : position + size]))
        )
        position += size
    return number, groups
