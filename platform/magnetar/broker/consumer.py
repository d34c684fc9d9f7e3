"""A consumer on a subscription: what dispatch knows of it, and how it is written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from magnetar.broker import stats
from magnetar.broker.dispatch.member import Member
from magnetar.protocol import commands

if TYPE_CHECKING:
    from magnetar.broker.dispatch.candidate import Delivery
    from magnetar.broker.dispatch.key_ranges import Range
    from magnetar.broker.membership import SubscriptionBase
    from magnetar.broker.peer import Peer


class Consumer(Member):
    """One consumer of one subscription."""

    __slots__ = (
        "acks",
        "epoch",
        "flow",
        "identifier",
        "key_ranges",
        "last_ack_ms",
        "last_delivery_ms",
        "last_flow_ms",
        "metadata",
        "peer",
        "read_compacted",
        "redelivered",
        "since_ms",
        "subscription",
    )

    def __init__(
        self,
        peer: Peer,
        identifier: int,
        name: str,
        *,
        priority: int = 0,
        max_unacked: int = 0,
        epoch: int | None = None,
        metadata: Mapping[str, str] | None = None,
        key_ranges: Sequence[Range] = (),
        since_ms: int = 0,
        read_compacted: bool = False,
    ) -> None:
        super().__init__(name, priority=priority, max_unacked=max_unacked)
        self.peer = peer
        self.identifier = identifier
        """Its number on the connection."""
        self.epoch = epoch
        """The client's count of redelivery requests, stamped on what is sent; None if it does not count."""
        self.metadata = dict(metadata or {})
        self.key_ranges = tuple(key_ranges)
        self.since_ms = since_ms
        self.read_compacted = read_compacted
        self.subscription: SubscriptionBase | None = None
        self.writable = peer.writable
        self.flow = stats.Flow()
        self.acks = stats.Meter()
        self.redelivered = stats.Meter()
        self.last_flow_ms = 0
        self.last_ack_ms = 0
        self.last_delivery_ms = 0

    def deliver(self, delivery: Delivery, partition: int, now_ms: int) -> None:
        """Send an entry."""
        candidate = delivery.candidate
        entry = candidate.entry
        data = entry.raw if self.peer.wants_entry_metadata else entry.data
        position = candidate.position
        head = commands.message(
            self.identifier,
            position.ledger_id,
            position.entry_id,
            len(data),
            partition=partition,
            redelivery_count=delivery.redeliveries,
            ack_set=candidate.ack_set or (),
            consumer_epoch=self.epoch,
        )
        self.peer.send_parts((head, data))
        self.flow.add(candidate.messages, len(data))
        if candidate.chunk_of is not None:
            self.flow.chunks.count += 1
        if delivery.redeliveries:
            self.redelivered.count += candidate.messages
        self.last_delivery_ms = now_ms

    def connection_writable(self, writable: bool) -> None:
        """Its connection's buffer is full, or has room again."""
        self.writable = writable
        if writable and self.subscription is not None:
            self.subscription.wake()

    def disconnect(self) -> None:
        """The broker lets it go; the client subscribes anew."""
        url = self.subscription.topic.successor_url if self.subscription is not None else ""
        self.peer.send(commands.broker_closes_consumer(self.identifier, url or None))
        self.peer.forget_consumer(self)

    def tick(self, seconds: float) -> None:
        self.flow.tick(seconds)
        self.acks.tick(seconds)
        self.redelivered.tick(seconds)

    def stats(self) -> stats.Json:
        """ConsumerStats."""
        entries = self.flow.entries.count
        return {
            **stats.flow_out(self.flow),
            "msgRateRedeliver": self.redelivered.rate,
            "messageAckRate": self.acks.rate,
            "chunkedMessageRate": self.flow.chunks.rate,
            "consumerName": self.name,
            "availablePermits": self.permits,
            "unackedMessages": self.unacked,
            "avgMessagesPerEntry": round(self.flow.messages.count / entries) if entries else 0,
            "blockedConsumerOnUnackedMsgs": self.stalled,
            "address": self.peer.address,
            "connectedSince": stats.iso_time(self.since_ms),
            "clientVersion": self.peer.client_version.replace(" ", "-"),
            "lastAckedTimestamp": self.last_ack_ms,
            "lastConsumedTimestamp": self.last_delivery_ms,
            "lastConsumedFlowTimestamp": self.last_flow_ms,
            "keyHashRanges": [f"[{first}, {last}]" for first, last in self.key_ranges],
            "metadata": self.metadata,
        }
