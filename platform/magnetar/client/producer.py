"""Producers: of one topic, and of a partitioned one."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from magnetar.client.outgoing import OutgoingMessage
from magnetar.client.recipients import DUPLICATE as DUPLICATE
from magnetar.client.transactions import Transaction
from magnetar.protocol.ids import MessageId


class Producer(ABC):
    """Sends messages to a topic, in order. Made by `Client.create_producer`.

    What is sent while there is no connection waits for one. After a reconnection everything without a
    receipt is sent again in order, so that without deduplication a message may be stored twice; with
    it, what the broker says it has is dropped and told as `DUPLICATE`.
    """

    topic: str
    name: str
    """The producer's name, given or chosen by the broker."""

    @property
    @abstractmethod
    def last_sequence_id(self) -> int:
        """The highest sequence id known to be stored under this name; -1 if none is."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""

    @abstractmethod
    def send_nowait(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        transaction: Transaction | None = None,
    ) -> asyncio.Future[MessageId]:
        """Queue a message; the future tells its id once it is stored.

        Args:
            payload: the message; None is a null value, a tombstone for compaction.
            key: decides the partition, and what compaction and Key_Shared subscriptions go by.
            event_time: milliseconds since 1970, by the application.
            sequence_id: the producer's next one by default; what is at or below the broker's
                `last_sequence_id` is not sent but told as `DUPLICATE` at once.
            deliver_at: milliseconds since 1970, for shared subscriptions: not before.
            transaction: what it belongs to: nobody sees it unless that is committed. The first message to a
                topic waits for the coordinator, and messages outside of the transaction do not wait for it.
        Raises:
            ProducerQueueFull: too much is pending; nothing was queued.
            ClientError: the producer is closed, or cannot go on.
        """

    @abstractmethod
    def send_batch_nowait(
        self, messages: Sequence[OutgoingMessage | bytes], *, transaction: Transaction | None = None
    ) -> asyncio.Future[list[MessageId]]:
        """Queue messages as one entry, just as given; the future tells their ids, in order.

        Their sequence ids, where given, must increase. Those at or below the broker's
        `last_sequence_id` are left out and told as `DUPLICATE`. In a transaction the topic, or each of its
        partitions, must have been told to it by `Transaction.join_topic` or by a message sent before.

        Raises:
            ProducerQueueFull, ClientError: as `send_nowait`.
            InvalidUse: their sequence ids do not increase, they belong to several partitions, or one
                has a delivery time.
            MessageTooLarge: together they exceed what the broker takes.
        """

    @abstractmethod
    def send_encoded_batch_nowait(
        self,
        payload: bytes,
        count: int,
        *,
        sequence_id: int | None = None,
        highest_sequence_id: int | None = None,
    ) -> asyncio.Future[MessageId]:
        """Queue a batch that is encoded already as one entry; the future tells the entry's id.

        Args:
            payload: for each message a 4-byte size, SingleMessageMetadata of that size, and its payload;
                not compressed.
            count: how many messages that is.
            sequence_id, highest_sequence_id: of its first and last message, which carry their own in
                their metadata; the producer's next ones if None. A batch wholly at or below the broker's
                `last_sequence_id` is left out and told as `DUPLICATE`.
        Raises:
            ProducerQueueFull, ClientError: as `send_nowait`.
            InvalidUse: the topic is partitioned: choose a partition and make a producer of that.
            MessageTooLarge: it exceeds what the broker takes.
        """

    @abstractmethod
    async def send(
        self,
        payload: bytes | None,
        *,
        key: str | None = None,
        ordering_key: bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time: int | None = None,
        sequence_id: int | None = None,
        deliver_at: int | None = None,
        transaction: Transaction | None = None,
    ) -> MessageId:
        """Send a message, waiting for room if need be, and return its id once it is stored.

        It does not wait for a batch to fill, but shares an entry with whatever else is sent in the
        same turn of the loop.

        Raises:
            SendTimedOut: no receipt in time.
            BrokerRefused: the broker will not have it.
            TransactionEnded, TransactionNotFound: nothing more can be sent in its transaction.
        """

    @abstractmethod
    async def room(self, size: int = 0) -> None:
        """Wait until a payload of `size` bytes may be sent without raising `ProducerQueueFull`."""

    @abstractmethod
    async def flush(self) -> None:
        """Send what waits in a batch and wait for all receipts; raise the first error among them."""

    @abstractmethod
    async def close(self) -> None:
        """Flush, within the operation's time-out, and let the broker forget the producer.

        Errors are told by each message's future.
        """
