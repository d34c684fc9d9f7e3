"""What a flush and a deletion cost with entry logs that ledgers share, beside a file for each ledger.

    python -m tests.benchmarks.bookie_entry_logs [--mebibytes 16] [--directory DIR]

Both write the same sorted entries of 1 KiB and make them durable, names included. Then every other ledger is deleted: with
shared logs the rest is copied to a new log, as compaction does, and the old one removed; with files of their own, half of
the files are removed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from magnetar.bookie.entry_log import LogFiles, LogWriter
from magnetar.bookie.write_cache import Parts
from magnetar.environment.disk import SystemDisk
from magnetar.protocol.ledger_entry import ENTRY_HEADER_BYTES, encode_entry_header

LEDGERS = (1, 100, 1000, 10_000)
PAYLOAD = os.urandom(1024)

Entry = tuple[int, int, Parts]


def entries_of(ledgers: int, count: int) -> list[Entry]:
    each = max(1, count // ledgers)
    return [
        (ledger, entry, (encode_entry_header(ledger, entry, entry - 1, 0, (PAYLOAD,)), PAYLOAD))
        for ledger in range(ledgers)
        for entry in range(each)
    ]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    cpu, began = time.process_time(), time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3


class SharedLog:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._disk, self._directory = SystemDisk(), directory

    def flush(self, entries: list[Entry]) -> None:
        writer = LogWriter(self._disk, self._directory, 1, 0)
        writer.append(entries)
        writer.seal()

    def delete(self, ledgers: int) -> None:
        files = LogFiles(self._disk, self._directory)
        writer = LogWriter(self._disk, self._directory, 2, 0)
        live: list[Entry] = []
        for record in files.scan(1):
            if record.ledger_id % 2:
                entry = files.read(record.location)[0][2]
                live.append((*record[:2], (entry[:ENTRY_HEADER_BYTES], entry[ENTRY_HEADER_BYTES:])))
        writer.append(live)
        writer.seal()
        files.forget(1)
        self._disk.remove(files.path(1))
        self._disk.sync_directory(self._directory)


class FileEach:
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._disk, self._directory = SystemDisk(), directory

    def flush(self, entries: list[Entry]) -> None:
        of, buffers = -1, list[bytes]()
        for ledger, _, parts in [*entries, (-2, 0, ())]:
            if ledger != of and buffers:
                file = self._disk.create(self._directory / f"{of:016x}")
                file.write(0, [b"".join(buffers)])
                file.sync()
                file.close()
                buffers = []
            of = ledger
            buffers += parts
        self._disk.sync_directory(self._directory)

    def delete(self, ledgers: int) -> None:
        for ledger in range(0, ledgers, 2):
            self._disk.remove(self._directory / f"{ledger:016x}")
        self._disk.sync_directory(self._directory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=16)
    parser.add_argument("--directory", type=Path, help="on the disk to be measured; removed afterwards")
    options = parser.parse_args()
    print(f"{'ledgers':>8} {'way':<9} {'flush ms':>9} {'CPU ms':>8} {'delete ms':>10} {'CPU ms':>8}")
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-", dir=options.directory) as name:
        for ledgers in LEDGERS:
            entries = entries_of(ledgers, options.mebibytes << 10)
            for way, kept in (
                ("shared", SharedLog(Path(name) / f"shared-{ledgers}")),
                ("file each", FileEach(Path(name) / f"each-{ledgers}")),
            ):
                flush, flush_cpu = timed(partial(kept.flush, entries))
                delete, delete_cpu = timed(partial(kept.delete, ledgers))
                print(
                    f"{ledgers:>8,} {way:<9} {flush:>9.0f} {flush_cpu:>8.0f} {delete:>10.0f} {delete_cpu:>8.0f}"
                )


if __name__ == "__main__":
    main()
