"""A broker over a log in memory, on a loopback socket."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.settings import BrokerSettings
from magnetar.environment.clock import SystemClock
from magnetar.metadata.opening import open_store
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.resources import Resources
from magnetar.security.authorizer import AllowAll
from tests.unit.broker.memory_log import MemoryLogs
from tests.unit.broker.raw_client import RawClient

StartBroker = Callable[..., Awaitable[Broker]]
Connect = Callable[..., Awaitable[RawClient]]


@pytest.fixture
def logs() -> MemoryLogs:
    return MemoryLogs()


@pytest.fixture
async def start_broker(logs: MemoryLogs) -> AsyncIterator[StartBroker]:
    """Starts brokers with the settings given; all are stopped at the end."""
    started: list[Broker] = []
    stores: list[Any] = []

    async def start(defaults: PolicyDefaults | None = None, *, store: Any = None, **settings: Any) -> Broker:
        store = store or await open_store("memory:")
        stores.append(store)
        resources = Resources(store, defaults)
        broker = Broker(
            BrokerSettings(**{"failover_delay_s": 0.0, **settings}),
            metadata=store,
            ledgers=logs,  # type: ignore[arg-type]  # It does what the contract says.
            resources=resources,
            authorizer=AllowAll(),
            clock=SystemClock(),
            random=random.Random(1),
        )
        port = await broker.start("127.0.0.1", 0)
        await resources.bootstrap("standalone", "http://127.0.0.1:8080", f"pulsar://127.0.0.1:{port}")
        started.append(broker)
        return broker

    yield start
    for broker in started:
        await broker.stop()
    for store in stores:
        await store.close()


@pytest.fixture
async def broker(start_broker: StartBroker) -> Broker:
    return await start_broker()


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    """Opens raw connections to `broker`; all are closed at the end."""
    opened: list[RawClient] = []

    async def open_one(*, handshake: bool = True, to: Broker | None = None, **options: Any) -> RawClient:
        client = await RawClient.open(int((to or broker).service_url.rpartition(":")[2]))
        opened.append(client)
        if handshake:
            await client.handshake(**options)
        return client

    yield open_one
    for client in opened:
        await client.close()
