"""The message user code is looking at: bytes until something is asked of it."""

from __future__ import annotations

from binascii import a2b_base64

from magnetar.functions.process.members import Metadata, fields_of, raw_metadata, read_varint, varint
from magnetar.functions.process.wire import Entry


class MessageId:
    """Where a message is stored; looks like the official client's."""

    __slots__ = ("_batch_index", "_entry_id", "_ledger_id", "_partition")

    def __init__(self, ledger_id: int, entry_id: int, partition: int = -1, batch_index: int = -1) -> None:
        self._ledger_id = ledger_id
        self._entry_id = entry_id
        self._partition = partition
        self._batch_index = batch_index

    def ledger_id(self) -> int:
        return self._ledger_id

    def entry_id(self) -> int:
        return self._entry_id

    def partition(self) -> int:
        return self._partition

    def batch_index(self) -> int:
        return self._batch_index

    def serialize(self) -> bytes:
        """MessageIdData, as every official client reads it."""
        data = b"\x08" + varint(self._ledger_id) + b"\x10" + varint(self._entry_id)
        if self._partition >= 0:
            data += b"\x18" + varint(self._partition)
        if self._batch_index >= 0:
            data += b"\x20" + varint(self._batch_index)
        return data

    @classmethod
    def deserialize(cls, data: bytes) -> MessageId:
        """The id of what `serialize` gave."""
        numbers = {tag >> 3: value for tag, _, _, _, value in fields_of(data)}
        return cls(numbers[1], numbers[2], numbers.get(3, -1), numbers.get(4, -1))

    def _fields(self) -> tuple[int, int, int, int]:
        return self._ledger_id, self._entry_id, self._partition, self._batch_index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def __str__(self) -> str:
        return f"({self._ledger_id},{self._entry_id},{self._partition},{self._batch_index})"

    __repr__ = __str__


class CurrentMessage:
    """One object for all messages: the loop sets `ordinal`, and what is asked is decoded then."""

    __slots__ = ("_decoded", "_decoded_of", "entry", "metadata", "ordinal", "topic")

    def __init__(self) -> None:
        self.ordinal = -1
        self.topic = ""
        self.entry: Entry | None = None
        self.metadata: list[Metadata] = []
        self._decoded = Decoded(b"")
        self._decoded_of: tuple[Entry, int] | None = None

    def begin(self, entry: Entry, topic: str, metadata: list[Metadata]) -> None:
        """Turn to another entry; `metadata` is that of its members."""
        self.entry = entry
        self.topic = topic
        self.metadata = metadata
        self.ordinal = -1

    @property
    def message_id(self) -> MessageId | None:
        entry = self.entry
        if entry is None:
            return None
        return MessageId(
            entry.ledger_id, entry.entry_id, entry.partition, self.ordinal if entry.count > 1 else -1
        )

    @property
    def fields(self) -> Decoded:
        if self.entry is None or not 0 <= self.ordinal < len(self.metadata):
            return Decoded(b"")
        if self._decoded_of != (self.entry, self.ordinal):
            raw = raw_metadata(self.metadata[self.ordinal], bytes(self.entry.payload))
            self._decoded, self._decoded_of = Decoded(raw), (self.entry, self.ordinal)
        return self._decoded


class Decoded:
    """SingleMessageMetadata, read in full."""

    __slots__ = (
        "event_time",
        "key",
        "key_is_base64",
        "null_value",
        "ordering_key",
        "properties",
        "sequence_id",
    )

    def __init__(self, raw: bytes) -> None:
        self.properties: dict[str, str] = {}
        self.key: str | None = None
        self.key_is_base64 = False
        self.ordering_key: bytes | None = None
        self.event_time = 0
        self.sequence_id = 0
        self.null_value = False
        for tag, _, start, end, number in fields_of(raw):
            if tag == 0x0A:
                key, value = _read_pair(raw[start:end])
                self.properties[key] = value
            elif tag == 0x12:
                self.key = raw[start:end].decode("utf-8", "replace")
            elif tag == 0x28:
                self.event_time = number
            elif tag == 0x30:
                self.key_is_base64 = bool(number)
            elif tag == 0x3A:
                self.ordering_key = raw[start:end]
            elif tag == 0x40:
                self.sequence_id = number
            elif tag == 0x48:
                self.null_value = bool(number)

    @property
    def key_text(self) -> str:
        """The key as its producer gave it; empty if there is none."""
        if self.key is None or not self.key_is_base64:
            return self.key or ""
        return a2b_base64(self.key).decode("utf-8", "replace")


def _read_pair(data: bytes) -> tuple[str, str]:
    key = value = ""
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        size, position = read_varint(data, position)
        text = data[position : position + size].decode("utf-8", "replace")
        position += size
        if tag == 0x0A:
            key = text
        elif tag == 0x12:
            value = text
    return key, value
