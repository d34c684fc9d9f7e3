"""Messages as they are received: a batch is an entry, and its messages are read out of it when asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from functools import cached_property
from typing import overload

from magnetar.protocol import ack_sets
from magnetar.protocol.batch import Member, index_batch, open_batch, read_single_metadata
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from magnetar.protocol.texts import text


class MessageBatch:
    """All messages of one entry that are to be consumed, one or many.

    Where a part of the entry is acknowledged already, that part is left out of `messages`.
    """

    def __init__(
        self,
        topic: str,
        message_id: MessageId,
        metadata: MessageMetadata,
        payload: memoryview | bytes,
        *,
        index: int | None = None,
        broker_timestamp: int | None = None,
        redelivery_count: int = 0,
        ack_set: Sequence[int] = (),
        skip: int = 0,
        chunk_ids: Sequence[MessageId] = (),
    ) -> None:
        self.topic = topic
        self.message_id = message_id
        """The id of the entry."""
        self.metadata = metadata
        """What the producer wrote before the payload."""
        self.index = index
        """The broker's dense count of messages of the topic, at the entry's last message; None if not told."""
        self.broker_timestamp = broker_timestamp
        """When the broker took the entry, in milliseconds; None if not told."""
        self.redelivery_count = redelivery_count
        self.chunk_ids = chunk_ids
        """The entries a large message came in, where it came in several."""
        self.size = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
        """How many messages the entry was written with; 0 if it is a single message and no batch."""
        self._payload = payload
        self.ack_set = ack_set
        """Which messages of the entry are to be acknowledged; empty if all are."""
        self._indexes = self._wanted(skip)
        if (
            len(self._indexes) < self.size
        ):  # What was left out for another reason is not to be waited for either.
            self.ack_set = ack_sets.from_bits(sum(1 << index for index in self._indexes))

    @property
    def raw(self) -> tuple[MessageMetadata, memoryview | bytes]:
        """The metadata, and the payload as it travelled: compressed, and in a batch's form."""
        return self.metadata, self._payload

    def __len__(self) -> int:
        return len(self._indexes)

    @property
    def indexes(self) -> Sequence[int]:
        """Which members of the entry `messages` are."""
        return self._indexes

    @property
    def messages(self) -> Sequence[Message]:
        """The messages, made when they are looked at."""
        return _Messages(self, self._indexes)

    @property
    def payloads(self) -> list[bytes]:
        """The messages' payloads alone: the quickest way through a batch.

        Raises:
            CompressionError, BatchCorrupt: the entry is not what its metadata say.
        """
        data = self.data
        if not self.size:
            return [data] * len(self._indexes)
        members = self.members
        if len(self._indexes) == len(members):
            return [data[start:end] for _, start, end in members]
        return [data[members[i][1] : members[i][2]] for i in self._indexes]

    @cached_property
    def data(self) -> bytes:
        """The whole payload, decompressed."""
        return open_batch(self.metadata, self._payload)

    @cached_property
    def members(self) -> list[Member]:
        """Where each message of a batch lies in `data`."""
        return index_batch(self.data, self.size)

    def message(self, position: int) -> Message:
        """`messages[position]`."""
        return Message(self, self._indexes[position])

    def after(self, messages: int) -> MessageBatch:
        """The rest of the batch, without the first `messages` of it."""
        rest = copy(self)
        rest._indexes = self._indexes[messages:]
        return rest

    def leave_out_compacted(self) -> None:
        """Leave out the places of messages that a compaction has taken out of the batch.

        Raises:
            CompressionError, BatchUnopenable, BatchCorrupt: the entry is not what its metadata say.
        """
        if not self.size:
            return
        data, members = self.data, self.members
        wanted = [
            index
            for index in self._indexes
            if not read_single_metadata(data[members[index][0] : members[index][1]]).compacted_out
        ]
        if len(wanted) < len(self._indexes):
            self._indexes = wanted
            self.ack_set = ack_sets.from_bits(sum(1 << index for index in wanted))

    def _wanted(self, skip: int) -> Sequence[int]:
        """The members that are neither acknowledged nor skipped."""
        count = max(self.size, 1)
        if self.metadata.compacted_batch_indexes:
            compacted = set(self.metadata.compacted_batch_indexes)
            indexes: Sequence[int] = [i for i in range(skip, count) if i in compacted]
        else:
            indexes = range(skip, count)
        if self.ack_set and self.size:
            unacked = ack_sets.to_bits(self.ack_set)
            indexes = [i for i in indexes if unacked >> i & 1]
        return indexes

    def __repr__(self) -> str:
        return f"MessageBatch({self.topic} {self.message_id.ledger_id}:{self.message_id.entry_id}, {len(self)} messages)"


class Message:
    """One message. Whatever describes it is read when asked for."""

    __slots__ = ("_member", "_position", "batch")

    def __init__(self, batch: MessageBatch, position: int) -> None:
        self.batch = batch
        """The entry it came in."""
        self._position = position
        self._member: SingleMessageMetadata | None = None

    @property
    def data(self) -> bytes:
        """The payload."""
        batch = self.batch
        if not batch.size:
            return batch.data
        _, start, end = batch.members[self._position]
        return batch.data[start:end]

    @property
    def value(self) -> bytes | None:
        """The payload; None for a null value, a tombstone."""
        return None if self._about.null_value else self.data

    @property
    def message_id(self) -> MessageId:
        """Its id, with its place in the batch if it came in one."""
        batch = self.batch
        if not batch.size:
            return batch.message_id
        ledger_id, entry_id, partition = batch.message_id[:3]
        return MessageId(ledger_id, entry_id, partition, self._position, batch.size)

    @property
    def key(self) -> str | None:
        """Its key; a key of bytes comes as the base64 its producer wrote."""
        about = self._about
        return text(about.partition_key) if about.HasField("partition_key") else None

    @property
    def ordering_key(self) -> bytes | None:
        """What Key_Shared subscriptions go by in place of the key."""
        about = self._about
        return about.ordering_key if about.HasField("ordering_key") else None

    @property
    def properties(self) -> dict[str, str]:
        """What the application attached."""
        return {text(pair.key): text(pair.value) for pair in self._about.properties}

    @property
    def event_time(self) -> int | None:
        """Milliseconds since 1970, by the application; None if it set none."""
        return self._about.event_time or None

    @property
    def publish_time(self) -> int:
        """Milliseconds since 1970, by the producer's clock."""
        return self.batch.metadata.publish_time

    @property
    def sequence_id(self) -> int:
        """The producer's count."""
        if self.batch.size:
            about = self._about
            if about.HasField("sequence_id"):
                return about.sequence_id
        return self.batch.metadata.sequence_id

    @property
    def producer_name(self) -> str:
        """Who sent it."""
        return text(self.batch.metadata.producer_name)

    @property
    def topic(self) -> str:
        """The topic, or partition, it was received from."""
        return self.batch.topic

    @property
    def redelivery_count(self) -> int:
        """How often it was delivered before on demand of a consumer."""
        return self.batch.redelivery_count

    @property
    def index(self) -> int | None:
        """The broker's dense count of messages of the topic; None if not told."""
        batch = self.batch
        if batch.index is None:
            return None
        return batch.index - max(batch.size, 1) + 1 + self._position

    @property
    def schema_version(self) -> bytes:
        """The version of the topic's schema it was written with; empty without a schema."""
        return self.batch.metadata.schema_version

    @property
    def _about(self) -> SingleMessageMetadata | MessageMetadata:
        """What describes this message: its own metadata in a batch, the entry's otherwise."""
        batch = self.batch
        if not batch.size:
            return batch.metadata
        if self._member is None:
            start, end, _ = batch.members[self._position]
            self._member = read_single_metadata(batch.data[start:end])
        return self._member

    def __repr__(self) -> str:
        return f"Message({self.topic} {self.message_id})"


class _Messages(Sequence[Message]):
    """The messages of a batch."""

    __slots__ = ("_batch", "_indexes")

    def __init__(self, batch: MessageBatch, indexes: Sequence[int]) -> None:
        self._batch = batch
        self._indexes = indexes

    def __len__(self) -> int:
        return len(self._indexes)

    def __iter__(self) -> Iterator[Message]:
        batch = self._batch
        return (Message(batch, position) for position in self._indexes)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return _Messages(self._batch, self._indexes[index])
        return Message(self._batch, self._indexes[index])
