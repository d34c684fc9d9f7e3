"""A producer on a topic, and the receipts it is owed."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from magnetar.broker import stats
from magnetar.broker.exclusivity import AccessMode
from magnetar.protocol import commands

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.broker.deduplication import Push
    from magnetar.broker.errors import BrokerError
    from magnetar.broker.peer import Peer
    from magnetar.broker.topic import Topic
    from magnetar.broker.transactions.txn_id import TxnId
    from magnetar.managed_ledger import Position


class Publish:
    """A message on its way to storage, and then the answer to it."""

    __slots__ = (
        "began",
        "done",
        "error",
        "highest_sequence_id",
        "messages",
        "position",
        "producer",
        "push",
        "sequence_id",
        "size",
        "txn",
    )

    def __init__(
        self,
        producer: Producer,
        sequence_id: int,
        highest_sequence_id: int,
        messages: int,
        size: int,
        began: float,
    ) -> None:
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest_sequence_id = highest_sequence_id
        self.messages = messages
        self.size = size
        self.began = began
        self.push: Push | None = None
        self.txn: TxnId | None = None
        """The transaction it belongs to."""
        self.done = False
        self.position: tuple[int, int] = (-1, -1)
        self.error: BrokerError | None = None

    def stored(self, position: Position | None, index: int, error: Exception | None) -> None:
        """What storage calls. Of the topic's making, so that nothing is created per message but this."""
        self.producer.topic.published(self, position, error)


class Producer:
    """One producer of one topic.

    Receipts leave in the order in which the messages came, whatever becomes of each: clients drop the
    connection over a receipt out of turn.
    """

    __slots__ = (
        "_idle",
        "epoch",
        "flow",
        "halted",
        "identifier",
        "metadata",
        "mode",
        "name",
        "name_given",
        "partial",
        "peer",
        "pending",
        "request_id",
        "schema_version",
        "since_ms",
        "topic",
        "topic_epoch",
    )

    def __init__(
        self,
        topic: Topic,
        peer: Peer,
        identifier: int,
        name: str,
        *,
        request_id: int = 0,
        epoch: int = 0,
        name_given: bool = True,
        mode: AccessMode = AccessMode.SHARED,
        metadata: Mapping[str, str] | None = None,
        schema_version: bytes = b"",
        since_ms: int = 0,
    ) -> None:
        self.topic = topic
        self.peer = peer
        self.identifier = identifier
        """Its number on the connection."""
        self.name = name
        self.request_id = request_id
        self.epoch = epoch
        """Counts the client's reconnections."""
        self.name_given = name_given
        """Whether the user chose the name."""
        self.mode = mode
        self.metadata = dict(metadata or {})
        self.schema_version = schema_version
        self.since_ms = since_ms
        self.topic_epoch: int | None = None
        self.halted = False
        """A message arrived damaged and will be sent again. What came behind it would be stored before it, and
        have it taken for a repetition: it is dropped, and the producer let go once the damage is answered.
        Or the topic takes nothing more from it for now."""
        self.partial = False
        self.flow = stats.Flow()
        self.pending: deque[Publish] = deque()
        self._idle: asyncio.Future[None] | None = None

    def answer(self, publish: Publish) -> None:
        """A message has its answer; send it and those it held up, unless earlier ones are still open."""
        publish.done = True
        pending = self.pending
        while pending and pending[0].done:
            self._send_answer(pending.popleft())
        if self.halted and not pending:
            self._let_go()
        if self._idle is not None and not pending:
            self._idle.set_result(None)
            self._idle = None

    def halt(self) -> None:
        """Drop what still comes, and let the client go as soon as all it sent before has its answer."""
        self.halted = True
        if not self.pending:
            self._let_go()

    def _let_go(self) -> None:
        if self.topic.producers.get(self.name) is self:
            self.disconnect()
            self.topic.remove_producer(self)

    async def until_answered(self) -> None:
        """Wait until every message that came has its answer."""
        while self.pending:
            self._idle = asyncio.get_running_loop().create_future() if self._idle is None else self._idle
            await asyncio.shield(self._idle)

    def _send_answer(self, publish: Publish) -> None:
        error = publish.error
        if error is None:
            ledger_id, entry_id = publish.position
            self.peer.send(
                commands.send_receipt(
                    self.identifier, publish.sequence_id, ledger_id, entry_id, publish.highest_sequence_id
                )
            )
        else:
            sequence_id = max(publish.sequence_id, publish.highest_sequence_id)
            self.peer.send(commands.send_error(self.identifier, sequence_id, error.code, str(error)))
        self.peer.publish_finished(publish.size)

    def succeed(self, last_sequence_id: int, *, ready: bool = True) -> None:
        """Tell the client that it may send, or that it has to wait for its turn."""
        self.peer.send_claim(
            commands.producer_success(
                self.request_id,
                self.name,
                last_sequence_id=last_sequence_id,
                schema_version=self.schema_version,
                topic_epoch=self.topic_epoch,
                ready=ready,
            )
        )

    def refuse(self, error: BrokerError) -> None:
        """Answer the request that made it with an error, and forget it."""
        self.peer.send(commands.error(self.request_id, error.code, str(error)))
        self.peer.forget_producer(self)

    def disconnect(self) -> None:
        """The broker lets it go; the client looks the topic up anew."""
        self.peer.send(commands.broker_closes_producer(self.identifier, self.topic.successor_url or None))
        self.peer.forget_producer(self)

    def stats(self) -> stats.Json:
        """PublisherStats."""
        return {
            "accessMode": self.mode.text,
            "producerId": self.identifier,
            "producerName": self.name,
            **stats.flow_in(self.flow),
            "chunkedMessageRate": self.flow.chunks.rate,
            "supportsPartialProducer": self.partial,
            "address": self.peer.address,
            "connectedSince": stats.iso_time(self.since_ms),
            "clientVersion": self.peer.client_version.replace(" ", "-"),
            "metadata": self.metadata,
        }
