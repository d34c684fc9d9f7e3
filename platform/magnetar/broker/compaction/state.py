"""What is kept of a compaction, and how: the record of the compacted ledger, and the form of its entries. Pure.

Bytes in `docs/formats/broker.md`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.errors import MetadataFailed
from magnetar.managed_ledger.entry import Entry, stored_entry
from magnetar.managed_ledger.position import Position
from magnetar.protocol.buffers import Buffer

COMPACTION_CURSOR: Final = "__compaction"
COMPACTED_PROPERTY: Final = "magnetar.compacted"
"""The property of the cursor that says which compacted ledger holds."""
BEGINS_PROPERTY: Final = "magnetar.begins-compacted/"
"""And one for each durable subscription that begins before the log does, in the compacted ledger."""
_RECORD_VERSION: Final = 1
_ENTRY_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BqqI")


@dataclass(frozen=True, slots=True)
class CompactedRecord:
    """A compacted ledger that holds."""

    ledger_id: int
    horizon: Position
    """The last entry of the log that it covers: what comes after it is read from the log."""
    entries: int
    size: int
    messages: int
    completed_ms: int

    def encode(self) -> str:
        return json.dumps(
            {
                "version": _RECORD_VERSION,
                "ledger": self.ledger_id,
                "horizon": list(self.horizon),
                "entries": self.entries,
                "size": self.size,
                "messages": self.messages,
                "completed_ms": self.completed_ms,
            },
            separators=(",", ":"),
        )

    @classmethod
    def decode(cls, said: str) -> CompactedRecord:
        """
        Raises:
            MetadataFailed: it is none, or of a newer format.
        """
        try:
            fields = json.loads(said)
            if fields["version"] != _RECORD_VERSION:
                raise ValueError(f"format version {fields['version']}")
            return cls(
                int(fields["ledger"]),
                Position(*map(int, fields["horizon"])),
                int(fields["entries"]),
                int(fields["size"]),
                int(fields["messages"]),
                int(fields["completed_ms"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise MetadataFailed(
                f"what is kept of the topic's compaction cannot be read: {error}; upgrade this broker"
            ) from None


@dataclass(frozen=True, slots=True)
class CompactedEntry:
    """An entry of a compacted ledger."""

    entry: Entry
    stays: tuple[int, ...] = ()
    """Of a batch that was cut: an ack set whose bits of 1 are the messages that are still there."""


def encode_entry(entry: Entry, data: Buffer, stays: Sequence[int] = ()) -> tuple[bytes, Buffer]:
    """An entry as it stands in a compacted ledger: where it lies in the log, what stays, its stored form with `data`."""
    raw = entry.raw
    broker_metadata = raw[: len(raw) - len(entry.data)]
    words = struct.pack(f">{len(stays)}q", *stays)
    return _HEAD.pack(_ENTRY_VERSION, *entry.position, len(stays)) + words + broker_metadata, data


def decode_entry(payload: Buffer) -> CompactedEntry:
    """
    Raises:
        MetadataFailed: it is of a newer format.
        ProtocolError: what it holds cannot be read.
    """
    view = memoryview(payload)
    version, ledger_id, entry_id, words = _HEAD.unpack_from(view)
    if version != _ENTRY_VERSION:
        raise MetadataFailed(f"a compacted entry is of format version {version}: upgrade this broker")
    stays = struct.unpack_from(f">{words}q", view, _HEAD.size)
    return CompactedEntry(stored_entry(Position(ledger_id, entry_id), view[_HEAD.size + 8 * words :]), stays)


def decode_position(payload: Buffer) -> Position:
    """Where in the log an entry of a compacted ledger lies."""
    return Position(*_HEAD.unpack_from(payload)[1:3])
