"""`make bench`: what a message costs, beside what the machine can do.

    python -m tests.benchmarks [--seconds 5] [--rounds 3]

For 100 B and 1 KiB, with the official client and with ours: durable publish and consume rates and processor
seconds per million messages of server and client; latency with one message in flight; throughput of one
function instance; start-up, idle memory and idle processor use. Every receipt waits for an fdatasync. Rounds alternate
between the clients; figures are medians, and a raw fdatasync and loopback probe frames each round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks import probes
from tests.benchmarks.processes import cpu_seconds, memory_mb
from tests.benchmarks.server import Server

FUNCTION = b"def process(input):\n    return input + '!'\n"
IDLE_S = 10.0


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
    before = cpu_seconds(server.pid)
    result = load(*arguments)
    result["server_cpu_seconds"] = cpu_seconds(server.pid) - before
    return result


def row(table: Table, name: str, results: list[dict[str, Any]]) -> None:
    """Add the medians of several rounds."""
    rate = statistics.median(r["messages"] / r["seconds"] for r in results)
    server = statistics.median(r["server_cpu_seconds"] / r["messages"] * 1e6 for r in results)
    client = statistics.median(r["cpu_seconds"] / r["messages"] * 1e6 for r in results)
    table.add_row(name, f"{rate:,.0f}", f"{server:.2f}", f"{client:.2f}")


def messaging(server: Server, table: Table, size: int, seconds: float, rounds: int) -> None:
    """Publish and consume, official client and ours in turn."""
    found: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        for client in ("official", "ours") if number % 2 == 0 else ("ours", "official"):
            topic = f"persistent://public/default/bench-{client}-{size}-{number}"
            produced = measure(server, client, "produce", server.service_url, topic, size, seconds)
            found.setdefault(f"{client} client: publish {size} B, durable", []).append(produced)
            count = min(produced["messages"], 300_000)
            consumed = measure(server, client, "consume", server.service_url, topic, count)
            found.setdefault(f"{client} client: consume {size} B, acknowledge", []).append(consumed)
    for name, results in sorted(found.items()):
        row(table, name, results)


def functions(server: Server, table: Table, directory: Path, guarantee: str) -> None:
    """Drain a backlog of 100 B messages through one instance."""
    name = guarantee.lower().replace("_", "-")
    source, target = (f"persistent://public/default/{name}-{end}" for end in ("in", "out"))
    produced = load("ours", "produce", server.service_url, source, 100, 1.0)
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
    before, began = cpu_seconds(server.pid), time.perf_counter()
    server.create_function(name, config, package)
    first = None
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
    if first is None or written < produced["messages"]:
        raise SystemExit(f"the {guarantee} function wrote {written} of {produced['messages']} messages")
    result = {
        "messages": written,
        "seconds": time.perf_counter() - first,
        "cpu_seconds": 0.0,
        "server_cpu_seconds": cpu_seconds(server.pid) - before,
    }
    row(table, f"function, {guarantee}, one instance (first output after {first - began:.2f} s)", [result])


def main() -> None:
    """Run all benchmarks and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a publishing run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as name:
        directory = Path(name)
        floor = Table("probe", "p50 / p99", title="The machine")
        floor.add_row("fdatasync 4 KiB, preallocated", str(probes.fsync(directory)))
        floor.add_row("loopback round trip 100 B", str(probes.loopback()))
        server = Server(directory)
        try:
            time.sleep(2)
            memory, before = memory_mb(server.pid), cpu_seconds(server.pid)
            time.sleep(IDLE_S)
            idle = (cpu_seconds(server.pid) - before) / IDLE_S
            table = Table("what", "messages/s", "server CPU-s/M", "client CPU-s/M", title="Throughput")
            for size in (100, 1024):
                messaging(server, table, size, options.seconds, options.rounds)
            latency = measure(server, "official", "latency", server.service_url, "bench-latency", 100, 1500)
            for guarantee in ("ATLEAST_ONCE", "EFFECTIVELY_ONCE"):
                functions(server, table, directory, guarantee)
            loaded = memory_mb(server.pid)
        finally:
            server.stop()
        sync = probes.fsync(directory)
        floor.add_row("fdatasync 4 KiB, afterwards", str(sync))
        one = probes.Latency.of(latency["times"])
        floor.add_row(
            "official client, one in flight, 100 B, durable", f"{one} ({one.p50 / sync.p50:.1f} × fdatasync)"
        )
        console.print(floor, table)
        console.print(
            f"ready after {server.ready_s:.2f} s; idle {memory:.0f} MB and {idle:.1%} of a core; loaded {loaded:.0f} MB"
        )
        if (waiting := probes.pressure()) > 10:
            console.print(f"processors were contended ({waiting:.0f} %): take no tail latency from this run")


if __name__ == "__main__":
    main()
