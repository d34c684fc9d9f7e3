"""How long a bookie takes to start after a kill that leaves a long journal, beside reading those bytes.

    python -m tests.benchmarks.bookie_restart [--mebibytes 1024] [--entry 1024] [--ledgers 100] [--directory DIR]

The journal is written by a bookie that never flushes and is not stopped. "read" is the time that reading the same files,
cached as they are for the bookie too, takes by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.environment import gc_tuning
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.protocol.bookie import BookieStatus
from tests.benchmarks.bookie_adds import Writer, resident_mb
from tests.benchmarks.bookie_journal import _process_cpu

MIB = 1 << 20


async def journalled(directory: Path, mebibytes: int, entry: int, ledgers: int) -> int:
    """Fill the journal and let go of everything as a kill does; returns the number of entries."""
    settings = BookieSettings(
        directory, write_cache_bytes=16 * mebibytes * MIB, flush_interval_s=1e6, reserve_bytes=0
    )
    bookie = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="bench")
    await bookie.start()
    count = mebibytes * MIB // (entry + 68)
    await Writer(bookie, 1, ledgers, entry).run(2000, count=count)
    bookie._serving = False
    bookie._checkpointer.stop()
    await bookie._journal.stop()
    bookie._running.storage.close(seal=False)
    bookie._running.lock.release()
    return count


def read_all(directory: Path) -> float:
    began = time.perf_counter()
    for path in sorted((directory / "journal").iterdir()):
        with path.open("rb", buffering=0) as file:
            while file.read(MIB):
                continue
    return time.perf_counter() - began


async def restarted(directory: Path, count: int, ledgers: int, mebibytes: int) -> None:
    plain = read_all(directory)
    before, cpu, began = resident_mb(), _process_cpu(), time.perf_counter()
    gc_tuning.postpone()  # As the process of a bookie does until it serves.
    bookie = Bookie(BookieSettings(directory), disk=SystemDisk(), clock=SystemClock(), bookie_id="bench")
    await bookie.start()
    elapsed, cpu = time.perf_counter() - began, _process_cpu() - cpu
    last = (count - 1) // ledgers
    for place in range(min(ledgers, 20)):
        assert (await bookie.read_entry(1 + place, last - 1)).status is BookieStatus.OK
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{mebibytes} MiB, {count:,} entries: started in {elapsed:.1f} s ({cpu:.1f} s of processor time,"
        f" {count / elapsed:,.0f} entries/s, {mebibytes / elapsed:.0f} MiB/s); reading alone {plain:.1f} s;"
        f" resident {before:.0f} MB before, {resident_mb():.0f} MB after, {peak:.0f} MB at most"
    )
    await bookie.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--entry", type=int, default=1024)
    parser.add_argument("--ledgers", type=int, default=100)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; removed afterwards")
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count is not None:  # The second half, in a process whose memory holds nothing of the first.
        asyncio.run(restarted(options.directory, options.count, options.ledgers, options.mebibytes))
        return
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=options.directory) as name:
        directory = Path(name) / "bookie"
        count = asyncio.run(journalled(directory, options.mebibytes, options.entry, options.ledgers))
        arguments = ["--directory", directory, "--count", count]
        arguments += ["--ledgers", options.ledgers, "--mebibytes", options.mebibytes]
        command = [sys.executable, "-m", "tests.benchmarks.bookie_restart", *map(str, arguments)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
