"""The stateless half of a platform: broker, REST API and function worker, over a metadata store and bookies."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from magnetar.admin.app import build_site
from magnetar.admin.server import WebServer
from magnetar.broker.broker import Broker
from magnetar.cli.addresses import check_port, reachable
from magnetar.cli.settings import runtime_view
from magnetar.environment.clock import SystemClock
from magnetar.environment.logs import get_logger
from magnetar.environment.loop_health import LoopHealth
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.managed_ledger.catch_up_pace import CatchUpPace
from magnetar.managed_ledger.entry_cache import EntryCache
from magnetar.managed_ledger.factory import ManagedLedgerFactory
from magnetar.managed_ledger.sweeper import SweepSettings
from magnetar.metrics.process import loop_samples, process_samples
from magnetar.metrics.registry import MetricsRegistry
from magnetar.policies.checks import quorum_warnings
from magnetar.policies.resources import Resources
from magnetar.security.authorizer import AllowAll
from magnetar.worker.metrics import WorkerMetrics
from magnetar.worker.worker import Worker

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings
    from magnetar.metadata.store import MetadataStore
    from magnetar.metrics.sample import Collector
    from magnetar.protocol.bookie import BookieConnection

log = get_logger("magnetar.cli")

WORKER_PATHS = (
    "/admin/v3/functions",
    "/admin/v3/sources",
    "/admin/v3/sinks",
    "/admin/v3/function",
    "/admin/v3/source",
    "/admin/v3/sink",
    "/admin/v2/worker",
    "/admin/v2/worker-stats",
)


@asynccontextmanager
async def front(
    settings: PlatformSettings,
    metadata: MetadataStore,
    bookies: Mapping[str, BookieConnection],
    collectors: Sequence[Collector] = (),
    *,
    bookies_metadata: MetadataStore | None = None,
) -> AsyncIterator[Sequence[str]]:
    """Serves `pulsar://host:port` and `http://host:port`; on leaving, drains and stops in the opposite order.

    Args:
        bookies: those of this process.
        collectors: whose metrics are shown beside those of what is started here.
        bookies_metadata: where ledgers and bookies are recorded, in a cluster; None: this platform is alone.
    """
    clock, dice, authorizer = SystemClock(), random.Random(), AllowAll()
    async with AsyncExitStack() as parts:
        port = check_port(settings.host, settings.port, "--port")
        web_port = check_port(settings.host, settings.web_port, "--web-port")
        ledgers_store = bookies_metadata or metadata
        provider = MetadataBookieProvider(ledgers_store, bookies, dice=dice)
        parts.push_async_callback(provider.close)
        ledgers = LedgerClient(ledgers_store, provider, clock=clock, random=dice, settings=settings.ledger)
        cache = EntryCache(settings.entry_cache_bytes)
        pace = CatchUpPace(settings.broker.catch_up_busy_share, time.thread_time)
        sweeps = SweepSettings(settings.broker.leftover_sweep_interval_s, settings.broker.leftover_age_s)
        topics = ManagedLedgerFactory(metadata, ledgers, clock=clock, cache=cache, sweeps=sweeps, pace=pace)
        parts.push_async_callback(topics.close)
        resources = Resources(metadata, settings.policies)
        parts.callback(resources.close)
        host = settings.broker.advertised_host or reachable(settings.host)
        broker = Broker(
            settings.broker.model_copy(update={"advertised_host": host}),
            metadata=metadata,
            ledgers=topics,
            resources=resources,
            authorizer=authorizer,
            clock=clock,
            random=dice,
        )
        broker.web_service_url = f"http://{host}:{web_port}"
        if bookies_metadata is not None:
            for told in quorum_warnings(settings.policies.write_quorum, settings.policies.ack_quorum):
                log.warning("policies.fragile", told=told)
        # What a client needs to find is there before the first one can come.
        await resources.bootstrap(
            settings.cluster,
            broker.web_service_url,
            f"pulsar://{host}:{port}",
            overwrite=bookies_metadata is None,
        )
        await broker.start(settings.host, port)
        parts.push_async_callback(broker.stop, settings.drain_s)
        health = LoopHealth()
        health.start()
        parts.callback(health.stop)
        metrics = MetricsRegistry()
        metrics.add(broker.metric_samples)
        metrics.add(ledgers.metrics)
        metrics.add(process_samples)
        metrics.add(partial(loop_samples, health))
        for collector in collectors:
            metrics.add(collector)
        site = build_site(
            broker,
            resources,
            authorizer,
            settings=settings.web,
            metrics=metrics,
            runtime_configuration=runtime_view.told(settings),
            shutdown=partial(os.kill, os.getpid(), signal.SIGTERM),
        )
        worker = Worker(
            settings.worker,
            metadata=metadata,
            service_url=broker.service_url,
            web_url=broker.web_service_url,
            clock=clock,
            authorizer=authorizer,
        )
        if settings.functions:
            functions = WorkerMetrics(lambda: worker.components, cluster=settings.cluster)
            metrics.add(functions.samples)
            metrics.prepare(functions.ask)
            site.mount(lambda: worker.router, *WORKER_PATHS)
        web = WebServer(site, settings.web)
        await web.start(settings.host, web_port)
        parts.push_async_callback(web.stop)
        if settings.functions:
            await worker.start()
            parts.push_async_callback(worker.stop)
        yield (broker.service_url, broker.web_service_url)
