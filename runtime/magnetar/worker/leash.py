"""No process of a component outlives the worker's lease: another worker may run the component after that.

A worker that is stopped cannot kill anything. So each has a small guard process (`guard.py`) that is told until when
the lease lasts, and of every process; both clocks are the machine's own.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.environment.clock import Clock
    from magnetar.metadata.store import MetadataStore

GUARD: Final = Path(__file__).with_name("guard.py")
LOOK_EVERY_S: Final = 0.05

log = get_logger("magnetar.worker.leash")


class Leash:
    """Tells the guard of the lease and of processes. Does nothing where the lease has no end.

    Args:
        sure_again: called when the lease, after having run out, is good again.
    """

    def __init__(self, metadata: MetadataStore, clock: Clock, sure_again: Callable[[], None]) -> None:
        self._metadata = metadata
        self._clock = clock
        self._sure_again = sure_again
        self._guard: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()
        self._told = math.inf
        self._task: asyncio.Task[None] | None = None

    @property
    def endless(self) -> bool:
        """Whether nobody else can ever take over."""
        return self._metadata.lease_until == math.inf

    @property
    def sure(self) -> bool:
        return self._metadata.lease_until > self._clock.monotonic()

    def start(self) -> None:
        """Begin to watch the lease."""
        if not self.endless:
            self._task = asyncio.get_running_loop().create_task(self._watch(), name="watch the lease")

    async def stop(self) -> None:
        """Let the guard end, which ends what still runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        guard, self._guard = self._guard, None
        if guard is not None:
            assert guard.stdin is not None
            guard.stdin.close()
            await asyncio.to_thread(guard.wait)

    def began(self, group: int) -> None:
        """A process group began."""
        if self.endless:
            return
        self._groups.add(group)
        if self._guard is None:
            self._begin_guard()
        else:
            self._say(f"+ {group}")

    def ended(self, group: int) -> None:
        """A process group has ended, and its number may be another's soon."""
        if group in self._groups:
            self._groups.discard(group)
            self._say(f"- {group}")

    def _begin_guard(self) -> None:
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._told = math.inf
        self._tell_lease()
        for group in sorted(self._groups):
            self._say(f"+ {group}")

    def _say(self, line: str) -> None:
        guard = self._guard
        if guard is None:
            return
        assert guard.stdin is not None
        try:
            os.write(guard.stdin.fileno(), line.encode() + b"\n")
        except OSError as error:  # Somebody killed it: begin another, which is told everything anew.
            log.warning("guard.lost", reason=str(error))
            guard.wait()
            self._begin_guard()

    def _tell_lease(self) -> None:
        until = self._metadata.lease_until
        if until != self._told:
            self._told = until
            self._say(f"lease {until!r}")

    async def _watch(self) -> None:
        sure = True
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._tell_lease()
            if sure and not self.sure:
                log.warning("lease.ran_out", processes=len(self._groups))
            elif self.sure and not sure:
                log.info("lease.sure_again")
                self._sure_again()
            sure = self.sure
