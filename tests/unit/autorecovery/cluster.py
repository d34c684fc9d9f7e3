"""A small cluster in memory, in virtual time, for stories of loss and repair."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.underreplicated import UnderreplicatedLedgers
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryEnsemble, MemoryStore
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH, BookieAddress
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

FAULTS = BookieFaults(delay_s=0.001, timeout_s=1.0)
SETTINGS = AutorecoverySettings(lost_bookie_recovery_delay_s=10, open_ledger_grace_s=5, workers_idle_s=5)


class Cluster:
    """Bookies that are registered while they are up, and as many clients as a story needs."""

    def __init__(self, bookies: int) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.ensemble = MemoryEnsemble()
        self.store = self.connect()
        self.bookies = {name: MemoryBookie(name) for name in "abcdefgh"[:bookies]}
        self.marks = UnderreplicatedLedgers(self.store)
        self._clients = 0

    def connect(self) -> MemoryStore:
        return self.ensemble.connect(self.clock)

    def client(self, store: MemoryStore | None = None) -> tuple[LedgerClient, MemoryBookies]:
        self._clients += 1
        view = MemoryBookies(self.bookies, random.Random(self._clients), FAULTS)
        client = LedgerClient(
            store or self.connect(),
            view,
            clock=self.clock,
            random=random.Random(self._clients),
            settings=LedgerClientSettings(ensemble_retry_s=0.2, quarantine_s=1),
        )
        return client, view

    async def start(self, name: str) -> None:
        """A bookie comes, or comes back."""
        bookie = self.bookies.setdefault(name, MemoryBookie(name))
        bookie.restart()
        await self.store.put(f"{COOKIES_PATH}/{name}", b"{}")
        await self.store.put(f"{AVAILABLE_PATH}/{name}", BookieAddress("127.0.0.1:0", "1").encode())

    async def kill(self, name: str) -> None:
        self.bookies[name].crash()
        await self.store.delete(f"{AVAILABLE_PATH}/{name}")

    def autorecovery(
        self, name: str = "one", settings: AutorecoverySettings = SETTINGS
    ) -> tuple[Autorecovery, MemoryStore]:
        store = self.connect()
        ledgers, view = self.client(store)
        daemon = Autorecovery(
            store, ledgers, view, clock=self.clock, dice=random.Random(7), settings=settings, name=name
        )
        return daemon, store

    def run(self, story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
        async def whole() -> None:
            for name in list(self.bookies):
                await self.start(name)
            await story(self)

        self.loop.run(whole())

    def holds_all(self, ledger_id: int, name: str, entries: int) -> bool:
        return all(self.bookies[name].holds(ledger_id, entry) for entry in range(entries))


async def write(writer: LedgerWriter, entries: int) -> None:
    """Append and wait for all acknowledgements."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = entries

    def answered(entry_id: int, error: Exception | None) -> None:
        nonlocal left
        left -= 1
        if error is not None and not done.done():
            done.set_exception(error)
        elif not left and not done.done():
            done.set_result(None)

    for number in range(entries):
        writer.append((b"entry %d" % number,), answered)
    await done


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = 120.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
