"""What a subscription has to do with transactions: what it must not deliver, and what it acknowledges provisionally."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from magnetar.broker.errors import NotAllowed
from magnetar.broker.transactions.pending_ack_store import PENDING_ACKS_PROPERTY, PendingAckStore

if TYPE_CHECKING:
    from magnetar.broker.filters import EntryFilter, FilterChain
    from magnetar.broker.persistent_topic import PersistentTopic
    from magnetar.broker.transactions.buffer import TransactionBuffer
    from magnetar.managed_ledger import Cursor, Position


class TransactionalSubscription:
    """A part of `Subscription`."""

    name: str
    topic: PersistentTopic
    durable: bool
    cursor: Cursor
    _filters: FilterChain

    pending_acks: PendingAckStore | None = None
    """None as long as nothing was ever acknowledged here within a transaction."""
    _making_pending_acks: asyncio.Task[PendingAckStore] | None = None

    def hide_with(self, buffer: TransactionBuffer) -> None:
        """From now on deliver only what the topic's transaction buffer lets be seen."""
        self.cursor.read_limit = buffer.limit
        self._filters.insert(buffer.judge)

    def _with_transactions(self, filters: Sequence[EntryFilter]) -> tuple[EntryFilter, ...]:
        """The filters, and behind the first of them those of transactions, where there are any."""
        added: list[EntryFilter] = []
        if self.topic.transactions is not None:
            added.append(self.topic.transactions.judge)
        if self.pending_acks is not None:
            added.append(self.pending_acks.judge)
        return (*filters[:1], *added, *filters[1:])

    async def with_pending_acks(self) -> PendingAckStore:
        """The subscription's provisional acknowledgements, made if there are none.

        Raises:
            NotAllowed: the subscription is not durable.
            ManagedLedgerError: their log cannot be opened now.
        """
        if self.pending_acks is not None:
            return self.pending_acks
        if not self.durable:
            raise NotAllowed(f"subscription {self.name!r} is not durable: it takes no part in transactions")
        if self._making_pending_acks is None:
            self._making_pending_acks = self.topic.context.tasks.start(
                self._make_pending_acks(), f"open the pending acknowledgements of {self.name}"
            )
            self._making_pending_acks.add_done_callback(self._pending_acks_made)
        return await asyncio.shield(self._making_pending_acks)

    async def _make_pending_acks(self) -> PendingAckStore:
        if PENDING_ACKS_PROPERTY not in self.topic.ledger.properties:
            # First, so that whoever loads the topic next looks for them.
            await self.topic.ledger.put_property(PENDING_ACKS_PROPERTY, "1")
        return await PendingAckStore.open(self)  # type: ignore[arg-type]  # Every one of these is a Subscription.

    def _pending_acks_made(self, making: asyncio.Task[PendingAckStore]) -> None:
        self._making_pending_acks = None
        if not making.cancelled() and making.exception() is None:
            self.pending_acks = making.result()
            self._filters.insert(self.pending_acks.judge)

    async def _close_pending_acks(self) -> None:
        if self._making_pending_acks is not None:
            await asyncio.wait((self._making_pending_acks,))
        if self.pending_acks is not None:
            await self.pending_acks.close()

    @property
    def _deliverable_parts(self) -> Callable[[Position], Sequence[int] | None]:
        """Tells what of an entry may be delivered: an ack set, None for all of it."""
        return self.cursor.ack_set if self.pending_acks is None else self.pending_acks.ack_set
