"""A broker over the real log: a bookie on disk, the ledger client, the managed ledger."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest
import uvloop

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.broker.broker import Broker
from magnetar.broker.settings import BrokerSettings
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.managed_ledger import ManagedLedgerFactory
from magnetar.metadata.opening import open_store
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.resources import Resources
from magnetar.security.authorizer import AllowAll

T = TypeVar("T")

DEADLINE_S = 20.0


class BrokerUnderTest:
    """A platform without its REST side, on a loop and thread of its own; tests talk to it over its socket."""

    def __init__(self, directory: Path, defaults: PolicyDefaults | None = None, **settings: Any) -> None:
        self._directory = directory
        self._defaults = defaults
        self._settings = {"failover_delay_s": 0.2, "housekeeping_interval_s": 0.2, **settings}
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self.broker: Broker
        self.resources: Resources
        self.url = ""

    def start(self) -> BrokerUnderTest:
        """Serve; after `stop`, again, from the same directory and on the same port."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: uvloop.run(self._serve(ready)), name="broker under test"
        )
        self._thread.start()
        ready.result(DEADLINE_S)
        return self

    async def _serve(self, ready: Future[None]) -> None:
        try:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            metadata = await open_store(f"rocksdb:{self._directory / 'metadata'}")
            clock, dice = SystemClock(), random.Random()
            bookie = Bookie(
                BookieSettings(directory=self._directory / "bookie", journal_segment_bytes=8 * 1024 * 1024),
                disk=SystemDisk(),
                clock=clock,
                bookie_id="bookie-1",
            )
            await bookie.start()
            provider = MetadataBookieProvider(metadata, {"bookie-1": bookie})
            client = LedgerClient(metadata, provider, clock=clock, random=dice)
            ledgers = ManagedLedgerFactory(metadata, client, clock=clock)
            self.resources = Resources(metadata, self._defaults)
            self.broker = Broker(
                BrokerSettings(**self._settings),
                metadata=metadata,
                ledgers=ledgers,
                resources=self.resources,
                authorizer=AllowAll(),
                clock=clock,
                random=dice,
            )
            self._port = await self.broker.start("127.0.0.1", self._port)
            self.url = f"pulsar://127.0.0.1:{self._port}"
            await self.resources.bootstrap("standalone", "http://127.0.0.1:8080", self.url)
        except BaseException as error:
            ready.set_exception(error)
            raise
        ready.set_result(None)
        await self._stop.wait()
        await self.broker.stop()
        self.resources.close()
        await ledgers.close()
        await client.close()
        await provider.close()
        await bookie.stop()
        await metadata.close()

    def stop(self) -> None:
        """End in order, everything written."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the broker did not stop in time"
        self._thread = None

    def do(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something on the broker's loop."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(DEADLINE_S)


@pytest.fixture(scope="module")
def broker_under_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerUnderTest]:
    """One for all tests of a module: each uses topics of its own."""
    broker = BrokerUnderTest(tmp_path_factory.mktemp("platform")).start()
    yield broker
    broker.stop()


@pytest.fixture
def client(broker_under_test: BrokerUnderTest) -> Iterator[pulsar.Client]:
    """The official client."""
    client = official_client(broker_under_test.url)
    yield client
    client.close()


def official_client(url: str) -> pulsar.Client:
    """The official client, telling only what went wrong."""
    return pulsar.Client(
        url,
        operation_timeout_seconds=10,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic nobody else uses."""
    name: str = request.node.name
    return "persistent://public/default/" + name.replace("[", "-").replace("]", "")
