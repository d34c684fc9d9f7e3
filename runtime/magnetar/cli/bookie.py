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


@asynccontextmanager
async def bookie(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `bookie://host:port`."""
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
        yield (f"bookie://{address}",)
