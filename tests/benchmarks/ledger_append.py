"""What a replicated append costs over TCP, with three bookies as processes of their own, beside a raw fdatasync.

    python -m tests.benchmarks.ledger_append [--rounds 5] [--seconds 2] [--quorums 3,2,2] [--directory DIR]

Every acknowledgement follows an fdatasync at an ack quorum of bookies. All of them share this machine's disk and
processors, so that a raw fdatasync is measured alone and with as many at once as there are bookies; the share of the
latter carries over to other machines. "client" and "bookies" are processor time per entry.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from magnetar.environment.clock import SystemClock
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import AVAILABLE_PATH
from tests.benchmarks.probes import Latency, fsync
from tests.benchmarks.processes import cpu

BOOKIES = 3
BOOKIE = Path(__file__).parents[1] / "integration" / "ledger" / "bookie_process.py"


@dataclass(frozen=True, slots=True)
class Load:
    entry_bytes: int
    window: int


LOADS = (Load(1024, 1), Load(1024, 100), Load(1024, 2000), Load(100 * 1024, 32))


@dataclass(frozen=True, slots=True)
class Result:
    entries_per_s: float
    megabytes_per_s: float
    latency: Latency
    client_us: float
    bookies_us: float


@asynccontextmanager
async def cluster(directory: Path) -> AsyncIterator[tuple[LedgerClient, list[int]]]:
    """A client of three bookies, and their process ids."""
    ensemble = MemoryEnsemble()
    store = ensemble.connect()
    processes: list[asyncio.subprocess.Process] = []
    provider = MetadataBookieProvider(store)
    client = LedgerClient(store, provider, clock=SystemClock(), random=random.Random())
    try:
        for number in range(BOOKIES):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(BOOKIE),
                str(directory / f"bookie-{number}"),
                f"bookie-{number}",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            processes.append(process)
            assert process.stdout is not None
            port = int(await asyncio.wait_for(process.stdout.readline(), 60))
            record = {"version": 1, "address": f"127.0.0.1:{port}", "incarnation": "1", "domain": f"{number}"}
            await store.put(f"{AVAILABLE_PATH}/bookie-{number}", json.dumps(record).encode())
        yield client, [process.pid for process in processes]
    finally:
        await client.close()
        await provider.close()
        for process in processes:
            process.send_signal(signal.SIGKILL)
            await process.wait()


async def measure(writer: LedgerWriter, pids: list[int], load: Load, seconds: float) -> Result:
    """Keep `window` appends in flight for a while."""
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    payload = os.urandom(load.entry_bytes)
    began_at: dict[int, float] = {}
    latencies: list[float] = []
    sent = 0
    deadline = time.perf_counter() + seconds

    def append() -> None:
        nonlocal sent
        sent += 1
        began = time.perf_counter()
        began_at[writer.append((payload,), acknowledged)] = began

    def acknowledged(entry_id: int, error: LedgerError | None) -> None:
        now = time.perf_counter()
        if error is not None:
            if not finished.done():
                finished.set_exception(error)
            return
        latencies.append(now - began_at.pop(entry_id))
        if now < deadline:
            append()
        elif not began_at and not finished.done():
            finished.set_result(None)

    bookies = sum(cpu(pid).total for pid in pids)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    began = time.perf_counter()
    for _ in range(load.window):
        append()
    await finished
    elapsed = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    bookies = sum(cpu(pid).total for pid in pids) - bookies
    client = used.ru_utime + used.ru_stime - usage.ru_utime - usage.ru_stime
    return Result(
        sent / elapsed,
        sent * load.entry_bytes / elapsed / 1e6,
        Latency.of(latencies),
        client / sent * 1e6,
        bookies / sent * 1e6,
    )


async def fsync_together(directory: Path) -> Latency:
    """As many raw fdatasyncs at once as there are bookies, each in a process of its own."""
    code = "import sys, pathlib; from tests.benchmarks.probes import fsync; l = fsync(pathlib.Path(sys.argv[1])); print(l.p50, l.p99)"
    places = [directory / f"probe-{number}" for number in range(BOOKIES)]
    for place in places:
        place.mkdir(exist_ok=True)
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            code,
            str(place),
            cwd=Path(__file__).parents[2],
            stdout=asyncio.subprocess.PIPE,
        )
        for place in places
    ]
    said = [(await process.communicate())[0].split() for process in processes]
    return Latency(
        statistics.median(float(p50) for p50, _ in said), statistics.median(float(p99) for _, p99 in said)
    )


async def run(rounds: int, seconds: float, quorums: tuple[int, int, int], directory: Path) -> None:
    results: dict[Load, list[Result]] = {load: [] for load in LOADS}
    alone: list[Latency] = []
    together: list[Latency] = []
    async with cluster(directory) as (client, pids):
        for _ in range(rounds):
            alone.append(await asyncio.to_thread(fsync, directory))
            together.append(await fsync_together(directory))
            for load in LOADS:
                writer = await client.create(*quorums)
                await measure(writer, pids, load, 0.2)  # Connections are made, files opened.
                results[load].append(await measure(writer, pids, load, seconds))
                await writer.close()
    size, write, ack = quorums
    sys.stdout.write(f"E{size} Qw{write} Qa{ack}, {BOOKIES} bookies over TCP, medians of {rounds} rounds\n")
    for name, probes in (("raw fdatasync, alone", alone), (f"raw fdatasync, {BOOKIES} at once", together)):
        p50, p99 = (statistics.median(getattr(each, which) for each in probes) for which in ("p50", "p99"))
        sys.stdout.write(f"{name:28} p50 {p50:7.0f} µs  p99 {p99:7.0f} µs\n")
    raw = statistics.median(each.p50 for each in together)
    for load, found in results.items():
        middle = {
            name: statistics.median(getattr(each, name) for each in found)
            for name in ("entries_per_s", "megabytes_per_s", "client_us", "bookies_us")
        }
        p50 = statistics.median(each.latency.p50 for each in found)
        p99 = statistics.median(each.latency.p99 for each in found)
        sys.stdout.write(
            f"{load.entry_bytes:7} B, {load.window:4} in flight   p50 {p50:7.0f} µs  p99 {p99:7.0f} µs"
            f"  ({p50 / raw:.1f} of raw)  {middle['entries_per_s']:8.0f} entries/s"
            f" {middle['megabytes_per_s']:6.1f} MB/s  client {middle['client_us']:5.1f} µs"
            f"  bookies {middle['bookies_us']:5.1f} µs\n"
        )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=2.0)
    arguments.add_argument("--quorums", default="3,2,2", help="ensemble, write quorum, ack quorum")
    arguments.add_argument("--directory", type=Path, help="on the disk to be measured")
    given = arguments.parse_args()
    size, write, ack = map(int, given.quorums.split(","))
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        uvloop.run(run(given.rounds, given.seconds, (size, write, ack), Path(directory)))


if __name__ == "__main__":
    main()
