"""`magnetar standalone`: every role in one process.

The roles talk through the same interfaces as in a cluster; only that the ledger client finds its bookie in
the same process, and the metadata store is a directory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.cli.data_directory import DataDirectory
from magnetar.cli.storage import running_bookie
from magnetar.environment.disk import SystemDisk
from magnetar.metadata.opening import open_store

if TYPE_CHECKING:
    from types import ModuleType

    from magnetar.cli.settings.model import PlatformSettings


@asynccontextmanager
async def standalone(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `pulsar://host:port` and `http://host:port`."""
    async with AsyncExitStack() as parts:
        directory = DataDirectory.open(SystemDisk(), settings.data, "standalone")
        parts.callback(directory.release)
        # The broker's modules load while the disk is waited for.
        loading = asyncio.ensure_future(asyncio.to_thread(_load_front))
        parts.push_async_callback(asyncio.wait, [loading])
        metadata = await open_store(settings.metadata_store or f"rocksdb:{directory.path / 'metadata'}")
        parts.push_async_callback(metadata.close)
        bookie_id = settings.bookie_id or directory.id
        bookie, _ = await parts.enter_async_context(running_bookie(settings, metadata, bookie_id))
        front = (await loading).front
        local = {bookie_id: bookie}
        yield await parts.enter_async_context(front(settings, metadata, local, [bookie.metrics]))


def _load_front() -> ModuleType:
    import magnetar.cli.front

    return magnetar.cli.front
