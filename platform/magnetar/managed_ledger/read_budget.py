"""How many bytes all reads on their way to bookies may bring at once. Who comes first is served first."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ReadBudget:
    """Belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.in_flight = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def room_for(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes of the budget; more than there are count as all of it."""
        size = min(size, self.max_bytes)
        if self._waiting or self.in_flight + size > self.max_bytes:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give_back(size)
                raise
        else:
            self.in_flight += size
        try:
            yield
        finally:
            self._give_back(size)

    def _give_back(self, size: int) -> None:
        self.in_flight -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.done():  # Cancelled.
                self._waiting.popleft()
            elif self.in_flight + wanted <= self.max_bytes:
                self._waiting.popleft()
                self.in_flight += wanted
                turn.set_result(None)
            else:
                return
