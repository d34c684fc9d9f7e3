"""`magnetar autorecovery`: finds lost copies and makes new ones, in a process of its own or beside a bookie."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.cli.addresses import check_port, reachable
from magnetar.cli.role_site import serve_metrics
from magnetar.cli.stores import cluster_stores
from magnetar.environment.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.provider import MetadataBookieProvider

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings
    from magnetar.metadata.store import MetadataStore


@asynccontextmanager
async def autorecovery(settings: PlatformSettings) -> AsyncIterator[Sequence[str]]:
    """Serves `http://host:port/metrics` and `/status.html`."""
    async with AsyncExitStack() as parts:
        port = check_port(settings.host, settings.autorecovery_port, "--port")
        host = settings.broker.advertised_host or reachable(settings.host)
        stores = await parts.enter_async_context(cluster_stores(settings))
        running = await parts.enter_async_context(
            running_autorecovery(settings, stores.bookies, f"autorecovery-{host}:{port}")
        )
        await parts.enter_async_context(serve_metrics(settings, port, [running.metrics]))
        yield (f"http://{host}:{port}",)


@asynccontextmanager
async def running_autorecovery(
    settings: PlatformSettings, metadata: MetadataStore, name: str
) -> AsyncIterator[Autorecovery]:
    """Autorecovery at work, with connections of its own: copies never queue before a client's requests."""
    clock, dice = SystemClock(), random.Random()
    async with AsyncExitStack() as parts:
        provider = MetadataBookieProvider(metadata, dice=dice)
        parts.push_async_callback(provider.close)
        ledgers = LedgerClient(metadata, provider, clock=clock, random=dice, settings=settings.ledger)
        parts.push_async_callback(ledgers.close)
        running = Autorecovery(
            metadata,
            ledgers,
            provider,
            clock=clock,
            dice=dice,
            settings=settings.autorecovery,
            name=name,
        )
        running.start()
        parts.push_async_callback(running.stop)
        yield running
