"""What the entries of a cursor's ledger say (version 2), and how a state is put together from them. Pure.

An entry is a record: a checkpoint, which tells the whole state, or an increment, which tells what has changed;
each cut into as many records as it takes, the last of which makes them hold. Every record names the entry at
which the checkpoint it builds upon begins. Bytes in `docs/formats/managed-ledger.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from magnetar.managed_ledger.cursor_state import CursorImage
from magnetar.managed_ledger.entry_ranges import CHUNK_BITS, CHUNK_BYTES, EntryRanges
from magnetar.managed_ledger.errors import RecordUnreadable
from magnetar.managed_ledger.position import Position

VERSION = 2
RECORD_BYTES_MAX = 256 * 1024
"""What one record takes at most, unless a single piece is larger: an entry of ever so many messages."""

_HEAD = struct.Struct(">BBqqq")
_CHUNK = struct.Struct(">BqIBH")
_PART = struct.Struct(">BqqI")
_PROPERTY = struct.Struct(">BHq")

_MORE = 1
_ANEW = 2

_OP_CHUNK = 1
_OP_PART = 2
_OP_PROPERTY = 3
_OP_NO_PROPERTIES = 4

_ALL_OF_IT = 0
_BITMAP = 1
_RUNS = 2
_ALL = (1 << CHUNK_BITS) - 1


@dataclass(frozen=True, slots=True)
class Head:
    version: int
    more: bool
    anew: bool
    checkpoint: int
    """The entry with which the checkpoint begins."""
    mark_delete: Position


def is_replayed(data: bytes | memoryview) -> bool:
    """Whether an entry of a cursor ledger is a record to be put together with others; else it is a whole state."""
    return bytes(data[:1]) == bytes([VERSION])


def read_head(name: str, data: bytes | memoryview) -> Head:
    """
    Raises:
        RecordUnreadable
    """
    try:
        version, flags, checkpoint, ledger_id, entry_id = _HEAD.unpack_from(data)
    except struct.error as error:
        raise RecordUnreadable(f"the state of cursor {name!r}", str(error)) from error
    if version != VERSION:
        raise RecordUnreadable(
            f"the state of cursor {name!r}", f"format version {version}; this software knows {VERSION}"
        )
    return Head(version, bool(flags & _MORE), bool(flags & _ANEW), checkpoint, Position(ledger_id, entry_id))


def encode_change(
    image: CursorImage,
    *,
    anew: bool,
    properties: bool,
    checkpoint: int,
    bytes_max: int = RECORD_BYTES_MAX,
) -> list[bytes]:
    """The records that tell `image`: at least one.

    Args:
        anew: what was told before is void.
        properties: whether they are told as well.
        checkpoint: the entry with which the checkpoint begins: perhaps with the first of these.
    """
    bodies: list[list[bytes]] = [[]]
    size = _HEAD.size
    for piece in _pieces(image, properties=properties):
        if size + len(piece) > bytes_max and bodies[-1]:
            bodies.append([])
            size = _HEAD.size
        bodies[-1].append(piece)
        size += len(piece)
    last = len(bodies) - 1
    return [
        _HEAD.pack(
            VERSION,
            (_MORE if number < last else 0) | (_ANEW if anew and not number else 0),
            checkpoint,
            *image.mark_delete,
        )
        + b"".join(body)
        for number, body in enumerate(bodies)
    ]


def _pieces(image: CursorImage, *, properties: bool) -> Iterator[bytes]:
    if properties:
        yield bytes([_OP_NO_PROPERTIES])
        for name, value in image.properties.items():
            text = name.encode()
            yield _PROPERTY.pack(_OP_PROPERTY, len(text), value) + text
    for ledger_id in sorted(image.ranges):
        for number, bits in image.ranges[ledger_id].chunks():
            kind, data = _encode_chunk(bits)
            yield _CHUNK.pack(_OP_CHUNK, ledger_id, number, kind, len(data)) + data
    for position in sorted(image.ack_sets):
        words = image.ack_sets[position]
        yield _PART.pack(_OP_PART, *position, len(words)) + struct.pack(f">{len(words)}q", *words)


def _encode_chunk(bits: int) -> tuple[int, bytes]:
    if bits == _ALL:
        return _ALL_OF_IT, b""
    runs = (bits & ~(bits << 1)).bit_count()
    if runs * 4 >= CHUNK_BYTES:
        return _BITMAP, bits.to_bytes(CHUNK_BYTES, "little")
    numbers: list[int] = []
    at = 0
    while rest := bits >> at:
        at += (rest & -rest).bit_length() - 1
        free = ~(bits >> at)
        length = (free & -free).bit_length() - 1
        numbers += (at, at + length - 1)
        at += length
    return _RUNS, struct.pack(f">{len(numbers)}H", *numbers)


def replay(name: str, records: Iterable[bytes | memoryview]) -> CursorImage | None:
    """The state that `records`, beginning with a checkpoint, come to. What was cut short does not count.

    Returns None if the checkpoint itself was.

    Raises:
        RecordUnreadable
    """
    what = f"the state of cursor {name!r}"
    image: CursorImage | None = None
    together: list[tuple[Head, bytes | memoryview]] = []
    for data in records:
        head = read_head(name, data)
        together.append((head, data))
        if head.more:
            continue
        if together[0][0].anew:
            kept = image.properties if image is not None else {}
            image = CursorImage(head.mark_delete, properties=kept)
        if image is None:
            raise RecordUnreadable(what, "it does not begin with a checkpoint")
        image.mark_delete = head.mark_delete
        try:
            for _, each in together:
                _apply(image, each)
        except (struct.error, ValueError, UnicodeDecodeError) as error:
            raise RecordUnreadable(what, f"{type(error).__name__}: {error}") from error
        together.clear()
    if image is not None:
        image.fit()
    return image


def _apply(image: CursorImage, data: bytes | memoryview) -> None:
    at, end = _HEAD.size, len(data)
    while at < end:
        op = data[at]
        if op == _OP_CHUNK:
            _, ledger_id, number, kind, size = _CHUNK.unpack_from(data, at)
            at += _CHUNK.size
            bits = _decode_chunk(kind, bytes(data[at : at + size]), size)
            ranges = image.ranges.get(ledger_id)
            if ranges is None:
                ranges = image.ranges[ledger_id] = EntryRanges()
            ranges.merge(number, bits)
            at += size
        elif op == _OP_PART:
            _, ledger_id, entry_id, size = _PART.unpack_from(data, at)
            at += _PART.size
            image.ack_sets[Position(ledger_id, entry_id)] = struct.unpack_from(f">{size}q", data, at)
            at += 8 * size
        elif op == _OP_PROPERTY:
            _, size, value = _PROPERTY.unpack_from(data, at)
            at += _PROPERTY.size
            if at + size > end:
                raise ValueError("a property is cut off")
            image.properties[bytes(data[at : at + size]).decode()] = value
            at += size
        elif op == _OP_NO_PROPERTIES:
            image.properties = {}
            at += 1
        else:
            raise ValueError(f"unknown piece {op}")


def _decode_chunk(kind: int, data: bytes, size: int) -> int:
    if len(data) != size:
        raise ValueError("a chunk is cut off")
    if kind == _ALL_OF_IT:
        return _ALL
    if kind == _BITMAP and size == CHUNK_BYTES:
        return int.from_bytes(data, "little")
    if kind != _RUNS or size % 4:
        raise ValueError(f"a chunk of kind {kind} and {size} bytes")
    bits = 0
    numbers = struct.unpack(f">{size // 2}H", data)
    for start, end in zip(numbers[::2], numbers[1::2], strict=True):
        if not start <= end < CHUNK_BITS:
            raise ValueError(f"a run from {start} to {end}")
        bits |= ((1 << (end - start + 1)) - 1) << start
    return bits
