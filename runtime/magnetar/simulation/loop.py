"""An event loop on which time passes only when nothing else can happen."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everybody waits, and nothing is left that could end it."""


class _NoSelector:
    """Stands where a loop waits for files: waiting means that time passes."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Deadlock("nothing is scheduled, and the simulation has not ended")
        self._loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs callbacks in the order in which they were scheduled. No threads, no files, no real time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self._selector = _NoSelector(self)

    def time(self) -> float:
        return self.now

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody outside could be waiting to be let in."""

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run `story` to its end, then cancel whatever it has left behind.

        Raises:
            Deadlock: it can never end.
        """
        try:
            return self.run_until_complete(story)
        finally:
            while left := asyncio.all_tasks(self):
                for task in left:
                    task.cancel()
                self.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self.close()


class VirtualClock:
    """A `Clock` that shows the virtual loop's time."""

    __slots__ = ("_epoch_ms", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, epoch_ms: int = 1_700_000_000_000) -> None:
        self._loop = loop
        self._epoch_ms = epoch_ms

    def set_back(self, by_ms: int) -> None:
        """As an operator or a time server may do, to the clock on the wall alone."""
        self._epoch_ms -= by_ms

    def monotonic(self) -> float:
        return self._loop.time()

    def time_ms(self) -> int:
        return self._epoch_ms + int(self._loop.time() * 1000)
