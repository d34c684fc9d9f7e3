"""`make bench`: what a message costs, beside what the machine can do.

    python -m tests.benchmarks [--quick] [--seconds 4] [--rounds 3]

For 100 B and 1 KiB, with the official client and with ours: durable publish and consume rates and processor seconds per
million messages, of the server (user and system apart) and of the client; latency with one message in flight and at a
modest rate; throughput of one function instance; start-up, memory and idle processor use. Every receipt waits for an
fdatasync. Rounds alternate between the clients; figures are medians. Raw probes of disk and loopback are taken in each
round, and "of raw" is a figure's share of its probe: it carries over to other machines, the figure alone does not.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks import probes
from tests.benchmarks.load import PACED_RATE
from tests.benchmarks.processes import Cpu, cpu, memory_mb
from tests.benchmarks.server import Server

FUNCTION = b"def process(input):\n    return input + '!'\n"
CLIENTS = ("official", "ours")
CONSUMED_MAX = 300_000
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure."""

    seconds: float
    """Length of a publishing run."""
    rounds: int
    starts: int
    idle_s: float
    in_flight: int
    """Messages sent one at a time."""
    paced: int
    """Messages sent at a modest rate."""
    function_s: float
    """How long a function's input is published."""


QUICK = Plan(seconds=0.3, rounds=1, starts=1, idle_s=1.0, in_flight=200, paced=50, function_s=1.0)


def load(*arguments: object) -> dict[str, Any]:
    """Run one load generator in its own process."""
    command = [sys.executable, "-m", "tests.benchmarks.load", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(server: Server, *arguments: object) -> dict[str, Any]:
    """Run one load generator and add the server's processor time."""
    before = cpu(server.pid)
    result = load(*arguments)
    result["server"] = cpu(server.pid) - before
    return result


def row(table: Table, name: str, results: list[dict[str, Any]]) -> None:
    """Add the medians of several rounds."""
    rate = statistics.median(r["messages"] / r["seconds"] for r in results)
    user = statistics.median(r["server"].user / r["messages"] * 1e6 for r in results)
    system = statistics.median(r["server"].system / r["messages"] * 1e6 for r in results)
    client = statistics.median(r["cpu_seconds"] / r["messages"] * 1e6 for r in results)
    shares = [r["messages"] * r["size"] / r["seconds"] / 1e6 / r["raw"] for r in results if "raw" in r]
    share = f"{statistics.median(shares):.0%}" if shares else ""
    table.add_row(name, f"{rate:,.0f}", f"{user:.2f} + {system:.2f}", f"{client:.2f}", share)


def messaging(server: Server, table: Table, directory: Path, plan: Plan) -> tuple[float, float]:
    """Publish and consume, official client and ours in turn. Returns the probes: MB/s of disk and of loopback."""
    found: dict[str, list[dict[str, Any]]] = {}
    disk, loopback = [], []
    for number in range(plan.rounds):
        disk.append(probes.synced_rate(directory))
        loopback.append(probes.loopback_rate())
        for size in (100, 1024):
            for client in CLIENTS if number % 2 == 0 else CLIENTS[::-1]:
                topic = f"persistent://public/default/bench-{client}-{size}-{number}"
                produced = measure(server, client, "produce", server.service_url, topic, size, plan.seconds)
                produced |= {"size": size, "raw": disk[-1]}
                found.setdefault(f"{size:>4} B, {client}: publish, durable", []).append(produced)
                count = min(produced["messages"], CONSUMED_MAX)
                consumed = measure(server, client, "consume", server.service_url, topic, count)
                consumed |= {"size": size, "raw": loopback[-1]}
                found.setdefault(f"{size:>4} B, {client}: consume, acknowledge", []).append(consumed)
    for name, results in sorted(found.items()):
        row(table, name, results)
    return statistics.median(disk), statistics.median(loopback)


def latencies(server: Server, table: Table, directory: Path, plan: Plan) -> None:
    """Until the durable receipt, beside a raw fdatasync and a raw round trip just before."""
    for client in CLIENTS:
        for action, count, name in (
            ("latency", plan.in_flight, "one in flight"),
            ("paced", plan.paced, f"{PACED_RATE}/s, from when it was due"),
        ):
            sync, trip = probes.fsync(directory, 500), probes.loopback(1000)
            topic = f"persistent://public/default/bench-{action}-{client}"
            result = load(client, action, server.service_url, topic, 100, count)
            taken = probes.Latency.of(result["times"])
            ratio = f"{taken.p50 / (sync.p50 + trip.p50):.1f} ×"
            table.add_row(f"{client}: {name}", str(taken), str(sync), str(trip), ratio)


@dataclass(frozen=True, slots=True)
class Starts:
    """Seconds until ready: on an empty directory, and on one that was used."""

    first: float
    again: float

    @classmethod
    def measure(cls, directory: Path, number: int) -> Starts:
        first: list[float] = []
        again: list[float] = []
        for turn in range(number):
            place = directory / f"start-{turn}"
            place.mkdir()
            for times in (first, again):
                server = Server(place)
                times.append(server.ready_s)
                server.stop()
        return cls(statistics.median(first), statistics.median(again))


def functions(server: Server, table: Table, directory: Path, guarantee: str, seconds: float) -> None:
    """Drain a backlog of 100 B messages through one instance; what it costs once it runs, without its start.

    The first tenth is left out: until then modules are loaded and connections made.
    """
    name = guarantee.lower().replace("_", "-")
    source, target = (f"persistent://public/default/{name}-{end}" for end in ("in", "out"))
    produced = load("ours", "produce", server.service_url, source, 100, seconds)
    package = directory / "shout.py"
    package.write_bytes(FUNCTION)
    config = {
        "className": "shout",
        "runtime": "PYTHON",
        "inputs": [source],
        "output": target,
        "processingGuarantees": guarantee,
        "subscriptionPosition": "Earliest",
    }
    began = time.perf_counter()
    server.create_function(name, config, package)
    first = None
    steady: tuple[float, int, Cpu] | None = None
    """When the first tenth was through: the moment, how many were, the processor time so far."""
    deadline = began + 120
    path = f"/v2/persistent/public/default/{name}-out/stats"
    written = 0
    while written < produced["messages"] and time.perf_counter() < deadline:
        time.sleep(0.05)
        try:
            written = server.get(path)["msgInCounter"]
        except OSError:
            continue  # The topic is made by the function's first output.
        if written and first is None:
            first = time.perf_counter()
        if steady is None and written > produced["messages"] / 10:
            steady = (time.perf_counter(), written, cpu(server.pid))
    if first is None or steady is None or written < produced["messages"]:
        raise SystemExit(f"the {guarantee} function wrote {written} of {produced['messages']} messages")
    counted = written - steady[1]
    result = {
        "messages": counted,
        "seconds": time.perf_counter() - steady[0],
        "cpu_seconds": 0.0,
        "server": cpu(server.pid) - steady[2],
    }
    if counted < written / 2:
        raise SystemExit(
            f"the {guarantee} function was through before it could be measured: give it a longer backlog"
        )
    row(table, f"function, {guarantee}, one instance (first output after {first - began:.2f} s)", [result])


def report(plan: Plan, console: Console) -> None:
    """Measure and print everything."""
    began = time.perf_counter()
    throughput = Table(
        "100 B and 1 KiB", "messages/s", "server CPU-s/M, user + system", "client CPU-s/M", "of raw"
    )
    latency = Table("100 B, durable", "p50 / p99", "raw fdatasync 4 KiB", "raw round trip", "p50 of raw p50s")
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as name:
        directory = Path(name)
        starts = Starts.measure(directory, plan.starts)
        server = Server(directory)
        try:
            time.sleep(SETTLE_S)
            idle_mb, before = memory_mb(server.pid), cpu(server.pid)
            time.sleep(plan.idle_s)
            idle: Cpu = cpu(server.pid) - before
            latencies(server, latency, directory, plan)
            disk, loopback = messaging(server, throughput, directory, plan)
            loaded_mb = memory_mb(server.pid)
            for guarantee in ("ATLEAST_ONCE", "EFFECTIVELY_ONCE"):
                functions(server, throughput, directory, guarantee, plan.function_s)
        finally:
            server.stop()
    console.print(latency, throughput)
    console.print(
        f"raw: {disk:,.0f} MB/s of 1 MiB with fdatasync each (publish), {loopback:,.0f} MB/s over loopback (consume)\n"
        f"ready after {starts.first:.2f} s on an empty directory, {starts.again:.2f} s on a used one\n"
        f"memory {idle_mb:.0f} MB idle, {loaded_mb:.0f} MB loaded; idle use {idle.total / plan.idle_s:.1%} of a core\n"
        f"taken in {time.perf_counter() - began:.0f} s"
    )
    if (waiting := probes.pressure()) > 10:
        console.print(f"processors were contended ({waiting:.0f} %): take no tail latency from this run")


def main() -> None:
    """Read the arguments, run all benchmarks and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes: whether all of it runs"
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a publishing run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    full = Plan(
        seconds=options.seconds,
        rounds=options.rounds,
        starts=3,
        idle_s=10.0,
        in_flight=1500,
        paced=1000,
        function_s=3.0,
    )
    report(QUICK if options.quick else full, Console(width=None if sys.stdout.isatty() else 140))


if __name__ == "__main__":
    main()
