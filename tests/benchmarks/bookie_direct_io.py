"""Whether a journal would gain from going around the page cache: the same groups, written and made durable in two ways.

    python -m tests.benchmarks.bookie_direct_io [--rounds 7] [--seconds 0.5] [--directory DIR]

"cached" is what the journal does: a write into preallocated zeros, and fdatasync. "direct" is O_DIRECT with O_DSYNC, from an
aligned buffer that the group is copied into first. Rounds take turns; what is shown are medians. A group of one entry is
what a lone writer waits for; the others are as large as `bookie_adds.py` finds them under load.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 4096
ROOM = 64 << 20
GROUPS = (
    ("100 B, alone", 100, 1),
    ("1 KiB, alone", 1024, 1),
    ("64 KiB, alone", 64 * 1024, 1),
    ("100 B, 200 in a group", 100, 200),
    ("1 KiB, 300 in a group", 1024, 300),
    ("64 KiB, 64 in a group", 64 * 1024, 64),
)


@dataclass(frozen=True, slots=True)
class Found:
    p50_us: float
    p99_us: float
    megabytes_per_s: float
    cpu_us: float
    """Processor time of a group, kernel included."""


def preallocated(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for _ in range(ROOM >> 20):
            file.write(bytes(1 << 20))
        os.fsync(file.fileno())


def measure(write: Callable[[bytes, int], None], group: bytes, seconds: float) -> Found:
    times: list[float] = []
    offset, cpu, ends = 0, time.process_time(), time.perf_counter() + seconds
    while (began := time.perf_counter()) < ends:
        write(group, offset)
        times.append(time.perf_counter() - began)
        offset += len(group)
        if offset + len(group) > ROOM:
            offset = 0
    cpu = time.process_time() - cpu
    times.sort()
    return Found(
        times[len(times) // 2] * 1e6,
        times[int(len(times) * 0.99)] * 1e6,
        len(group) * len(times) / sum(times) / 1e6,
        cpu / len(times) * 1e6,
    )


def compare(
    directory: Path, entry: int, count: int, rounds: int, seconds: float
) -> tuple[list[Found], list[Found]]:
    path = directory / "group"
    preallocated(path)
    size = -(-count * (entry + 68) // BLOCK) * BLOCK
    group = os.urandom(size)
    aligned = mmap.mmap(-1, size)
    cached = os.open(path, os.O_RDWR)
    direct = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_DSYNC)

    def write_cached(data: bytes, offset: int) -> None:
        os.pwrite(cached, data, offset)
        os.fdatasync(cached)

    def write_direct(data: bytes, offset: int) -> None:
        aligned[:] = data
        os.pwritev(direct, [aligned], offset)

    by_cached, by_direct = [], []
    try:
        for _ in range(rounds):
            by_cached.append(measure(write_cached, group, seconds))
            by_direct.append(measure(write_direct, group, seconds))
    finally:
        os.close(cached)
        os.close(direct)
        aligned.close()
        path.unlink()
    return by_cached, by_direct


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; removed afterwards")
    options = parser.parse_args()
    print(f"{'group':<24} {'way':<7} {'p50 µs':>8} {'p99 µs':>8} {'MB/s':>8} {'CPU µs':>8}")
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=options.directory) as name:
        for what, entry, count in GROUPS:
            ways = compare(Path(name), entry, count, options.rounds, options.seconds)
            for way, results in zip(("cached", "direct"), ways, strict=True):

                def median(field: str, results: list[Found] = results) -> float:
                    return float(statistics.median(getattr(result, field) for result in results))

                print(
                    f"{what:<24} {way:<7} {median('p50_us'):>8.0f} {median('p99_us'):>8.0f}"
                    f" {median('megabytes_per_s'):>8.1f} {median('cpu_us'):>8.1f}"
                )


if __name__ == "__main__":
    main()
