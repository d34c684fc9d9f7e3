"""When the index cannot be read or written, it is built anew while the bookie runs: derived data is worth no restart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from magnetar.bookie.errors import BookieError
from magnetar.bookie.index import IndexUnusable
from magnetar.environment.logs import get_logger

_PAUSE_S = 60.0

log = get_logger("magnetar.bookie.storage")


class IndexRebuild:
    """Belongs to the loop. Not again and again: a disk that damages what was just written needs an operator."""

    def __init__(self, rebuild: Callable[[], Awaitable[None]]) -> None:
        self._rebuild = rebuild
        self._loop = asyncio.get_running_loop()
        self._running: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self.begun = 0

    def request(self) -> None:
        now = self._loop.time()
        if self._running is None and now >= self._not_before:
            self._not_before = now + _PAUSE_S
            self._running = self._loop.create_task(self._run())

    async def wait(self) -> None:
        """Until none is under way; no other may be begun after this."""
        self._not_before = float("inf")
        if self._running is not None:
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        log.error("index.rebuilding")
        self.begun += 1
        try:
            await self._rebuild()
            log.info("index.rebuilt")
        except (IndexUnusable, OSError, BookieError) as error:
            log.error("index.not_rebuilt", reason=str(error), again_in_s=_PAUSE_S)
        finally:
            self._running = None
