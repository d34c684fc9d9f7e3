"""Message ids: where a message lies, as a value, as text and as bytes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import repeat
from typing import ClassVar, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import InvalidMessageId
from magnetar.protocol.pulsar_pb2 import MessageIdData
from magnetar.protocol.varint import MASK_64

_SIGN_BIT = 1 << 63
_MAX_SIGNED = _SIGN_BIT - 1
_TEXT = re.compile(r"-?\d{1,19}:-?\d{1,19}(:-?\d{1,10}){0,2}", re.ASCII)


def to_unsigned(number: int) -> int:
    """A signed 64-bit number as it travels: -1 becomes 2**64 - 1."""
    return number & MASK_64


def to_signed(number: int) -> int:
    """The signed number behind an unsigned 64-bit one."""
    return number - (1 << 64) if number & _SIGN_BIT else number


class _Fields(NamedTuple):
    ledger_id: int
    entry_id: int
    partition: int = -1
    """Which partition of the topic, -1 where it has none."""
    batch_index: int = -1
    """The member of the batch, -1 where the entry is not a batch or is meant as a whole."""
    batch_size: int = 0
    """How many members the batch has, 0 if unknown. No part of the id's identity."""


class MessageId(_Fields):
    """A position in a topic: entry `entry_id` of ledger `ledger_id`, and where in its batch.

    Compares by ledger, entry, partition and batch index. A tuple rather than a dataclass, because
    one is made for every message sent: three times cheaper.
    """

    __slots__ = ()

    EARLIEST: ClassVar[MessageId]
    """Before the first message of any topic."""
    LATEST: ClassVar[MessageId]
    """After the last message of any topic."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MessageId) and self[:4] == other[:4]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: tuple[int, ...]) -> bool:
        return self[:4] < other[:4]

    def __le__(self, other: tuple[int, ...]) -> bool:
        return self[:4] <= other[:4]

    def __gt__(self, other: tuple[int, ...]) -> bool:
        return self[:4] > other[:4]

    def __ge__(self, other: tuple[int, ...]) -> bool:
        return self[:4] >= other[:4]

    def __hash__(self) -> int:
        return hash(self[:4])

    @classmethod
    def of_batch(cls, ledger_id: int, entry_id: int, partition: int, size: int) -> list[MessageId]:
        """The ids of all members of a batch. Made inside the interpreter's iterators: a quarter of the cost."""
        fields = zip(
            repeat(ledger_id), repeat(entry_id), repeat(partition), range(size), repeat(size), strict=False
        )
        return list(map(tuple.__new__, repeat(cls), fields))

    @property
    def entry(self) -> MessageId:
        """The id of the whole entry this message lies in."""
        return MessageId(self.ledger_id, self.entry_id, self.partition)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.batch_index}"

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Read `ledger:entry`, `ledger:entry:partition` or `ledger:entry:partition:batch`.

        `earliest` and `latest` are read too.

        Raises:
            InvalidMessageId: it is none of these.
        """
        if text in ("earliest", "latest"):
            return EARLIEST if text == "earliest" else LATEST
        if not _TEXT.fullmatch(text):
            raise InvalidMessageId(f"{text!r} is no message id: write ledger:entry[:partition[:batch]]")
        return cls(*(int(part) for part in text.split(":")))

    def to_data(self, ack_set: Iterable[int] = ()) -> MessageIdData:
        """The id as commands carry it."""
        data = MessageIdData(ledgerId=self.ledger_id & MASK_64, entryId=self.entry_id & MASK_64)
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        if self.batch_size > 0:
            data.batch_size = self.batch_size
        data.ack_set.extend(ack_set)
        return data

    @classmethod
    def from_data(cls, data: MessageIdData) -> MessageId:
        """The id a command carries."""
        return cls(
            to_signed(data.ledgerId),
            to_signed(data.entryId),
            data.partition,
            data.batch_index,
            data.batch_size,
        )

    def to_bytes(self) -> bytes:
        """The id as official clients store it: MessageIdData, serialized."""
        return self.to_data().SerializeToString()

    @classmethod
    def from_bytes(cls, data: Buffer) -> MessageId:
        """Read what `to_bytes`, or an official client, wrote.

        Raises:
            InvalidMessageId: it is no serialized MessageIdData.
        """
        message = MessageIdData()
        try:
            message.ParseFromString(bytes(data))
        except DecodeError as error:
            raise InvalidMessageId(f"{len(data)} bytes are no message id: {error}") from None
        if not message.IsInitialized():
            raise InvalidMessageId(f"{len(data)} bytes are no message id: ledger or entry is missing")
        return cls.from_data(message)


EARLIEST = MessageId.EARLIEST = MessageId(-1, -1)
LATEST = MessageId.LATEST = MessageId(_MAX_SIGNED, _MAX_SIGNED)
