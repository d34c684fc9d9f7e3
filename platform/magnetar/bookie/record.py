"""The records of the journal as bytes: encoding a group, recognising a record. Format: `docs/formats/journal.md`."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from google_crc32c import extend as _untyped_extend

from magnetar.protocol.bookie import MAX_ENTRY_BYTES, BookieStatus
from magnetar.protocol.ledger_entry import ENTRY_HEADER_BYTES, encode_entry_header, entry_digest_matches

BLOCK: Final = 4096
FIRST_BLOCK: Final = BLOCK
"""Where the records of a segment begin: behind the header's block."""

_CHECKSUM = struct.Struct(">I")
_COVERED = struct.Struct(">IQQIBBH")
_HEAD = struct.Struct(">IIQQIBBH")
_HEAD_OF_ENTRY = struct.Struct(">IIQQIBBHqqq8xI")
HEAD_BYTES: Final = _HEAD.size
SEGMENT_FIELD: Final = range(8, 16)
"""Where a record says which segment it belongs to."""
_LAST_OF_GROUP = 1
_BODY_MAX = MAX_ENTRY_BYTES
_JOIN_BELOW: Final = 16 * 1024

_extend: Callable[[int, bytes], int] = _untyped_extend
_LEDGER = struct.Struct(">q")
_LEDGER_LAC = struct.Struct(">qq")


SEAL: Final = encode_entry_header(2**63 - 1, 0, -1, 0, [])
"""An entry of a ledger that nobody can have: a group of it alone says that what came before was on disk."""


class Kind(IntEnum):
    ENTRY = 1
    REGISTRATION = 2
    FENCE = 3
    EXPLICIT_LAC = 4


_KINDS: Final = {kind.value: kind for kind in Kind}

Pending = tuple[Kind, int, tuple[bytes, ...], Callable[[BookieStatus], None] | None]
"""A record on its way: kind, bytes of its body, body, whom to tell. A body's first part is covered by the record's
checksum: an entry's header (the rest by the entry's own), all of the others."""


@dataclass(slots=True)
class Record:
    """A record that was found whole."""

    kind: Kind
    sequence: int
    group_first: int
    """Sequence number of the first record of its group."""
    ends_group: bool
    body: tuple[bytes, ...]
    end: int
    """Offset behind the record."""


def group_bytes(records: Sequence[Pending]) -> int:
    """How much room a group takes in its segment."""
    size = HEAD_BYTES * len(records)
    for record in records:
        size += record[1]
    return -(-size // BLOCK) * BLOCK


def encode_group(segment: int, salt: int, first_sequence: int, records: Sequence[Pending]) -> list[bytes]:
    """The buffers of a group, padded to whole blocks. Small ones come as one."""
    buffers: list[bytes] = []
    append = buffers.append
    pack, pack_checksum, checksum = _COVERED.pack, _CHECKSUM.pack, _extend
    last = len(records) - 1
    size = HEAD_BYTES * len(records)
    for place, (kind, body_bytes, body, _) in enumerate(records):
        flags = _LAST_OF_GROUP if place == last else 0
        covered = pack(body_bytes, segment, first_sequence + place, place, kind, flags, 0) + body[0]
        append(pack_checksum(checksum(salt, covered)))
        append(covered)
        if len(body) > 1:
            buffers += body[1:]
        size += body_bytes
    append(bytes(-size % BLOCK))
    return [b"".join(buffers)] if size < _JOIN_BELOW * len(records) else buffers


def read_record(data: bytes, position: int, *, offset: int, segment: int, salt: int) -> Record | int | None:
    """The record at `position` of `data`, which is at `offset` of its segment.

    None: there is none. A number: there may be one, but so many bytes are needed from `position` on to tell.
    """
    if len(data) - position < HEAD_BYTES:
        return HEAD_BYTES
    stored, size, of_segment, sequence, place, kind_value, flags, zero = _HEAD.unpack_from(data, position)
    kind = _KINDS.get(kind_value)
    if of_segment != segment or kind is None or size > _BODY_MAX or zero or place > sequence:
        return None
    body_at = position + HEAD_BYTES
    if len(data) < body_at + size:
        return HEAD_BYTES + int(size)
    covered = ENTRY_HEADER_BYTES if kind is Kind.ENTRY else size
    if size < covered or _extend(salt, data[position + _CHECKSUM.size : body_at + covered]) != stored:
        return None
    body: tuple[bytes, ...] = (data[body_at : body_at + covered],)
    if kind is Kind.ENTRY:
        body = (body[0], data[body_at + covered : body_at + size])
        if not entry_digest_matches(body[0], body[1:]):
            return None
    return Record(
        kind, sequence, sequence - place, bool(flags & _LAST_OF_GROUP), body, offset + HEAD_BYTES + size
    )


JournalledEntry = tuple[int, int, int, int, tuple[bytes, bytes]]
"""Ledger, entry, LAC, bytes, and the entry as header and payload."""


@dataclass(slots=True)
class EntryRun:
    """Entry records that follow one another, all of them whole."""

    entries: list[JournalledEntry]
    end: int
    """Offset behind the last of them, and behind its group if it ends one."""
    group_first: int
    """The group's first record that the next one belongs to."""


def read_run(
    data: bytes, position: int, *, offset: int, segment: int, salt: int, sequence: int, group_first: int
) -> EntryRun:
    """The entry records at `position` of `data`, which is at `offset` of its segment, that begin with number `sequence`.

    Ends before the first record that is no entry, or not the expected one, or not whole in `data`: what that is
    `read_record` tells. Both look at the same things; here, a record costs no object of its own.
    """
    entries: list[JournalledEntry] = []
    append, unpack, extend = entries.append, _HEAD_OF_ENTRY.unpack_from, _extend
    to_offset = offset - position
    last = len(data) - HEAD_BYTES - ENTRY_HEADER_BYTES
    while position <= last:
        stored, size, of_segment, number, place, kind, flags, zero, ledger_id, entry_id, lac, digest = unpack(
            data, position
        )
        if (
            kind != 1
            or of_segment != segment
            or number != sequence
            or number - place != group_first
            or zero
            or not ENTRY_HEADER_BYTES <= size <= _BODY_MAX
        ):
            break
        body_at = position + 32
        payload_at, end = body_at + 36, body_at + size
        payload = data[payload_at:end]
        if (
            len(payload) != size - 36
            or extend(salt, data[position + 4 : payload_at]) != stored
            or extend(extend(0, data[body_at : body_at + 32]), payload) != digest
        ):
            break
        append((ledger_id, entry_id, lac, size, (data[body_at:payload_at], payload)))
        sequence += 1
        position = end
        if flags & _LAST_OF_GROUP:
            position = -(-(position + to_offset) // BLOCK) * BLOCK - to_offset
            group_first = sequence
    return EntryRun(entries, position + to_offset, group_first)


def encode_registration(ledger_id: int, master_key: bytes) -> bytes:
    """The body of a registration; of a fence, too."""
    return _LEDGER.pack(ledger_id) + master_key


def decode_registration(body: bytes) -> tuple[int, bytes]:
    return _LEDGER.unpack_from(body)[0], body[_LEDGER.size :]


def encode_explicit_lac(ledger_id: int, lac: int, master_key: bytes) -> bytes:
    return _LEDGER_LAC.pack(ledger_id, lac) + master_key


def decode_explicit_lac(body: bytes) -> tuple[int, int, bytes]:
    ledger_id, lac = _LEDGER_LAC.unpack_from(body)
    return ledger_id, lac, body[_LEDGER_LAC.size :]
