"""The transaction coordinators of a cluster: found like topics, asked again until they answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final, TypeVar

from google.protobuf.message import Message as Command

from magnetar.client.connection import Connection
from magnetar.client.errors import BrokerRefused, TransactionsUnavailable, transaction_error
from magnetar.client.retry import until_answered
from magnetar.client.session import Session
from magnetar.protocol import transaction_requests as requests
from magnetar.protocol.pulsar_pb2 import (
    CommandAddPartitionToTxnResponse,
    CommandAddSubscriptionToTxnResponse,
    CommandEndTxnResponse,
    CommandNewTxnResponse,
    CommandTcClientConnectResponse,
    ServerError,
)

COORDINATOR_TOPIC: Final = "persistent://pulsar/system/transaction_coordinator_assign"

Answer = TypeVar("Answer", bound=Command)


class CoordinatorClient:
    """Asks coordinators, each new transaction of the next one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._turns = itertools.count(session.random.getrandbits(16))
        self._greeted: dict[int, Connection] = {}

    async def begin(self, timeout_s: float) -> tuple[int, int]:
        """Begin a transaction; returns the two numbers of its name.

        Raises:
            TransactionsUnavailable: the cluster has none.
            BrokerRefused, ConnectFailed, OperationTimedOut: no coordinator took it in time.
        """
        if not self._count:
            self._count = await self._coordinators()
        number = next(self._turns) % self._count
        timeout_ms = max(1, round(timeout_s * 1000))
        answer = await self._ask(
            number,
            lambda request_id: requests.new_transaction(request_id, number, timeout_ms),
            CommandNewTxnResponse,
        )
        return answer.txnid_most_bits, answer.txnid_least_bits

    async def _coordinators(self) -> int:
        lookup = self._session.lookup
        try:
            count = await until_answered(self._session, lambda: lookup.partitions(COORDINATOR_TOPIC))
        except BrokerRefused as error:
            if error.code in (ServerError.NotAllowedError, ServerError.TopicNotFound):
                raise TransactionsUnavailable(str(error)) from error
            raise
        if not count:
            raise TransactionsUnavailable("the cluster has no transaction coordinators")
        return count

    async def add_partition(self, most: int, least: int, topic: str) -> None:
        """The transaction will write to `topic`.

        Raises:
            TransactionEnded, TransactionNotFound, ConnectFailed, OperationTimedOut
        """
        await self._ask(
            most,
            lambda request_id: requests.add_partitions_to_transaction(request_id, most, least, [topic]),
            CommandAddPartitionToTxnResponse,
        )

    async def add_subscription(self, most: int, least: int, topic: str, subscription: str) -> None:
        """The transaction will acknowledge for a subscription.

        Raises:
            TransactionEnded, TransactionNotFound, ConnectFailed, OperationTimedOut
        """
        await self._ask(
            most,
            lambda request_id: requests.add_subscriptions_to_transaction(
                request_id, most, least, [(topic, subscription)]
            ),
            CommandAddSubscriptionToTxnResponse,
        )

    async def end(self, most: int, least: int, *, commit: bool) -> None:
        """Commit or abort.

        Raises:
            TransactionEnded: it has ended the other way.
            TransactionNotFound, ConnectFailed, OperationTimedOut
        """
        await self._ask(
            most,
            lambda request_id: requests.end_transaction(request_id, most, least, commit=commit),
            CommandEndTxnResponse,
        )

    async def _ask(self, number: int, frame: Callable[[int], bytes], answer: type[Answer]) -> Answer:
        """Everything asked here may be asked again: the second time changes nothing, but a transaction begun for
        nobody, which ends by its timeout."""

        async def once() -> Answer:
            connection = await self._connection(number)
            request_id = self._session.ids.request()
            try:
                return await connection.request(
                    request_id, frame(request_id), answer, self._session.settings.operation_timeout_s
                )
            except BrokerRefused as error:
                if error.code == ServerError.TransactionCoordinatorNotFound:
                    self._greeted.pop(number, None)
                raise

        try:
            return await until_answered(self._session, once)
        except BrokerRefused as error:
            raise transaction_error(error) from error

    async def _connection(self, number: int) -> Connection:
        connection = self._greeted.get(number)
        if connection is not None and connection.usable:
            return connection
        connection = await self._session.lookup.connection_for(f"{COORDINATOR_TOPIC}-partition-{number}")
        request_id = self._session.ids.request()
        await connection.request(
            request_id,
            requests.connect_to_coordinator(request_id, number),
            CommandTcClientConnectResponse,
            self._session.settings.operation_timeout_s,
        )
        self._greeted[number] = connection
        return connection
