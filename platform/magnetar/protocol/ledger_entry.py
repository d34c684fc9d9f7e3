"""The stored form of a ledger's entry: what a ledger client sends to bookies, and they keep and return.

    ledger id 8 | entry id 8 | last-add-confirmed 8 | length 8 | CRC32-C 4 | payload        big-endian

`length` counts the payload bytes of the ledger up to and including this entry. The checksum covers the first
32 bytes and the payload. Source: BookKeeper `proto/checksum`, with digest type CRC32C.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.checksum import crc32c
from magnetar.protocol.errors import ProtocolError

ENTRY_HEADER_BYTES = 36
ENTRY_HEADER = struct.Struct(">qqqqI")
_COVERED = struct.Struct(">qqqq")
_DIGEST = struct.Struct(">I")
_COVERED_BYTES = _COVERED.size


class EntryCorrupt(ProtocolError):
    """The bytes are not the entry they are said to be: read another replica, then repair this one."""

    def __init__(self, reason: str, *, ledger_id: int | None = None, entry_id: int | None = None) -> None:
        where = "" if ledger_id is None else f"entry {ledger_id}:{entry_id}: "
        super().__init__(where + reason)
        self.reason = reason
        self.ledger_id = ledger_id
        self.entry_id = entry_id


@dataclass(slots=True)
class LedgerEntry:
    """An entry whose checksum has been found right."""

    ledger_id: int
    entry_id: int
    lac: int
    length: int
    payload: memoryview


def encode_entry_header(
    ledger_id: int, entry_id: int, lac: int, length: int, payload_parts: Sequence[Buffer]
) -> bytes:
    """The 36 bytes to put before the payload, which is read for its checksum and not copied."""
    covered = _COVERED.pack(ledger_id, entry_id, lac, length)
    return covered + _DIGEST.pack(crc32c(covered, *payload_parts))


def entry_digest_matches(header: bytes, payload_parts: Sequence[Buffer]) -> bool:
    """Whether a 36-byte header and the payload after it belong together."""
    digest: int = _DIGEST.unpack_from(header, _COVERED_BYTES)[0]
    return crc32c(header[:_COVERED_BYTES], *payload_parts) == digest


def decode_entry(
    data: Buffer, *, expect_ledger: int | None = None, expect_entry: int | None = None
) -> LedgerEntry:
    """Verify a stored entry and take it apart; the payload is a view of `data`.

    Raises:
        EntryCorrupt: it is too short, its checksum differs, or it is another entry than expected.
    """
    if len(data) < ENTRY_HEADER_BYTES:
        raise EntryCorrupt(
            f"{len(data)} bytes are shorter than an entry's header",
            ledger_id=expect_ledger,
            entry_id=expect_entry,
        )
    ledger_id, entry_id, lac, length, digest = ENTRY_HEADER.unpack_from(data)
    view = memoryview(data)
    payload = view[ENTRY_HEADER_BYTES:]
    actual = crc32c(view[:_COVERED_BYTES], payload)
    if actual != digest:
        raise EntryCorrupt(
            f"checksum {actual:#010x} differs from the stored {digest:#010x}",
            ledger_id=ledger_id if expect_ledger is None else expect_ledger,
            entry_id=entry_id if expect_entry is None else expect_entry,
        )
    if expect_ledger not in (None, ledger_id) or expect_entry not in (None, entry_id):
        raise EntryCorrupt(
            f"the bytes are those of entry {ledger_id}:{entry_id}",
            ledger_id=expect_ledger if expect_ledger is not None else ledger_id,
            entry_id=expect_entry if expect_entry is not None else entry_id,
        )
    return LedgerEntry(ledger_id, entry_id, lac, length, payload)
