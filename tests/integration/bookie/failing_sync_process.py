"""A bookie whose disk fails a sync while an add waits for it.

    python -m tests.integration.bookie.failing_sync_process DIRECTORY journal|entries

Says "acknowledged" for each add that was; a sync in the named directory fails after the first one.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.environment.clock import SystemClock
from magnetar.environment.errors import DiskFailed
from tests.unit.bookie.disks import WrappedDisk
from tests.unit.bookie.workbench import add, small_settings


class FailingDisk(WrappedDisk):
    broken = False

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def before_sync(self, path: Path) -> bool:
        if self.broken and path.parent.name == self._folder:
            raise DiskFailed(path, "input/output error")
        return True


async def run(directory: Path, folder: str) -> None:
    disk = FailingDisk(folder)
    bookie = Bookie(small_settings(directory), disk=disk, clock=SystemClock(), bookie_id="b1")
    await bookie.start()
    for entry_id in range(2):
        status = await add(bookie, 1, entry_id)
        sys.stdout.write(f"acknowledged {entry_id} {status.name}\n")
        sys.stdout.flush()
        disk.broken = True
        if folder == "entries":
            await bookie.checkpoint()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
