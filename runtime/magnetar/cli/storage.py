"""The storing half of a platform: a bookie, known to the cluster by its cookie, with its garbage collected."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.integrity import Integrity
from magnetar.bookie.registration import BookieRegistration
from magnetar.bookie.scrub import Scrubber
from magnetar.bookie.several import AnyBookie, make_bookie
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.ledger.registry import LedgerRegistry

if TYPE_CHECKING:
    from magnetar.cli.settings.model import PlatformSettings
    from magnetar.metadata.store import MetadataStore


@asynccontextmanager
async def running_bookie(
    settings: PlatformSettings, metadata: MetadataStore, bookie_id: str, address: str = ""
) -> AsyncIterator[tuple[AnyBookie, BookieRegistration]]:
    """A bookie that has replayed its journal, and is neither served to others nor registered yet."""
    clock = SystemClock()
    async with AsyncExitStack() as parts:
        bookie = make_bookie(settings.bookie, disk=SystemDisk(), clock=clock, bookie_id=bookie_id)
        await bookie.start()
        parts.push_async_callback(bookie.stop)
        registration = BookieRegistration(metadata, bookie, address)
        await registration.check_cookie()
        ledgers = LedgerRegistry(metadata, clock, random.Random(), settings.ledger)

        async def live() -> set[int]:
            return set(await ledgers.list())

        async def exists(ledger_id: int) -> bool:
            return await ledgers.get(ledger_id) is not None

        integrity = None
        if address or bookie.limbo or bookie.in_doubt is not None:
            integrity = await parts.enter_async_context(_integrity(settings, metadata, bookie))
        surplus = None
        if address:  # Alone, nobody copies anything elsewhere.
            from magnetar.autorecovery.surplus_copies import SurplusCopies

            surplus = SurplusCopies(ledgers, metadata, bookie.bookie_id)
        collector = GarbageCollector(bookie, live, exists=exists, surplus=surplus)
        collector.start()
        parts.push_async_callback(collector.stop)
        scrubber = Scrubber(bookie, integrity)
        scrubber.start()
        parts.push_async_callback(scrubber.stop)
        bookie.companions += (collector.metrics, scrubber.metrics)
        yield bookie, registration


@asynccontextmanager
async def _integrity(
    settings: PlatformSettings, metadata: MetadataStore, bookie: AnyBookie
) -> AsyncIterator[Integrity]:
    """What gets back from other bookies what this one has lost. In limbo, what may have lost its fence is fenced here."""
    from magnetar.autorecovery.bookie_peers import BookiePeers
    from magnetar.ledger.client import LedgerClient
    from magnetar.ledger.provider import MetadataBookieProvider

    async with AsyncExitStack() as parts:
        dice = random.Random()
        provider = MetadataBookieProvider(metadata, {bookie.bookie_id: bookie}, dice=dice)
        parts.push_async_callback(provider.close)
        client = LedgerClient(metadata, provider, clock=SystemClock(), random=dice, settings=settings.ledger)
        parts.push_async_callback(client.close)
        integrity = Integrity(bookie, BookiePeers(client.surroundings, bookie.bookie_id))
        await integrity.prepare()
        integrity.start()
        parts.push_async_callback(integrity.stop)
        yield integrity
