"""`magnetar worker`: a function worker in a process of its own, beside brokers found in the metadata store."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from magnetar.admin.server import WebServer
from magnetar.cli.addresses import check_port, reachable
from magnetar.cli.data_directory import DataDirectory
from magnetar.cli.front import WORKER_PATHS
from magnetar.cli.live_brokers import LiveBrokers
from magnetar.cli.relay import BrokerRelay
from magnetar.cli.role_site import RoleSite
from magnetar.cli.settings.model import in_cluster
from magnetar.cli.stores import cluster_stores
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.environment.logs import get_logger
from magnetar.environment.loop_health import LoopHealth
from magnetar.metrics.process import loop_samples, process_samples
from magnetar.metrics.registry import MetricsRegistry
from magnetar.security.authorizer import AllowAll
from magnetar.worker.metrics import WorkerMetrics
from magnetar.worker.worker import Worker

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings

log = get_logger("magnetar.cli")


@asynccontextmanager
async def worker(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `http://host:port`: functions, sources, sinks; what is the brokers' is passed on to one of them."""
    async with AsyncExitStack() as parts:
        ports = [check_port(settings.host, settings.web_port, "--web-port")]
        if settings.worker_port >= 0 and settings.worker_port not in ports:
            ports.append(check_port(settings.host, settings.worker_port, "--port"))
        directory = DataDirectory.open(SystemDisk(), settings.data, "worker")
        parts.callback(directory.release)
        stores = await parts.enter_async_context(cluster_stores(settings))
        directory.belongs_to(stores.identity.instance_id, stores.identity.cluster)
        settings = in_cluster(settings, stores.identity.cluster)
        host = settings.broker.advertised_host or reachable(settings.host)
        url = f"http://{host}:{ports[0]}"
        brokers = LiveBrokers(stores.brokers)
        parts.callback(brokers.close)
        if not await brokers.now():
            log.info("worker.waits_for_a_broker")
        live = await brokers.at_least_one()
        service_url = "pulsar://" + ",".join(broker.service_url.removeprefix("pulsar://") for broker in live)
        running = Worker(
            dataclasses.replace(settings.worker, hostname=host),
            metadata=stores.brokers,
            service_url=service_url,
            web_url=url,
            clock=SystemClock(),
            authorizer=AllowAll(),
        )
        health = LoopHealth()
        health.start()
        parts.callback(health.stop)
        metrics = MetricsRegistry()
        metrics.add(process_samples)
        metrics.add(partial(loop_samples, health))
        functions = WorkerMetrics(lambda: running.components, cluster=settings.cluster)
        metrics.add(functions.samples)
        metrics.prepare(functions.ask)
        site = RoleSite(
            metrics,
            lambda: running.running,
            load=lambda: running.router,
            prefixes=WORKER_PATHS,
            otherwise=BrokerRelay(brokers),
        )
        for port in ports:
            web = WebServer(site, settings.web)
            await web.start(settings.host, port)
            parts.push_async_callback(web.stop)
        await running.start()
        parts.push_async_callback(running.stop)
        yield tuple(f"http://{host}:{port}" for port in ports)
