"""A bookie as a process of its own: `python bookie_process.py DIRECTORY ID`. Prints its port; ends with its input."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.server import BookieServer
from magnetar.bookie.settings import BookieSettings
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.environment.logs import configure


async def serve(directory: Path, bookie_id: str) -> None:
    settings = BookieSettings(directory, journal_segment_bytes=8 << 20, journal_first_bytes=1 << 20)
    bookie = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id=bookie_id)
    await bookie.start()
    server = BookieServer(bookie, "127.0.0.1", 0)
    sys.stdout.write(f"{await server.start()}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    await bookie.stop()


if __name__ == "__main__":
    configure("WARNING")
    uvloop.run(serve(Path(sys.argv[1]), sys.argv[2]))
