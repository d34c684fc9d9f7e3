"""A bookie as a process of its own, for tests that kill it.

    python -m tests.integration.bookie.bookie_process DIRECTORY restless|lazy [LIVE_LEDGER…]

A restless one has small caches and flushes, rolls and compacts all the time: garbage is collected again and again, the
ledgers named being the live ones. A lazy one leaves all its work to the next start. Prints its port when it serves. Ends
with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.garbage import GarbageCollector
from magnetar.bookie.server import BookieServer
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.environment.logs import configure
from tests.unit.bookie.workbench import KIB, small_settings


async def serve(directory: Path, lazy: bool, live: set[int]) -> None:
    settings = small_settings(
        directory, flush_interval_s=0.05, write_cache_bytes=96 * KIB, entry_log_bytes=64 * KIB
    )
    if lazy:
        settings = replace(settings, flush_interval_s=3600, write_cache_bytes=256 << 20)
    bookie = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="b1")
    await bookie.start()
    server = BookieServer(bookie, "127.0.0.1", 0)
    port = await server.start()

    async def listing() -> set[int]:
        return live

    collector = GarbageCollector(bookie, listing, interval_s=0.05)
    if not lazy:
        collector.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await collector.stop()
    await server.stop()
    await bookie.stop()


def main() -> None:
    configure("INFO")
    directory, mood, *live = sys.argv[1:]
    asyncio.run(serve(Path(directory), mood == "lazy", set(map(int, live))))


if __name__ == "__main__":
    main()
