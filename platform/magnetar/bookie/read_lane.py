"""How many runs of entries are read at once: several, but one after the other while adds are on their way.

Reading threads and the loop share the interpreter: with several of them at work an add waits for each in turn, and on its
way to the journal and back it does so more than once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import TracebackType


class ReadLane:
    """Belongs to one event loop. First come, first served."""

    __slots__ = ("_adding", "_reading", "_several", "_waiting")

    def __init__(self, several: int, adding: Callable[[], bool]) -> None:
        """`adding`: whether adds are on their way."""
        self._several = several
        self._adding = adding
        self._reading = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if not self._waiting and self._has_room:
            self._reading += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    @property
    def _has_room(self) -> bool:
        return self._reading < (1 if self._adding() else self._several)

    def _leave(self) -> None:
        self._reading -= 1
        while self._waiting and self._has_room:
            turn = self._waiting.popleft()
            if not turn.done():  # Otherwise it was cancelled.
                self._reading += 1
                turn.set_result(None)
