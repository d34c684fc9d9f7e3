"""All collectors of a process, in the order in which they came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from magnetar.environment.logs import get_logger
from magnetar.metrics.exposition import stream
from magnetar.metrics.sample import Collector

FRESH_S = 1.0
"""How long a page is good for: several scrapers at one time cost one page."""
KEPT_BYTES_MAX = 4 * 1024 * 1024
"""The largest page that is kept; a larger one is made for each scraper, chunk by chunk, and never held whole."""
PREPARING_S_MAX = 2.0

Preparation: TypeAlias = Callable[[], Awaitable[None]]
"""What a collector has to ask others for before it can tell."""

_log = get_logger("magnetar.metrics")


class MetricsRegistry:
    """What `/metrics` shows. Rooms are given it and add their collector; nobody looks it up globally."""

    __slots__ = ("_clock", "_collectors", "_kept", "_kept_at", "_preparations", "pages")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._collectors: list[Collector] = []
        self._preparations: list[Preparation] = []
        self._clock = clock
        self._kept: list[bytes] = []
        self._kept_at = float("-inf")
        self.pages = 0
        """How often a page was made."""

    def add(self, collector: Collector) -> None:
        self._collectors.append(collector)

    def prepare(self, preparation: Preparation) -> None:
        """Have something done before each page; the page waits for it, but not long."""
        self._preparations.append(preparation)

    def remove(self, collector: Collector) -> None:
        """Take out a collector whose room closes."""
        self._collectors.remove(collector)
        self._kept.clear()

    async def page(self) -> AsyncIterator[bytes]:
        """The exposition as it is now, or was a moment ago, in chunks."""
        if self._kept and self._clock() - self._kept_at < FRESH_S:
            for chunk in list(self._kept):
                yield chunk
            return
        await self._prepare()
        self.pages += 1
        begun = self._clock()
        chunks: list[bytes] = []
        size = 0
        async for chunk in stream(list(self._collectors)):
            size += len(chunk)
            if size <= KEPT_BYTES_MAX:
                chunks.append(chunk)
            else:
                chunks.clear()
            yield chunk
        self._kept = chunks
        self._kept_at = begun

    async def _prepare(self) -> None:
        if not self._preparations:
            return
        try:
            async with asyncio.timeout(PREPARING_S_MAX):
                told = await asyncio.gather(*(each() for each in self._preparations), return_exceptions=True)
        except TimeoutError:
            _log.warning("metrics.incomplete", reason=f"not prepared within {PREPARING_S_MAX:g} s")
            return
        for failure in told:
            if isinstance(failure, Exception):
                _log.warning("metrics.incomplete", reason=str(failure))
