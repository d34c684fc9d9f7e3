"""A platform in this process, small and whole: metadata in memory, a bookie, a broker, and the web side."""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from magnetar.admin.app import build_site
from magnetar.admin.server import WebServer
from magnetar.admin.settings import AdminSettings
from magnetar.admin.site import Site
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import MIB, BookieSettings
from magnetar.broker.broker import Broker
from magnetar.broker.settings import BrokerSettings
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.metadata.opening import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.policies.resources import Resources
from magnetar.security.authorizer import AllowAll

SETTINGS = AdminSettings(
    body_bytes_max=64 * 1024,
    header_timeout_s=1.0,
    body_timeout_s=1.0,
    write_timeout_s=1.0,
    connections_max=100,
)


@dataclass(slots=True)
class Platform:
    """What tests hold on to."""

    metadata: MetadataStore
    resources: Resources
    broker: Broker
    site: Site
    port: int
    http: httpx.AsyncClient

    async def publish(self, topic: str, *payloads: bytes, **options: object) -> None:
        """Store messages, as a client would."""
        from magnetar.client.client import Client

        client = Client(self.broker.service_url)
        try:
            producer = await client.create_producer(topic, batching=False, **options)  # type: ignore[arg-type]
            for payload in payloads:
                await producer.send(payload)
        finally:
            await client.close()


@asynccontextmanager
async def open_platform(directory: Path) -> AsyncIterator[Platform]:
    """Everything started, and stopped in the end."""
    clock, dice = SystemClock(), random.Random(1)
    metadata = await open_store("memory:")
    bookie = Bookie(
        BookieSettings(
            directory / "bookie",
            journal_segment_bytes=MIB,
            journal_first_bytes=MIB,
            write_cache_bytes=2 * MIB,
        ),
        disk=SystemDisk(),
        clock=clock,
        bookie_id="bookie-1",
    )
    await bookie.start()
    provider = MetadataBookieProvider(metadata, {"bookie-1": bookie}, dice=dice)
    ledgers = LedgerClient(metadata, provider, clock=clock, random=dice)
    logs = ManagedLedgerFactory(metadata, ledgers, clock=clock, random=dice)
    resources = Resources(metadata)
    broker = Broker(
        BrokerSettings(failover_delay_s=0.0),
        metadata=metadata,
        ledgers=logs,
        resources=resources,
        authorizer=AllowAll(),
        clock=clock,
        random=dice,
    )
    site = build_site(broker, resources, AllowAll(), settings=SETTINGS)
    server = WebServer(site, SETTINGS)
    port = await server.start("127.0.0.1", 0)
    broker.web_service_url = f"http://127.0.0.1:{port}"
    broker_port = await broker.start("127.0.0.1", 0)
    await resources.bootstrap("standalone", broker.web_service_url, f"pulsar://127.0.0.1:{broker_port}")
    async with httpx.AsyncClient(base_url=broker.web_service_url, timeout=20.0, verify=False) as http:
        yield Platform(metadata, resources, broker, site, port, http)
    await server.stop()
    await broker.stop()
    await logs.close()
    await provider.close()
    await bookie.stop()
    resources.close()
    await metadata.close()


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with open_platform(tmp_path) as opened:
        yield opened


@pytest.fixture
def http(platform: Platform) -> httpx.AsyncClient:
    return platform.http


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Platform]:
    """One platform for all tests of a module, each of which has a `space` of its own."""
    async with open_platform(tmp_path_factory.mktemp("platform")) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="module")
async def space(shared: Platform, request: pytest.FixtureRequest) -> str:
    """A namespace that nobody else uses."""
    name = f"public/{zlib.crc32(request.node.nodeid.encode()):08x}"
    assert (await shared.http.put(f"/admin/v2/namespaces/{name}")).status_code == 204
    return name
