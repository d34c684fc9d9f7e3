"""Which broker serves a topic, how many partitions it has, and what topics there are."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.client.connection import Connection
from magnetar.client.errors import BrokerRefused, ClientError, ConnectFailed
from magnetar.client.pool import ConnectionPool
from magnetar.client.request_ids import RequestIds
from magnetar.client.service_url import BrokerAddress
from magnetar.client.settings import ClientSettings
from magnetar.protocol import commands
from magnetar.protocol.pulsar_pb2 import (
    CommandGetTopicsOfNamespace,
    CommandGetTopicsOfNamespaceResponse,
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    ServerError,
)


class BrokerLookup:
    """Asks the brokers of the service URL, beginning with the one that answered last."""

    def __init__(
        self,
        pool: ConnectionPool,
        seeds: Sequence[BrokerAddress],
        ids: RequestIds,
        settings: ClientSettings,
    ) -> None:
        self._pool = pool
        self._seeds = list(seeds)
        self._ids = ids
        self._settings = settings

    async def connection_for(self, topic: str) -> Connection:
        """A connection to the broker that serves `topic`.

        Raises:
            ConnectFailed, ConnectionLost, OperationTimedOut: brokers cannot be reached now.
            BrokerRefused: none of them serves the topic now, or ever.
        """
        service = await self.service_connection()
        asked = service
        authoritative = False
        for _ in range(self._settings.max_redirects + 1):
            request_id = self._ids.request()
            frame = commands.lookup(
                topic,
                request_id,
                authoritative=authoritative,
                listener_name=self._settings.listener_name,
            )
            answer = await asked.request(
                request_id, frame, CommandLookupTopicResponse, self._settings.operation_timeout_s
            )
            broker = self._address(answer)
            through = self._seeds[0] if answer.proxy_through_service_url else None
            if answer.response == CommandLookupTopicResponse.Connect:
                return await self._pool.get(broker, through)
            asked = await self._pool.get(broker, through)
            authoritative = answer.authoritative
        raise BrokerRefused(
            ServerError.ServiceNotReady,
            f"lookup of {topic} was passed on {self._settings.max_redirects} times",
        )

    async def partitions(self, topic: str) -> int:
        """How many partitions `topic` has; 0 if it is not partitioned.

        Raises:
            As `connection_for`.
        """
        connection = await self.service_connection()
        request_id = self._ids.request()
        answer = await connection.request(
            request_id,
            commands.partitioned_metadata(topic, request_id),
            CommandPartitionedTopicMetadataResponse,
            self._settings.operation_timeout_s,
        )
        return answer.partitions

    async def topics(
        self,
        namespace: str,
        mode: CommandGetTopicsOfNamespace.Mode.ValueType = CommandGetTopicsOfNamespace.PERSISTENT,
    ) -> list[str]:
        """The topics of `namespace`, partitioned ones as their partitions.

        Raises:
            As `connection_for`.
        """
        connection = await self.service_connection()
        request_id = self._ids.request()
        answer = await connection.request(
            request_id,
            commands.get_topics_of_namespace(namespace, request_id, mode=mode),
            CommandGetTopicsOfNamespaceResponse,
            self._settings.operation_timeout_s,
        )
        return list(answer.topics)

    async def connection_to(self, url: str) -> Connection:
        """A connection to a broker named by a broker.

        Raises:
            ConnectFailed: it cannot be reached.
        """
        return await self._pool.get(BrokerAddress.parse(url))

    async def service_connection(self) -> Connection:
        """A connection to whichever broker of the service URL answers.

        Raises:
            ConnectFailed: none does.
        """
        failure: ClientError | None = None
        for _ in range(len(self._seeds)):
            try:
                return await self._pool.get(self._seeds[0])
            except ConnectFailed as error:
                failure = failure or error
                self._seeds.append(self._seeds.pop(0))
        assert failure is not None
        raise failure

    def _address(self, answer: CommandLookupTopicResponse) -> BrokerAddress:
        url = answer.brokerServiceUrlTls if self._seeds[0].tls else answer.brokerServiceUrl
        if not url:
            raise ConnectFailed("the broker looked up", "it has no address of the scheme in use")
        return BrokerAddress.parse(url)
