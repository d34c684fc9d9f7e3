"""Connections of one client: one for each broker, made when first needed and shared."""

from __future__ import annotations

import asyncio
import ssl
from typing import TypeAlias

from magnetar.client.connection import Connection
from magnetar.client.errors import AlreadyClosed, ConnectFailed
from magnetar.client.service_url import BrokerAddress
from magnetar.client.settings import ClientSettings

_Key: TypeAlias = tuple[BrokerAddress, BrokerAddress]


class ConnectionPool:
    """Hands out connections by broker."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._open: dict[_Key, Connection] = {}
        self._opening: dict[_Key, asyncio.Task[Connection]] = {}
        self._closed = False

    async def get(self, broker: BrokerAddress, through: BrokerAddress | None = None) -> Connection:
        """A connection to `broker`, through the proxy `through` if given.

        Raises:
            ConnectFailed: nobody answers there.
            BrokerRefused: the broker does not want us.
            AlreadyClosed: the client is closed.
        """
        if self._closed:
            raise AlreadyClosed("the client is closed")
        key = (broker, through or broker)
        connection = self._open.get(key)
        if connection is not None and connection.usable:
            return connection
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.create_task(self._connect(key), name=f"connect to {broker}")
            self._opening[key] = opening
            opening.add_done_callback(lambda task: self._opened(key, task))
        return await asyncio.shield(opening)  # Others may wait for it too.

    def _opened(self, key: _Key, task: asyncio.Task[Connection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()  # Whoever waited has it; if all stopped waiting, nobody misses it.

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for opening in list(self._opening.values()):
            opening.cancel()
        await asyncio.gather(*self._opening.values(), return_exceptions=True)
        await asyncio.gather(*(connection.close() for connection in self._open.values()))
        self._open.clear()

    async def _connect(self, key: _Key) -> Connection:
        broker, physical = key
        timeout_s = self._settings.connection_timeout_s
        loop = asyncio.get_running_loop()
        context: ssl.SSLContext | None = None
        if physical.tls:
            context = self._settings.tls or ssl.create_default_context()
        connection = Connection(str(broker), self._settings, str(broker) if physical != broker else None)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: connection, physical.host, physical.port, ssl=context)
                await connection.handshake()
        except TimeoutError:
            connection.abort("handshake took too long")
            raise ConnectFailed(str(physical), f"no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise ConnectFailed(str(physical), str(error)) from None
        except BaseException:
            connection.abort("handshake failed")
            raise
        self._open[key] = connection
        return connection
