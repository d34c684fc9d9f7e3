"""`magnetar bookie`: a bookie in a process of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.bookie.server import BookieServer
from magnetar.cli.addresses import check_port, reachable
from magnetar.cli.data_directory import DataDirectory
from magnetar.cli.storage import running_bookie
from magnetar.cli.stores import cluster_stores
from magnetar.environment.disk import SystemDisk

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings
    from magnetar.metrics.sample import Collector


@asynccontextmanager
async def bookie(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `bookie://host:port`, and `http://host:port/metrics` where a port for it is set."""
    async with AsyncExitStack() as parts:
        port = check_port(settings.host, settings.bookie_port, "--port")
        directory = DataDirectory.open(SystemDisk(), settings.data, "bookie")
        parts.callback(directory.release)
        stores = await parts.enter_async_context(cluster_stores(settings))
        directory.belongs_to(stores.identity.instance_id, stores.identity.cluster)
        address = f"{settings.broker.advertised_host or reachable(settings.host)}:{port}"
        stored, registration = await parts.enter_async_context(
            running_bookie(settings, stores.bookies, settings.bookie_id or directory.id, address)
        )
        server = BookieServer(stored, settings.host, port)
        await server.start()
        parts.push_async_callback(server.stop)
        await registration.start()
        parts.push_async_callback(registration.stop)
        collectors: list[Collector] = [stored.metrics]
        if settings.bookie_autorecovery:
            from magnetar.cli.autorecovery import running_autorecovery

            repairs = await parts.enter_async_context(
                running_autorecovery(settings, stores.bookies, stored.bookie_id)
            )
            collectors.append(repairs.metrics)
        urls = [f"bookie://{address}"]
        if settings.bookie_web_port >= 0:
            from magnetar.cli.role_site import serve_metrics

            web_port = check_port(settings.host, settings.bookie_web_port, "--web-port")
            await parts.enter_async_context(serve_metrics(settings, web_port, collectors))
            urls.append(f"http://{address.rpartition(':')[0]}:{web_port}")
        yield urls
