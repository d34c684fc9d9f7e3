"""Tells the broker what a consumer has acknowledged, and what it wants again: groups, timers, receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from magnetar.client.acknowledgements import AcknowledgementGroup, Place, Positions, Untold
from magnetar.client.errors import BrokerRefused, ConnectionLost, transaction_error
from magnetar.client.link import TopicLink
from magnetar.client.nacks import NegativeAcknowledgements
from magnetar.protocol import commands
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import CommandAckResponse, ServerError

_IDS_PER_COMMAND = 1000


class Acknowledger:
    """Many acknowledgements in one command, one timer for all of them."""

    def __init__(
        self,
        link: TopicLink,
        consumer_id: int,
        *,
        group_s: float,
        group_size: int,
        negative_delay_s: float,
    ) -> None:
        self._link = link
        self._consumer_id = consumer_id
        self._group_s = group_s
        self._group_size = group_size
        self._negative_delay_s = negative_delay_s
        self._loop = asyncio.get_running_loop()
        self._group = AcknowledgementGroup()
        self._again = NegativeAcknowledgements(negative_delay_s)
        self._timer: asyncio.TimerHandle | None = None
        self._again_timer: asyncio.TimerHandle | None = None
        self.epoch: int | None = None
        """The consumer's epoch, which a demand for redelivery carries."""

    def entries(self, ids: Iterable[MessageId]) -> None:
        """Acknowledge whole entries."""
        for message_id in (ids := tuple(ids)):
            self._again.discard(message_id[:2])
        self._group.add_entries(ids)
        self._tell_soon()

    def member(self, message_id: MessageId, already: Sequence[int]) -> None:
        """Acknowledge one message of a batch, delivered with the ack set `already`."""
        self._group.add_member(message_id, already)
        self._tell_soon()

    def cumulative(self, message_id: MessageId) -> None:
        """Acknowledge everything up to and with a message."""
        self._group.add_cumulative(message_id)
        self._tell_soon()

    def again(self, ids: Iterable[MessageId]) -> None:
        """Ask for entries again after the delay."""
        now = self._link.session.clock.monotonic()
        for message_id in ids:
            self._again.add(message_id, now)
        if self._again_timer is None:
            self._again_timer = self._loop.call_later(self._negative_delay_s, self._ask_again)

    def holds(self, place: Place) -> bool:
        """Whether an entry that is delivered again was acknowledged, but the broker not told yet."""
        return self._group.holds(place)

    def tell(self) -> None:
        """Tell the broker, if there is one now; otherwise it waits for the next attachment."""
        connection = self._link.connection
        if self._group and connection is not None:
            for _, frame in self._commands(self._group.take(), with_receipts=False):
                connection.write(frame)

    async def flush(self) -> None:
        """Tell the broker, and wait until the acknowledgements are durable.

        Raises:
            BrokerRefused: the broker could not make them so.
            OperationTimedOut: it could not be reached or did not answer.
        """
        timeout_s = self._link.session.settings.operation_timeout_s
        while self._group:
            untold = Untold()
            try:
                connection = await self._link.attached()
                untold = self._group.take()
                for request_id, frame in self._commands(untold, with_receipts=True):
                    await connection.request(request_id, frame, CommandAckResponse, timeout_s)
            except ConnectionLost:
                self._group.put_back(untold)
            except BaseException:
                self._group.put_back(untold)
                raise

    async def told_in(self, txn: tuple[int, int], positions: Positions, *, cumulative: bool) -> None:
        """Tell the broker at once, within a transaction, and wait until it is durable there.

        Raises:
            TransactionConflict: something of it is acknowledged, or within another transaction.
            TransactionEnded: the transaction has ended.
            BrokerRefused: the broker will not have it.
            OperationTimedOut: it could not be reached or did not answer.
        """
        timeout_s = self._link.session.settings.operation_timeout_s
        for message_id, _ in positions:
            self._again.discard(message_id[:2])
        while True:
            connection = await self._link.attached()
            request_id = self._link.session.ids.request()
            frame = commands.ack(
                self._consumer_id, positions, cumulative=cumulative, request_id=request_id, txn=txn
            )
            try:
                await connection.request(request_id, frame, CommandAckResponse, timeout_s)
                return
            except ConnectionLost:
                continue  # Told twice, it is the same.
            except BrokerRefused as error:
                if error.code != ServerError.ConsumerNotFound or self._link.connection is connection:
                    raise transaction_error(error) from error

    def on_detached(self) -> None:
        """The broker will send everything unacknowledged again unasked."""
        self._again.clear()
        self._group.on_detached()

    def forget(self) -> None:
        """The subscription was moved: nothing said before means anything."""
        self._group.clear()
        self._again.clear()

    def stop(self) -> None:
        """Cancel the timers."""
        for timer in (self._timer, self._again_timer):
            if timer is not None:
                timer.cancel()

    def _tell_soon(self) -> None:
        if len(self._group) >= self._group_size or self._group_s <= 0:
            self.tell()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._group_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.tell()

    def _commands(self, untold: Untold, *, with_receipts: bool) -> list[tuple[int, bytes]]:
        """Request id and frame of each ACK; without receipts the id is 0 and in no frame."""
        parts = [
            (untold.individual[first : first + _IDS_PER_COMMAND], False)
            for first in range(0, len(untold.individual), _IDS_PER_COMMAND)
        ]
        if untold.cumulative is not None:
            parts.append(([untold.cumulative], True))
        frames = []
        for positions, cumulative in parts:
            request_id = self._link.session.ids.request() if with_receipts else 0
            frame = commands.ack(
                self._consumer_id, positions, cumulative=cumulative, request_id=request_id or None
            )
            frames.append((request_id, frame))
        return frames

    def _ask_again(self) -> None:
        self._again_timer = None
        now = self._link.session.clock.monotonic()
        due = self._again.take_due(now)
        connection = self._link.connection
        if connection is not None and due:
            self.tell()  # So that acknowledged members of a batch are not sent again.
            for first in range(0, len(due), _IDS_PER_COMMAND):
                some = due[first : first + _IDS_PER_COMMAND]
                connection.write(commands.redeliver(self._consumer_id, some, consumer_epoch=self.epoch))
        next_due = self._again.next_due
        if next_due is not None:
            self._again_timer = self._loop.call_later(max(0.0, next_due - now), self._ask_again)
