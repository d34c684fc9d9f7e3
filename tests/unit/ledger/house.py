"""A house of bookies in memory, in virtual time, for the stories of this directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.settings import LedgerClientSettings
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.simulation.bookies import BookieFaults, MemoryBookie, MemoryBookies
from magnetar.simulation.loop import VirtualClock, VirtualLoop

FAULTS = BookieFaults(delay_s=0.001, timeout_s=1.0)


class House:
    """Some bookies, a metadata store, and as many clients as a story needs."""

    def __init__(self, bookies: int) -> None:
        self.loop = VirtualLoop()
        self.clock = VirtualClock(self.loop)
        self.bookies = {f"b{number}": MemoryBookie(f"b{number}") for number in range(bookies)}
        self.metadata = MemoryEnsemble()
        self.views: list[MemoryBookies] = []

    def client(self, settings: LedgerClientSettings | None = None) -> LedgerClient:
        view = MemoryBookies(self.bookies, random.Random(len(self.views)), FAULTS)
        self.views.append(view)
        return LedgerClient(
            self.metadata.connect(self.clock),
            view,
            clock=self.clock,
            random=random.Random(len(self.views)),
            settings=settings,
        )

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run(story)


class Appends:
    """Appends entries and remembers how they ended, in the order in which it was told."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.writer = writer
        self.acked: list[int] = []
        self.failed: list[tuple[int, LedgerError]] = []

    def append(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.writer.append((payload[:1], payload[1:]), self._done)

    def _done(self, entry_id: int, error: LedgerError | None) -> None:
        if error is None:
            self.acked.append(entry_id)
        else:
            self.failed.append((entry_id, error))

    async def answered(self, number: int) -> None:
        await until(lambda: len(self.acked) + len(self.failed) >= number)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def payloads(number: int) -> list[bytes]:
    return [b"entry %d" % entry_id for entry_id in range(number)]
