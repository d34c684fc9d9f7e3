"""How fast the copies of a lost bookie are made anew, beside a raw copy of as many bytes to the same disk.

    python -m tests.benchmarks.rereplication [--megabytes 128] [--rates 0,64] [--directory DIR]

Four bookies in processes of their own, over TCP; ledgers with two copies of every entry; one bookie is killed. "raw"
reads a file and writes it to another in pieces of 4 MiB, each followed by fdatasync. Copies are written twice by the
bookie (journal, then entry log) and read, verified and sent by autorecovery in this process: "CPU" is its time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from magnetar.autorecovery.autorecovery import Autorecovery
from magnetar.autorecovery.settings import AutorecoverySettings
from magnetar.environment.clock import SystemClock
from magnetar.environment.logs import configure
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.errors import LedgerError
from magnetar.ledger.provider import MetadataBookieProvider
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.protocol.bookie import AVAILABLE_PATH, COOKIES_PATH

MIB = 1024 * 1024
PIECE = 4 * MIB
SETTINGS = AutorecoverySettings(lost_bookie_recovery_delay_s=0, workers_idle_s=1, retry_s=0.5)
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the ledgers look like."""

    entry_bytes: int
    ensemble: int


SHAPES = (Shape(1024, 2), Shape(64 * 1024, 2), Shape(64 * 1024, 3))


class Bookies:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.metadata = MemoryEnsemble()
        self._store = self.metadata.connect()
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self, name: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(ROOT / "tests/integration/ledger/bookie_process.py"),
            str(self._directory / name),
            name,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes[name] = process
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        record = {
            "version": 1,
            "address": f"127.0.0.1:{port}",
            "incarnation": str(process.pid),
            "domain": name,
        }
        await self._store.put(f"{COOKIES_PATH}/{name}", b"{}")
        await self._store.put(f"{AVAILABLE_PATH}/{name}", json.dumps(record).encode())

    async def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        process.kill()
        await process.wait()
        await self._store.delete(f"{AVAILABLE_PATH}/{name}")

    async def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            await process.wait()


async def fill(writer: LedgerWriter, entries: int, payload: bytes) -> None:
    """Append with a window of 16 MiB."""
    window = max(1, 16 * MIB // len(payload))
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    sent = acked = 0

    def more() -> None:
        nonlocal sent
        while sent < entries and sent - acked < window:
            sent += 1
            writer.append((payload,), answered)

    def answered(entry_id: int, error: LedgerError | None) -> None:
        nonlocal acked
        acked += 1
        if error is not None and not done.done():
            done.set_exception(error)
        elif acked == entries:
            done.set_result(None)
        else:
            more()

    more()
    await done
    await writer.close()


async def measure(directory: Path, shape: Shape, megabytes: int, rate_mib: int) -> tuple[float, float, float]:
    """MiB copied, seconds, and seconds of processor time of this process."""
    bookies = Bookies(directory)
    try:
        for number in range(4):
            await bookies.start(f"bookie-{number}")
        store = bookies.metadata.connect()
        provider = MetadataBookieProvider(store)
        dice = random.Random(7)
        client = LedgerClient(store, provider, clock=SystemClock(), random=dice)
        payload = os.urandom(shape.entry_bytes)
        ledgers = 8
        for _ in range(ledgers):
            writer = await client.create(shape.ensemble, 2, 2)
            await fill(writer, megabytes * MIB // ledgers // shape.entry_bytes, payload)
        settings = replace(SETTINGS, copy_bytes_per_s=rate_mib * MIB)
        daemon = Autorecovery(
            store, client, provider, clock=SystemClock(), dice=dice, settings=settings, name="benchmark"
        )
        daemon.start()
        while not daemon.auditor.leading:
            await asyncio.sleep(0.01)
        started, cpu = time.perf_counter(), time.process_time()
        await bookies.kill("bookie-0")
        left = True
        while left:
            await asyncio.sleep(0.02)
            names = [
                bookie
                for ledger_id in await client.list()
                for segment in (await client.metadata_of(ledger_id)).segments
                for bookie in segment.ensemble
            ]
            left = "bookie-0" in names
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        await daemon.stop()
        copied = daemon.worker.counts.bytes / MIB
        await client.close()
        await provider.close()
        return copied, seconds, cpu
    finally:
        await bookies.end()


def raw_copy(directory: Path, size: int) -> float:
    """Seconds for a copy of `size` bytes, each piece durable before the next."""
    source, target = directory / "source", directory / "target"
    source.write_bytes(os.urandom(PIECE) * (size // PIECE))
    started = time.perf_counter()
    with source.open("rb") as reading, target.open("wb", buffering=0) as writing:
        while piece := reading.read(PIECE):
            writing.write(piece)
            os.fdatasync(writing.fileno())
    seconds = time.perf_counter() - started
    source.unlink()
    target.unlink()
    return seconds


async def main(megabytes: int, rates: list[int], directory: Path | None) -> None:
    print("| entries | ensemble | limit MiB/s | copied MiB | MiB/s | CPU s/GiB | raw MiB/s |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for shape in SHAPES:
        for rate in rates:
            with tempfile.TemporaryDirectory(dir=directory) as place:
                copied, seconds, cpu = await measure(Path(place), shape, megabytes, rate)
                size = max(PIECE, int(copied) * MIB)
                raw_s = await asyncio.to_thread(raw_copy, Path(place), size)
            print(
                f"| {shape.entry_bytes} B | {shape.ensemble} | {rate or '-'} | {copied:.0f} | {copied / seconds:.0f} |"
                f" {cpu / copied * 1024:.1f} | {size / MIB / raw_s:.0f} |"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--megabytes", type=int, default=128, help="written to ledgers, before copies")
    parser.add_argument("--rates", default="0,16", help="limits in MiB/s, 0 for none")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    given = parser.parse_args()
    configure("ERROR")
    asyncio.run(main(given.megabytes, [int(each) for each in given.rates.split(",")], given.directory))
