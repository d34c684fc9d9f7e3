"""`magnetar broker`: a broker with REST API and function worker, over bookies found in the metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.cli.data_directory import DataDirectory
from magnetar.cli.front import front
from magnetar.cli.settings.model import in_cluster
from magnetar.cli.stores import cluster_stores
from magnetar.environment.disk import SystemDisk

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings


@asynccontextmanager
async def broker(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `pulsar://host:port` and `http://host:port`. The data directory holds the worker's packages."""
    async with AsyncExitStack() as parts:
        directory = DataDirectory.open(SystemDisk(), settings.data, "broker")
        parts.callback(directory.release)
        stores = await parts.enter_async_context(cluster_stores(settings))
        directory.belongs_to(stores.identity.instance_id, stores.identity.cluster)
        settings = in_cluster(settings, stores.identity.cluster)
        yield await parts.enter_async_context(
            front(settings, stores.brokers, {}, bookies_metadata=stores.bookies)
        )
