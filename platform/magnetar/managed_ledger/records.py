"""What is stored of a log and of its cursors, and how. Bytes in `docs/formats/managed-ledger.md`.

/managed-ledgers/<name>             a `LogRecord`: the ledgers, in order
/managed-ledger-lists/<name>/…      its older ledgers, where there are many: see `chapters.py`
/managed-ledgers/<name>/<cursor>    a `CursorRecord`: where the cursor's state is
an entry of a cursor ledger         a `CursorSnapshot`, binary; the last one holds
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, unquote

from magnetar.managed_ledger.cursor_state import CursorSnapshot
from magnetar.managed_ledger.errors import RecordUnreadable
from magnetar.managed_ledger.position import Position

LOGS_PATH = "/managed-ledgers"
RECORD_VERSION = 1
RECORD_VERSION_CHAPTERS = 2
"""Of a log's record whose older ledgers are listed elsewhere: software that knows only version 1 must not open it."""
SNAPSHOT_VERSION = 1
KEPT_LEDGERS = "magnetar.ledgers"
"""The property of a cursor that names ledgers which somebody else keeps with it, by commas: they go when it does."""


@dataclass(frozen=True, slots=True)
class ListedLedger:
    """A ledger of a log. While it is open, `entries`, `size` and `closed_ms` are 0."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    closed_ms: int = 0


@dataclass(frozen=True, slots=True)
class LostLedger:
    """A ledger that cannot be read any more, and that an operator has consented to go on without."""

    ledger_id: int
    entries: int
    """As far as it was known: 0 of one that was never closed."""
    size: int
    skipped_ms: int


@dataclass(frozen=True, slots=True)
class Chapter:
    """Ledgers that are listed in a record of their own, from the first to the last."""

    name: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LogRecord:
    ledgers: tuple[ListedLedger, ...] = ()
    next_index: int = 0
    """The index of the next message, as far as it was known when this was written."""
    terminated: Position | None = None
    """The last entry of a log that takes no more."""
    properties: Mapping[str, str] = field(default_factory=dict)
    doomed: tuple[int, ...] = ()
    """Ledgers that are no longer part of the log, and must still be deleted."""
    deleted: bool = False
    """The whole log is being deleted: whoever finds it finishes the work."""
    created_ms: int = 0
    incarnation: str = ""
    """Drawn when the log was made: tells it from one of the same name before it. "": it is older than this."""
    chapters: tuple[Chapter, ...] = ()
    """Where the older ledgers are listed; `ledgers` has them, too, unless it was only decoded."""
    first_ledger: int = 0
    """With chapters: what they list before this ledger is gone."""
    lost: tuple[LostLedger, ...] = ()
    """Ledgers that were given up; not among `ledgers`. They are deleted when the ledgers before them have been."""

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """All ledgers it names."""
        return (
            *(each.ledger_id for each in self.ledgers),
            *(each.ledger_id for each in self.lost),
            *self.doomed,
        )

    def with_lost(self, ledger_id: int, now_ms: int, indexes_left_out: int) -> LogRecord:
        """Without a ledger that cannot be read, which it names as lost.

        Args:
            indexes_left_out: so many messages it may have held at most, if nobody knows: no index is given twice.
        """
        listed = next(each for each in self.ledgers if each.ledger_id == ledger_id)
        return replace(
            self,
            ledgers=tuple(each for each in self.ledgers if each.ledger_id != ledger_id),
            lost=(*self.lost, LostLedger(ledger_id, listed.entries, listed.size, now_ms)),
            next_index=self.next_index if listed.closed_ms else self.next_index + indexes_left_out,
        )

    def with_front_dropped(self, dropped: Collection[int]) -> LogRecord:
        """Without the ledgers `dropped` at its front, and the lost ones before those that stay: all doomed."""
        kept = tuple(each for each in self.ledgers if each.ledger_id not in dropped)
        first = kept[0].ledger_id if kept else 0
        past = [each.ledger_id for each in self.lost if each.ledger_id < first]
        lost = tuple(each for each in self.lost if each.ledger_id >= first)
        return replace(self, ledgers=kept, lost=lost).with_doomed(*dropped, *past)

    def with_doomed(self, *ledger_ids: int) -> LogRecord:
        return replace(self, doomed=(*self.doomed, *ledger_ids))

    def without_ledgers(self, ledger_ids: Sequence[int]) -> LogRecord:
        if not ledger_ids:
            return self
        return replace(self, ledgers=tuple(each for each in self.ledgers if each.ledger_id not in ledger_ids))

    def without_doomed(self, gone: Sequence[int]) -> LogRecord:
        return replace(self, doomed=tuple(each for each in self.doomed if each not in gone))


@dataclass(frozen=True, slots=True)
class CursorRecord:
    snapshot: CursorSnapshot
    """Holds where there is no cursor ledger; otherwise a lower bound, should that ledger be lost."""
    ledger_id: int = -1
    """The ledger whose last entry is the cursor's state; -1: there is none."""
    doomed: tuple[int, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    incarnation: str = ""
    """Of its log. "": the cursor is older than this."""

    def belongs_to(self, incarnation: str) -> bool:
        return not self.incarnation or self.incarnation == incarnation

    @property
    def ledger_ids(self) -> tuple[int, ...]:
        """All ledgers in which its own state is, or was."""
        return self.doomed if self.ledger_id < 0 else (*self.doomed, self.ledger_id)

    @property
    def named_ledgers(self) -> tuple[int, ...]:
        """All ledgers it names, also those that somebody else keeps with it."""
        kept = self.properties.get(KEPT_LEDGERS, "")
        return (*self.ledger_ids, *(int(each) for each in kept.split(",") if each.isdecimal()))


def log_path(name: str) -> str:
    return f"{LOGS_PATH}/{name}"


def cursor_path(log_name: str, cursor: str) -> str:
    return f"{LOGS_PATH}/{log_name}/{encode_name(cursor)}"


def encode_name(cursor: str) -> str:
    """A cursor's name as the last part of a path."""
    return quote(cursor, safe="").replace(".", "%2E")


def decode_name(part: str) -> str:
    return unquote(part)


# Records in metadata: JSON, with a `revision` that tells one's own write from another's.


def encode_log(record: LogRecord, revision: str) -> bytes:
    covered = record.chapters[-1].last if record.chapters else -1
    return _dump(
        {
            "version": RECORD_VERSION_CHAPTERS if record.chapters else RECORD_VERSION,
            "revision": revision,
            "ledgers": [
                [each.ledger_id, each.entries, each.size, each.closed_ms]
                for each in record.ledgers
                if not record.chapters or each.ledger_id > covered
            ],
            "chapters": [[each.name, each.first, each.last] for each in record.chapters],
            "first_ledger": record.first_ledger,
            "lost": [[each.ledger_id, each.entries, each.size, each.skipped_ms] for each in record.lost],
            "next_index": record.next_index,
            "terminated": None if record.terminated is None else list(record.terminated),
            "properties": dict(record.properties),
            "doomed": list(record.doomed),
            "deleted": record.deleted,
            "created_ms": record.created_ms,
            "incarnation": record.incarnation,
        }
    )


def decode_log(name: str, data: bytes) -> LogRecord:
    """The record, with those ledgers only that are listed in it: `ChapterStore` has the others.

    Raises:
        RecordUnreadable
    """
    what = f"the record of log {name!r}"
    fields = _load(what, data, RECORD_VERSION_CHAPTERS)
    try:
        return LogRecord(
            ledgers=tuple(ListedLedger(*map(int, each)) for each in fields["ledgers"]),
            next_index=int(fields["next_index"]),
            terminated=None if fields["terminated"] is None else Position(*map(int, fields["terminated"])),
            properties={str(key): str(value) for key, value in fields["properties"].items()},
            doomed=tuple(map(int, fields["doomed"])),
            deleted=bool(fields["deleted"]),
            created_ms=int(fields["created_ms"]),
            incarnation=str(fields.get("incarnation", "")),
            chapters=tuple(
                Chapter(str(each), int(first), int(last)) for each, first, last in fields.get("chapters", ())
            ),
            first_ledger=int(fields.get("first_ledger", 0)),
            lost=tuple(LostLedger(*map(int, each)) for each in fields.get("lost", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordUnreadable(what, f"{type(error).__name__}: {error}") from error


def encode_cursor(record: CursorRecord, revision: str) -> bytes:
    return _dump(
        {
            "version": RECORD_VERSION,
            "revision": revision,
            "snapshot": b64encode(encode_snapshot(record.snapshot)).decode(),
            "ledger": record.ledger_id,
            "doomed": list(record.doomed),
            "properties": dict(record.properties),
            "deleted": record.deleted,
            "incarnation": record.incarnation,
        }
    )


def decode_cursor(name: str, data: bytes) -> CursorRecord:
    """
    Raises:
        RecordUnreadable
    """
    what = f"the record of cursor {name!r}"
    fields = _load(what, data)
    try:
        return CursorRecord(
            snapshot=decode_snapshot(name, b64decode(fields["snapshot"])),
            ledger_id=int(fields["ledger"]),
            doomed=tuple(map(int, fields["doomed"])),
            properties={str(key): str(value) for key, value in fields["properties"].items()},
            deleted=bool(fields["deleted"]),
            incarnation=str(fields.get("incarnation", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordUnreadable(what, f"{type(error).__name__}: {error}") from error


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _load(what: str, data: bytes, newest: int = RECORD_VERSION) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise RecordUnreadable(what, f"it is no JSON: {error}") from error
    if not isinstance(fields, dict) or fields.get("version") not in range(RECORD_VERSION, newest + 1):
        known = f"format version {RECORD_VERSION}" + (f" to {newest}" if newest > RECORD_VERSION else "")
        raise RecordUnreadable(what, f"it is not of {known}, which this software knows")
    return fields


# Cursor states: binary, because ten thousand ranges are written once a second.

_HEAD = struct.Struct(">BqqIII")
_PART_HEAD = struct.Struct(">qqI")


def encode_snapshot(snapshot: CursorSnapshot) -> bytes:
    properties = json.dumps(dict(snapshot.properties)).encode() if snapshot.properties else b""
    pieces = [
        _HEAD.pack(
            SNAPSHOT_VERSION,
            *snapshot.mark_delete,
            len(snapshot.ranges),
            len(snapshot.ack_sets),
            len(properties),
        ),
        _words([number for each in snapshot.ranges for number in each]),
    ]
    for position, words in snapshot.ack_sets:
        pieces += (_PART_HEAD.pack(*position, len(words)), _words(words))
    return b"".join((*pieces, properties))


def decode_snapshot(name: str, data: bytes | memoryview) -> CursorSnapshot:
    """
    Raises:
        RecordUnreadable
    """
    what = f"the state of cursor {name!r}"
    try:
        version, ledger_id, entry_id, range_count, part_count, properties_size = _HEAD.unpack_from(data)
        if version != SNAPSHOT_VERSION:
            raise RecordUnreadable(what, f"format version {version}; this software knows {SNAPSHOT_VERSION}")
        at = _HEAD.size
        numbers = struct.unpack_from(f">{3 * range_count}q", data, at)
        at += 24 * range_count
        parts = []
        for _ in range(part_count):
            part_ledger, part_entry, size = _PART_HEAD.unpack_from(data, at)
            at += _PART_HEAD.size
            parts.append((Position(part_ledger, part_entry), struct.unpack_from(f">{size}q", data, at)))
            at += 8 * size
        if at + properties_size != len(data):
            raise RecordUnreadable(what, f"{len(data)} bytes where {at + properties_size} were expected")
        properties = json.loads(bytes(data[at:])) if properties_size else {}
        return CursorSnapshot(
            Position(ledger_id, entry_id),
            tuple(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)),
            tuple(parts),
            {str(key): int(value) for key, value in properties.items()},
        )
    except (struct.error, ValueError, AttributeError, TypeError) as error:
        raise RecordUnreadable(what, f"{type(error).__name__}: {error}") from error


def _words(numbers: Sequence[int]) -> bytes:
    return struct.pack(f">{len(numbers)}q", *numbers)
