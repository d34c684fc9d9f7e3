"""The storing half of a platform: a bookie, known to the cluster by its cookie, with its garbage collected."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.registration import BookieRegistration
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.ledger.registry import LedgerRegistry

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings
    from magnetar.metadata.store import MetadataStore


@asynccontextmanager
async def running_bookie(
    settings: PlatformSettings, metadata: MetadataStore, bookie_id: str, address: str = ""
) -> AsyncIterator[tuple[Bookie, BookieRegistration]]:
    """A bookie that has replayed its journal, and is neither served to others nor registered yet."""
    clock = SystemClock()
    async with AsyncExitStack() as parts:
        bookie = Bookie(settings.bookie, disk=SystemDisk(), clock=clock, bookie_id=bookie_id)
        await bookie.start()
        parts.push_async_callback(bookie.stop)
        registration = BookieRegistration(metadata, bookie, address)
        await registration.check_cookie()
        ledgers = LedgerRegistry(metadata, clock, random.Random(), settings.ledger)

        async def live() -> set[int]:
            return set(await ledgers.list())

        async def exists(ledger_id: int) -> bool:
            return await ledgers.get(ledger_id) is not None

        collector = GarbageCollector(bookie, live, exists=exists)
        collector.start()
        parts.push_async_callback(collector.stop)
        yield bookie, registration
