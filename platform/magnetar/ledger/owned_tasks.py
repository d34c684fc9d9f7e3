"""Tasks that outlive whoever asked for them.

Closing a connection, or cancelling a caller, must never cancel an append, a compare-and-set or a fence that
is under way: such work runs in tasks of its own, and this is their owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from magnetar.environment.logs import Logger

T = TypeVar("T")


class OwnedTasks:
    """Keeps tasks alive until they end, and logs the errors that nobody else would hear of."""

    __slots__ = ("_log", "_tasks")

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` for its effects."""
        self._keep(work).add_done_callback(self._report)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` for whoever waits for its task, and to its end also when nobody does any more."""
        task = self._keep(work)
        task.add_done_callback(_look_at)
        return task

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which goes on to its end even if the caller is cancelled."""
        task = self._keep(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._report)
            raise

    async def drain(self) -> None:
        """Wait until all of them have ended."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _keep(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _report(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error("task.failed", task=str(task.get_coro()), reason=repr(error))


def _look_at(task: asyncio.Task[Any]) -> None:
    """Whoever waits is told of an error; if nobody does, it is of no interest."""
    if not task.cancelled():
        task.exception()
