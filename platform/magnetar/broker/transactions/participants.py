"""Tells topics and subscriptions how a transaction ended: those of this broker directly, others' over the wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from magnetar.broker.errors import (
    BrokerError,
    InvalidTopic,
    NamespaceNotFound,
    NotAllowed,
    SubscriptionNotFound,
    TopicNotFound,
)
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.transactions.txn_id import TxnId
from magnetar.environment.logs import get_logger
from magnetar.naming import TopicName
from magnetar.protocol.pulsar_pb2 import ServerError

if TYPE_CHECKING:
    from magnetar.broker.broker import Broker
    from magnetar.client.session import Session

log = get_logger("magnetar.broker")

_TIMEOUT_S: Final = 10.0
_GONE: Final = (TopicNotFound, NamespaceNotFound, SubscriptionNotFound, InvalidTopic, NotAllowed)
"""Who is not there need not be told; what cannot take part, such as a partitioned topic's own name, never did."""
_GONE_CODES: Final = frozenset(
    {
        ServerError.TopicNotFound,
        ServerError.SubscriptionNotFound,
        ServerError.InvalidTopicName,
        ServerError.NotAllowedError,
    }
)


class Participants:
    """What coordinators speak through."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._session: Session | None = None

    async def end_on_partition(self, topic: str, txn: TxnId, *, commit: bool, watermark: int) -> None:
        """See to it that a topic knows how a transaction ended. One that is not there any more need not.

        Raises:
            BrokerError, ClientError: it could not be told now.
        """

        async def here() -> None:
            await self.end_here(topic, txn, commit=commit, watermark=watermark)

        async def there() -> None:
            from magnetar.client.participant_calls import end_on_partition

            await end_on_partition(
                self._client(), topic, txn.most, txn.least, commit=commit, watermark=watermark
            )

        await self._wherever(topic, here, there)

    async def end_on_subscription(
        self, topic: str, subscription: str, txn: TxnId, *, commit: bool, watermark: int
    ) -> None:
        """See to it that a subscription knows how a transaction ended.

        Raises:
            BrokerError, ClientError: it could not be told now.
        """

        async def here() -> None:
            await self.end_subscription_here(topic, subscription, txn, commit=commit, watermark=watermark)

        async def there() -> None:
            from magnetar.client.participant_calls import end_on_subscription

            await end_on_subscription(
                self._client(), topic, subscription, txn.most, txn.least, commit=commit, watermark=watermark
            )

        await self._wherever(topic, here, there)

    async def _wherever(
        self, topic: str, here: Callable[[], Awaitable[None]], there: Callable[[], Awaitable[None]]
    ) -> None:
        from magnetar.client.errors import BrokerRefused

        try:
            found = await self._broker.lookup(TopicName.parse(topic), take=False)
            await (here() if found.here else there())
        except _GONE as error:
            log.info("transaction.participant_gone", participant=topic, reason=str(error))
        except BrokerRefused as error:
            if error.code not in _GONE_CODES:
                raise
            log.info("transaction.participant_gone", participant=topic, reason=str(error))

    async def end_here(self, topic: str, txn: TxnId, *, commit: bool, watermark: int) -> None:
        """The same for a topic of this broker.

        Raises:
            BrokerError, ManagedLedgerError: it is not, or could not be written down.
        """
        found = await self._topic(topic)
        buffer = await found.with_transactions()
        await buffer.end(txn, commit=commit, watermark=watermark)

    async def end_subscription_here(
        self, topic: str, subscription: str, txn: TxnId, *, commit: bool, watermark: int
    ) -> None:
        """The same for a subscription of a topic of this broker.

        Raises:
            BrokerError: it is not, or could not be written down.
        """
        found = (await self._topic(topic)).subscriptions.get(subscription)
        if found is None:
            raise SubscriptionNotFound(f"subscription {subscription!r} does not exist on {topic}")
        store = await found.with_pending_acks()
        await store.end(txn, commit=commit, watermark=watermark)

    async def _topic(self, topic: str) -> PersistentTopic:
        found = await self._broker.topics.get(TopicName.parse(topic), create=False)
        if not isinstance(found, PersistentTopic):
            raise NotAllowed(f"topic {topic} keeps nothing, and so takes no part in transactions")
        return found

    def _client(self) -> Session:
        if self._session is None:
            from magnetar.client.session import Session
            from magnetar.client.settings import ClientSettings

            settings = ClientSettings(operation_timeout_s=_TIMEOUT_S)
            context = self._broker.context
            self._session = Session(self._broker.service_url, settings, context.clock, context.random)
        return self._session

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.pool.close()


__all__ = ["BrokerError", "Participants"]
