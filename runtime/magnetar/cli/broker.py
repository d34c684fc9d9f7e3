"""`magnetar broker`: a broker with REST API and function worker, over bookies found in the metadata store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.cli.data_directory import DataDirectory
from magnetar.cli.front import front
from magnetar.environment.disk import SystemDisk
from magnetar.metadata.opening import open_store

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings


@asynccontextmanager
async def broker(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `pulsar://host:port` and `http://host:port`. The data directory holds the worker's packages."""
    async with AsyncExitStack() as parts:
        directory = DataDirectory.open(SystemDisk(), settings.data, "broker")
        parts.callback(directory.release)
        metadata = await open_store(settings.metadata_store)
        parts.push_async_callback(metadata.close)
        yield await parts.enter_async_context(front(settings, metadata, {}))
