"""Durable adds by entry size and number of ledgers, in process, beside the raw device; and memory with many ledgers.

    python -m tests.benchmarks.bookie_adds [--seconds 2] [--ledgers 100000] [--directory DIR]

Adds are kept in flight up to a window, spread over the ledgers in turn; every acknowledgement follows an fdatasync.
"CPU s/M" are processor seconds of the whole process for a million adds, flushes to entry log and index included; half of
it or so is this load generator's. "of raw" is the share of what writing and syncing the same bytes in groups of the same
size gives on the same device, measured right after. Memory is resident, before and after each ledger has one entry.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.settings import BookieSettings
from magnetar.environment.clock import SystemClock
from magnetar.environment.disk import SystemDisk
from magnetar.protocol.bookie import AddFlags, BookieStatus, master_key
from magnetar.protocol.ledger_entry import encode_entry_header
from tests.benchmarks.bookie_journal import _process_cpu, raw

KEY = master_key()
LEDGERS = (1, 100, 10_000)
WINDOWS = {100: 4000, 1024: 2000, 64 * 1024: 128}


@dataclass(frozen=True, slots=True)
class Result:
    adds_per_s: float
    cpu_s_per_million: float
    group: float
    p50_ms: float
    p99_ms: float


class Writer:
    """Adds to `ledgers` ledgers in turn, `window` at a time."""

    def __init__(self, bookie: Bookie, first_ledger: int, ledgers: int, size: int) -> None:
        self._bookie = bookie
        self._first = first_ledger
        self._ledgers = ledgers
        self._payload = os.urandom(size)
        self._loop = asyncio.get_running_loop()
        self._sent = self._done = 0
        self._latencies: list[float] = []
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._count = 0
        self._deadline = 0.0

    async def run(self, window: int, *, seconds: float = 0.0, count: int = 0) -> None:
        """For so long, or so many."""
        self._deadline, self._count = time.perf_counter() + seconds, count
        for _ in range(min(window, count or window)):
            self._send()
        await self._ended

    @property
    def done(self) -> int:
        return self._done

    def latencies_ms(self) -> tuple[float, float]:
        ordered = sorted(self._latencies)
        return ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3

    def _send(self) -> None:
        entry_id, place = divmod(self._sent, self._ledgers)
        self._sent += 1
        payload, began = self._payload, time.perf_counter()
        ledger_id = self._first + place
        header = encode_entry_header(
            ledger_id, entry_id, entry_id - 1, (entry_id + 1) * len(payload), (payload,)
        )

        def acknowledged(status: BookieStatus) -> None:
            if status is not BookieStatus.OK:
                self._ended.set_exception(RuntimeError(f"add ended with {status!r}"))
                return
            self._done += 1
            now = time.perf_counter()
            self._latencies.append(now - began)
            if self._sent < self._count if self._count else now < self._deadline:
                self._send()
            elif self._done == self._sent and not self._ended.done():
                self._ended.set_result(None)

        self._bookie.add_entry(ledger_id, entry_id, (header, payload), AddFlags.NONE, KEY, acknowledged)


def resident_mb() -> float:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def groups_of(bookie: Bookie) -> float:
    return next(s.value for s in bookie.metrics() if s.name == "bookie_journal_JOURNAL_SYNC_count")


async def measure(bookie: Bookie, first: int, ledgers: int, size: int, seconds: float) -> Result:
    writer, groups = Writer(bookie, first, ledgers, size), groups_of(bookie)
    cpu, began = _process_cpu(), time.perf_counter()
    await writer.run(WINDOWS[size], seconds=seconds)
    elapsed, cpu = time.perf_counter() - began, _process_cpu() - cpu
    p50, p99 = writer.latencies_ms()
    group = writer.done / max(1.0, groups_of(bookie) - groups)
    return Result(writer.done / elapsed, cpu / writer.done * 1e6, group, p50, p99)


async def adds(directory: Path, seconds: float) -> None:
    bookie = Bookie(
        BookieSettings(directory / "bookie"), disk=SystemDisk(), clock=SystemClock(), bookie_id="bench"
    )
    await bookie.start()
    first = 1
    print(
        f"{'entry':>7} {'ledgers':>8} {'adds/s':>9} {'MB/s':>7} {'CPU s/M':>8} {'p50 ms':>7} {'p99 ms':>7} {'a group':>8}"
        f" {'raw MB/s':>9} {'of raw':>7}"
    )
    for size in WINDOWS:
        for ledgers in LEDGERS:
            found = await measure(bookie, first, ledgers, size, seconds)
            first += ledgers
            block = min(8 << 20, -(-int(found.group * (size + 68)) // 4096) * 4096)
            raw_rate, _ = await asyncio.to_thread(raw, directory, max(4096, block), seconds / 4)
            rate = found.adds_per_s * size / 1e6
            print(
                f"{size:>7,} {ledgers:>8,} {found.adds_per_s:>9,.0f} {rate:>7.1f} {found.cpu_s_per_million:>8.1f}"
                f" {found.p50_ms:>7.1f} {found.p99_ms:>7.1f} {found.group:>8.1f} {raw_rate:>9.1f} {rate / raw_rate:>7.2f}"
            )
    await bookie.stop()


async def memory(directory: Path, ledgers: int) -> None:
    settings = BookieSettings(directory / "many")
    bookie = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="bench")
    await bookie.start()
    empty = resident_mb()
    await Writer(bookie, 1, ledgers, 100).run(1000, count=ledgers)
    await bookie.checkpoint()
    full = resident_mb()
    await bookie.stop()
    began = time.perf_counter()
    again = Bookie(settings, disk=SystemDisk(), clock=SystemClock(), bookie_id="bench")
    await again.start()
    started = time.perf_counter() - began
    await again.stop()
    print(
        f"{ledgers:,} ledgers: {empty:.0f} MB empty, {full:.0f} MB with an entry each"
        f" ({(full - empty) * 1024 * 1024 / ledgers:.0f} B a ledger); a restart takes {started:.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; removed afterwards")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=options.directory) as directory:
        asyncio.run(memory(Path(directory), options.ledgers))
        asyncio.run(adds(Path(directory), options.seconds))


if __name__ == "__main__":
    main()
