"""What all producers, consumers and readers of one client share."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random

from magnetar.client.backoff import Backoff
from magnetar.client.lookup import BrokerLookup
from magnetar.client.pool import ConnectionPool
from magnetar.client.request_ids import RequestIds
from magnetar.client.service_url import parse_service_url
from magnetar.client.settings import ClientSettings
from magnetar.environment.clock import Clock


class MemoryBudget:
    """What producers may hold without receipts, all together."""

    __slots__ = ("_waiters", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    def release(self, size: int) -> None:
        """Give back what was used, and wake whoever waits for room."""
        self.used -= size
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def released(self) -> None:
        """Wait until something is given back."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter


class Session:
    """The shared part of a client."""

    def __init__(self, service_url: str, settings: ClientSettings, clock: Clock, random: Random) -> None:
        self.settings = settings
        self.clock = clock
        self.random = random
        self.ids = RequestIds()
        self.pool = ConnectionPool(settings)
        self.lookup = BrokerLookup(self.pool, parse_service_url(service_url), self.ids, settings)
        self.memory = MemoryBudget(settings.memory_limit_bytes)

    def backoff(self) -> Backoff:
        """A fresh back-off by the client's settings."""
        return Backoff(
            self.random,
            initial_s=self.settings.backoff_initial_s,
            maximum_s=self.settings.backoff_maximum_s,
        )
