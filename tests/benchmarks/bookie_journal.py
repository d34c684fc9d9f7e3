"""What a durable add costs in process, beside a raw fdatasync of as many bytes in the same round.

    python -m tests.benchmarks.bookie_journal [--rounds 5] [--seconds 2] [--directory DIR]

Adds are kept in flight up to a window; every acknowledgement follows an fdatasync. "loop" is the processor time of the
event loop's thread per entry (encoding the header, `add_entry`, acknowledgement), "all" that of the whole process,
flushing to entry log and index included.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
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

KEY = master_key()
_ZERO = bytes(1 << 20)


@dataclass(frozen=True, slots=True)
class Load:
    entry_bytes: int
    window: int


LOADS = (Load(100, 1), Load(1024, 1), Load(1024, 2000), Load(100 * 1024, 64), Load(1 << 20, 16))


@dataclass(frozen=True, slots=True)
class Result:
    entries_per_s: float
    megabytes_per_s: float
    loop_us: float
    all_us: float
    p50_us: float
    p99_us: float
    group: float


async def measure(bookie: Bookie, ledger_id: int, load: Load, seconds: float) -> Result:
    """Keep `window` adds in flight for a while."""
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[None] = loop.create_future()
    payload = os.urandom(load.entry_bytes)
    latencies: list[float] = []
    sent = done = 0
    deadline = time.perf_counter() + seconds

    def send() -> None:
        nonlocal sent
        entry_id, length = sent, (sent + 1) * load.entry_bytes
        sent += 1
        began = time.perf_counter()
        header = encode_entry_header(ledger_id, entry_id, entry_id - 1, length, (payload,))

        def acknowledged(status: BookieStatus) -> None:
            nonlocal done
            if status is not BookieStatus.OK:
                finished.set_exception(RuntimeError(f"add ended with {status!r}"))
                return
            done += 1
            now = time.perf_counter()
            latencies.append(now - began)
            if now < deadline:
                send()
            elif done == sent and not finished.done():
                finished.set_result(None)

        bookie.add_entry(ledger_id, entry_id, (header, payload), AddFlags.NONE, KEY, acknowledged)

    groups = next(s.value for s in bookie.metrics() if s.name == "bookie_journal_JOURNAL_SYNC_count")
    loop_before, all_before, began = time.thread_time(), _process_cpu(), time.perf_counter()
    for _ in range(load.window):
        send()
    await finished
    elapsed = time.perf_counter() - began
    loop_cpu, all_cpu = time.thread_time() - loop_before, _process_cpu() - all_before
    groups = next(s.value for s in bookie.metrics() if s.name == "bookie_journal_JOURNAL_SYNC_count") - groups
    latencies.sort()
    return Result(
        done / elapsed,
        done * load.entry_bytes / elapsed / 1e6,
        loop_cpu / done * 1e6,
        all_cpu / done * 1e6,
        latencies[len(latencies) // 2] * 1e6,
        latencies[int(len(latencies) * 0.99)] * 1e6,
        done / max(1, groups),
    )


def raw(directory: Path, size: int, seconds: float) -> tuple[float, float]:
    """Write and fdatasync `size` bytes again and again into a preallocated file: MB/s, and microseconds (p50)."""
    path = directory / "raw-probe"
    room = 64 << 20
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for offset in range(0, room, len(_ZERO)):
            os.pwrite(descriptor, _ZERO, offset)
        os.fsync(descriptor)
        data, times, offset = os.urandom(size), [], 0
        deadline = time.perf_counter() + seconds
        while (began := time.perf_counter()) < deadline:
            os.pwrite(descriptor, data, offset)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
            offset = (offset + size) % (room - size)
        return size * len(times) / sum(times) / 1e6, statistics.median(times) * 1e6
    finally:
        os.close(descriptor)
        path.unlink()


def _process_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def run(directory: Path, rounds: int, seconds: float) -> None:
    sys.setswitchinterval(0.0005)
    bookie = Bookie(
        BookieSettings(directory / "bookie"), disk=SystemDisk(), clock=SystemClock(), bookie_id="bench"
    )
    await bookie.start()
    ledger_id = 0
    print(
        f"{'entry':>9} {'window':>6} {'adds/s':>9} {'MB/s':>7} {'p50 µs':>8} {'p99 µs':>8} {'loop µs':>8} {'all µs':>7}"
        f" {'a group':>8} {'raw MB/s':>9} {'raw µs':>7} {'of raw':>7}"
    )
    for load in LOADS:
        results, probes = [], []
        for _ in range(rounds + 1):
            ledger_id += 1
            results.append(await measure(bookie, ledger_id, load, seconds))
            size = min(8 << 20, max(4096, int(results[-1].group * (load.entry_bytes + 68))))
            probes.append(await asyncio.to_thread(raw, directory, -(-size // 4096) * 4096, seconds / 4))
        results, probes = results[1:], probes[1:]

        def median(name: str, results: list[Result] = results) -> float:
            return float(statistics.median(getattr(result, name) for result in results))

        raw_rate = statistics.median(rate for rate, _ in probes)
        ratio = statistics.median(
            result.megabytes_per_s / rate for result, (rate, _) in zip(results, probes, strict=True)
        )
        print(
            f"{load.entry_bytes:>9,} {load.window:>6} {median('entries_per_s'):>9,.0f} {median('megabytes_per_s'):>7.1f}"
            f" {median('p50_us'):>8.0f} {median('p99_us'):>8.0f} {median('loop_us'):>8.2f} {median('all_us'):>7.2f}"
            f" {median('group'):>8.1f} {raw_rate:>9.1f} {statistics.median(us for _, us in probes):>7.0f} {ratio:>7.2f}"
        )
    await bookie.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; removed afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=options.directory) as directory:
        asyncio.run(run(Path(directory), options.rounds, options.seconds))


if __name__ == "__main__":
    main()
