"""Looking at a disk again that was found full, or that could not be written, until it is well."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor

from magnetar.bookie.checkpoint import Checkpointer
from magnetar.bookie.mode import Mode

_AGAIN_S = 5.0


class SpaceWatch:
    """Belongs to the loop. One timer runs while the disk is not well, none otherwise."""

    def __init__(
        self, mode: Mode, checkpointer: Checkpointer, free_bytes: Callable[[], int], executor: Executor
    ) -> None:
        """`free_bytes` blocks, and is called in `executor`."""
        self._mode = mode
        self._checkpointer = checkpointer
        self._free_bytes = free_bytes
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def look(self, free_bytes: int | None) -> None:
        """What was found out of late: free space, unless that is not known."""
        self._mode.look(free_bytes, self._checkpointer.failing)
        if "space" in self._mode.reasons and self._timer is None:
            self._timer = self._loop.call_later(_AGAIN_S, self._ask)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self) -> None:
        asked = self._loop.run_in_executor(self._executor, self._free_bytes)
        asked.add_done_callback(self._answered)

    def _answered(self, found: asyncio.Future[int]) -> None:
        self._timer = None
        if not self._stopped:
            self.look(None if found.exception() else found.result())
