"""A broker: everything above the log, put together.

broker = Broker(settings, metadata=…, ledgers=…, resources=…, authorizer=…, clock=…, random=…)
port = await broker.start("127.0.0.1", 6650)
…
await broker.stop()
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from magnetar.broker.cluster.neighbourhood import Neighbourhood
from magnetar.broker.connection import Connection
from magnetar.broker.context import BrokerContext
from magnetar.broker.errors import ListenerNotFound, MetadataFailed
from magnetar.broker.lease import Lease
from magnetar.broker.limits import PublishBudget
from magnetar.broker.metrics import broker_samples
from magnetar.broker.ownership import BrokerAddress, Ownership
from magnetar.broker.parking import Parking
from magnetar.broker.schemas import SchemaRegistry
from magnetar.broker.topic_lists import TopicLists
from magnetar.broker.topics import TopicRegistry
from magnetar.broker.transactions.service import TransactionService
from magnetar.broker.upkeep.housekeeping import Housekeeper
from magnetar.environment.logs import get_logger
from magnetar.metadata.counters import IdAllocator

if TYPE_CHECKING:
    import random as random_module

    from magnetar.broker.cluster.report import BrokerReport
    from magnetar.broker.namespaces.bundles import Bundle
    from magnetar.broker.settings import BrokerSettings
    from magnetar.environment.clock import Clock
    from magnetar.managed_ledger import ManagedLedgerFactory
    from magnetar.metadata.store import MetadataStore
    from magnetar.metrics.sample import Sample
    from magnetar.naming import TopicName
    from magnetar.policies.resources import Resources
    from magnetar.security.authorizer import Authorizer

log = get_logger("magnetar.broker")

INTERNAL_LISTENER: Final = "internal"
"""What Pulsar calls the address a broker has in any case. Source: Pulsar `internalListenerName`."""

_BACKLOG = 1024
_PRODUCER_NAMES_PATH = "/counters/producer-name"


@dataclass(frozen=True, slots=True)
class LookupResult:
    """Who serves a topic."""

    broker_url: str
    http_url: str
    broker_url_tls: str = ""
    http_url_tls: str = ""
    here: bool = True
    """Whether that is the broker that was asked."""


class Broker:
    """Serves topics over the binary protocol, and offers them to the REST side in the same process."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        metadata: MetadataStore,
        ledgers: ManagedLedgerFactory,
        resources: Resources,
        authorizer: Authorizer,
        clock: Clock,
        random: random_module.Random,
    ) -> None:
        self.settings = settings
        self.schemas = SchemaRegistry(metadata, settings, clock)
        self.context = BrokerContext(
            settings=settings,
            clock=clock,
            random=random,
            metadata=metadata,
            ledgers=ledgers,
            resources=resources,
            authorizer=authorizer,
            schemas=self.schemas,
            budget=PublishBudget(settings.max_pending_publish_bytes),
            lease=Lease(metadata, clock),
        )
        self.topics = TopicRegistry(self.context, lambda: self.ownership)
        self.topic_lists = TopicLists(self.context, self.topics)
        self.transactions = TransactionService(self)
        self.context.participants = self.transactions.participants
        self.housekeeper = Housekeeper(self.context, self.topics)
        resources.on_change(self.topics.policies_changed)
        self.service_url = ""
        self.web_service_url = ""
        """Set by whoever starts the REST side, before `start`."""
        self.parking = Parking(settings.parked_requests_max)
        self.ownership = self._new_ownership(None)
        self.neighbourhood = Neighbourhood(self)
        self.connections: set[Connection] = set()
        self.connections_opened = 0
        self.connections_closed = 0
        self.lookups = 0
        self.ready = False
        self._server: asyncio.Server | None = None
        self._producer_names = ""
        self._producers_named = 0
        self._housekeeping: list[asyncio.Task[None]] = []
        self._ticked_at = clock.monotonic()

    # Living.

    async def start(self, host: str, port: int) -> int:
        """Listen. Returns the port, which the system chooses for 0."""
        number = await IdAllocator(self.context.metadata, _PRODUCER_NAMES_PATH, block_size=1).allocate()
        self._producer_names = f"{self.settings.cluster}-{number}"
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: Connection(self), host, port, start_serving=False, backlog=_BACKLOG
        )
        port = self._server.sockets[0].getsockname()[1]
        self.service_url = f"pulsar://{self.settings.advertised_host or host}:{port}"
        self.ownership = self._new_ownership(self.neighbourhood)
        await self.neighbourhood.join()
        await self._server.start_serving()
        self.transactions.start()
        self._ticked_at = self.context.clock.monotonic()
        self._housekeeping = [
            loop.create_task(self._tick_on(), name="broker ticks"),
            loop.create_task(self.housekeeper.run(), name="broker housekeeping"),
        ]
        self.ready = True
        log.info("broker.started", service_url=self.service_url)
        return port

    def _new_ownership(self, neighbours: Neighbourhood | None) -> Ownership:
        address = BrokerAddress(
            self.settings.broker_id or self.web_service_url.partition("://")[2] or self.service_url,
            self.service_url,
            self.web_service_url,
            f"{self.context.random.getrandbits(64):016x}",
        )
        return Ownership(
            self.context.metadata,
            address,
            self._bundle_lost,
            neighbours=neighbours,
            wait_s=self.settings.lookup_wait_s,
            parking=self.parking,
        )

    async def stop(self, deadline_s: float = 10.0) -> None:
        """Take nothing new, store and answer what was taken, let clients go, give the bundles back."""
        self.ready = False
        self.ownership.closing = True
        if self._server is not None:
            self._server.close()
        if self._housekeeping:
            for each in self._housekeeping:
                each.cancel()
            await asyncio.wait(self._housekeeping)
        draining = asyncio.get_running_loop().create_task(self._drain(), name="broker drain")
        done, _ = await asyncio.wait((draining,), timeout=deadline_s)
        if not done:
            log.warning("broker.not_drained", topics=len(list(self.topics.loaded())), deadline_s=deadline_s)
        for connection in list(self.connections):
            connection.close("the broker is shutting down")
        await asyncio.wait((draining,), timeout=deadline_s)
        await self.transactions.stop()
        await self.neighbourhood.leave()
        await self.context.entry_filters.close()
        self.context.lease.close()
        log.info("broker.stopped", service_url=self.service_url)

    async def _drain(self) -> None:
        await self.neighbourhood.drain()
        await self.topics.close_all()
        await self.ownership.release_all()

    async def unload_bundle(self, bundle: Bundle, to: BrokerReport | None = None) -> None:
        """Give a bundle to another broker; without one, to whoever asks for it first."""
        await self.neighbourhood.hand_over({bundle: to})

    def _bundle_lost(self, bundle: Bundle) -> None:
        self.topics.lose_bundle(bundle)  # At once; the closing that follows takes its time.
        self.context.tasks.start(self.topics.unload_bundle(bundle), f"unload bundle {bundle}, which was lost")

    async def _tick_on(self) -> None:
        """Now and then: compute rates, save what is due."""
        while True:
            await asyncio.sleep(self.settings.housekeeping_interval_s)
            try:
                self.tick()
            except Exception:
                log.exception("housekeeping.failed")

    def tick(self) -> None:
        """Compute the rates since the last tick."""
        now = self.context.clock.monotonic()
        seconds = max(now - self._ticked_at, 1e-3)
        self._ticked_at = now
        for topic in self.topics.loaded():
            topic.tick(seconds)

    # Clients.

    def connection_opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.connections_opened += 1

    def connection_closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.connections_closed += 1

    @property
    def connected_count(self) -> int:
        """Connections whose handshake is done."""
        return sum(connection.connected for connection in self.connections)

    async def lookup(self, name: TopicName, listener: str = "", *, take: bool = True) -> LookupResult:
        """Who serves a topic: this broker, if nobody did. `listener` names one of the addresses a broker may have.

        With `take` false a topic that nobody serves falls to the least loaded broker, whichever that is.

        Raises:
            ListenerNotFound, NamespaceNotFound, ServiceNotReady, MetadataFailed, TooManyRequests
        """
        self.lookups += 1
        if listener not in ("", INTERNAL_LISTENER):
            # Pulsar's own words come first: by them clients in C++ know that asking again is of no use.
            # Sources: Pulsar NamespaceService; C++ client ClientConnection, the older by the word in brackets.
            raise ListenerNotFound(
                f"the broker do not have {listener} listener (PulsarServerException): "
                f"connect without a listener name"
            )
        if not self.context.lease.sure:
            await self.until_sure()
        owner = await self.ownership.owner(await self.topics.bundle(name), take=take)
        return LookupResult(owner.broker_url, owner.web_url, here=owner == self.ownership.address)

    async def until_sure(self) -> None:
        """Wait while it is in doubt what this broker owns.

        Raises:
            MetadataFailed: the doubt lasts.
            TooManyRequests: too many wait already.
        """
        with self.parking:
            if not await self.context.lease.until_sure(self.settings.lookup_wait_s):
                # Not ServiceNotReady: clients in C++ close connections over it that other producers still use.
                raise MetadataFailed("the metadata store has not answered for a while: retry")

    async def new_producer_name(self) -> str:
        """A name no producer of this cluster has."""
        self._producers_named += 1
        return f"{self._producer_names}-{self._producers_named - 1}"

    def metric_samples(self) -> Iterable[Sample]:
        """What `/metrics` tells of this broker, under Pulsar's names."""
        return broker_samples(self)
