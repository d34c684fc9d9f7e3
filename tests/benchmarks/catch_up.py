"""Writers while others read a backlog: how much later do receipts come, and how late is the loop of each role?

    python -m tests.benchmarks.catch_up [--rounds 3] [--backlog 1000000] [--readers 4] [--directory DIR]

A real ZooKeeper, three bookies and a broker, E3 Qw2 Qa2. A writer with one message of 1 KiB in flight is timed alone and
beside readers that start at the beginning of a backlog and read as fast as they can; each round does both, so that the
ratio holds whatever else the machine does. Beside it a raw fdatasync. Loop lag is what each process's own histogram counted meanwhile.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from magnetar.testing.commands import make_cluster
from magnetar.testing.processes import MagnetarProcess
from magnetar.testing.zookeeper import ZooKeeperServer
from tests.benchmarks.probes import Latency, fsync

SIZE = 1024
SENT = 500
BOOKIES = 3
_BUCKET = re.compile(r'magnetar_loop_lag_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)')


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--backlog", type=int, default=1_000_000, help="messages of 1 KiB that readers begin with"
    )
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as place:
        directory = Path(place)
        print(f"raw fdatasync, 4 KiB        p50 / p99 {fsync(directory)}")
        with cluster(directory) as (broker, bookies):
            run(broker, bookies, options)


@contextmanager
def cluster(directory: Path) -> Iterator[tuple[MagnetarProcess, list[MagnetarProcess]]]:
    """Everything that runs beside the load."""
    with ExitStack() as running:
        keeper = running.enter_context(ZooKeeperServer(directory / "zookeeper", tick_ms=1000))
        store = f"zk:{keeper.address}/bench"
        make_cluster(store, "bench")
        bookies = []
        for number in range(BOOKIES):
            words = ["bookie", "--metadata-store", store, "--data", str(directory / f"b{number}")]
            words += ["--port", "0", "--web-port", "0"]
            environment = {"MAGNETAR_BOOKIE__DOMAIN": f"machine-{number}"}
            bookies.append(
                running.enter_context(MagnetarProcess(words, directory / f"b{number}.log", environment))
            )
        words = ["broker", "--metadata-store", store, "--data", str(directory / "broker"), "--port", "0"]
        words += ["--web-port", "0", "--no-functions"]
        words += ["--ensemble", "3", "--write-quorum", "2", "--ack-quorum", "2"]
        broker = running.enter_context(MagnetarProcess(words, directory / "broker.log"))
        yield broker, bookies


def run(broker: MagnetarProcess, bookies: list[MagnetarProcess], options: argparse.Namespace) -> None:
    """Alone and beside readers, round by round."""
    url, filled = broker.service_url, 0
    # A backlog stays only where a subscription holds it back.
    _load(url, "consume", "backlog", 0)
    while filled < options.backlog:
        filled += int(_load(url, "produce", "backlog", SIZE, 2.0)["messages"])
    print(f"backlog                     {filled} messages of {SIZE} bytes")
    pages = [f"{broker.web_url}/metrics", *(f"{bookie.urls[1]}/metrics" for bookie in bookies)]
    alone: list[float] = []
    beside: list[float] = []
    ratios: list[float] = []
    read = 0.0
    before = [_lags(page) for page in pages]
    for _ in range(options.rounds):
        quiet = _load(url, "latency", "tail", SIZE, SENT)["times"]
        readers = [_start(url, "consume", "backlog", filled) for _ in range(options.readers)]
        try:
            busy = _load(url, "latency", "tail", SIZE, SENT)["times"]
        finally:
            ended = [_end(reader) for reader in readers]
        read = max(read, sum(each["messages"] / each["seconds"] for each in ended if each))
        alone += quiet
        beside += busy
        ratios.append(statistics.median(busy) / statistics.median(quiet))
    print(f"writer, alone               p50 / p99 {Latency.of(alone)}")
    print(f"writer, beside {options.readers} readers    p50 / p99 {Latency.of(beside)}")
    told = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"p50 beside readers / alone  {statistics.median(ratios):.2f}   (each round: {told}; goal 1.5)")
    print(f"readers together            {read:,.0f} messages/s while it lasts")
    names = ["broker", *(f"bookie {number}" for number in range(BOOKIES))]
    for name, page, earlier in zip(names, pages, before, strict=True):
        print(f"loop lag p99, {name:<13} {_p99(_lags(page), earlier)}")


def _start(url: str, action: str, topic: str, *rest: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.benchmarks.load", "ours", action, url, topic, *map(str, rest)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _load(url: str, action: str, topic: str, *rest: object) -> dict[str, Any]:
    process = _start(url, action, topic, *rest)
    told, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the {action} load ended with status {process.returncode}")
    result: dict[str, Any] = json.loads(told)
    return result


def _end(reader: subprocess.Popen[str]) -> dict[str, Any] | None:
    """What a reader achieved; None if the writer was done before it, and it is ended."""
    if reader.poll() is None:
        reader.kill()
    told, _ = reader.communicate()
    return json.loads(told) if reader.returncode == 0 else None


def _lags(page: str) -> Counter[float]:
    """How often the loop was at most so late, by seconds, as the process has counted."""
    with urllib.request.urlopen(page, timeout=30) as answer:
        return Counter(
            {float(bound): float(count) for bound, count in _BUCKET.findall(answer.read().decode())}
        )


def _p99(now: Counter[float], before: Counter[float]) -> str:
    total = now[float("inf")] - before[float("inf")]
    for bound in sorted(now):
        if now[bound] - before[bound] >= 0.99 * total:
            return f"at most {bound * 1000:g} ms ({total:.0f} looks)"
    return "unknown"


if __name__ == "__main__":
    main()
