"""`make bench-peers`: Magnetar beside Apache Pulsar, Redis streams and RabbitMQ streams, in one run on one machine.

    python -m tests.benchmarks.peers [--rounds 3] [--seconds 5] [--only perf,python,ours] [--write docs/benchmarks.md]

A round measures every server once, in an order that turns about from round to round; the servers that are not measured
are stopped meanwhile (SIGSTOP). What is compared is the ratio within a round; the table shows its median and, in brackets,
the least and the greatest. Raw probes of the disk stand beside the rounds. A peer that cannot be had here is left out,
with the reason. Redis, hiredis and rstream are wanted by the interpreter that `--clients` names.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.benchmarks import probes
from tests.benchmarks.peers.pulsar_perf import PerfFailed, PulsarPerf
from tests.benchmarks.peers.servers import ApachePulsar, Magnetar, Peer, PeerMissing, RabbitMQ, Redis
from tests.benchmarks.processes import cpu, memory_mb

WINDOWS: Final = 3
CONTENDED: Final = 10.0
BEGIN: Final = "<!-- peers: written by `make bench-peers` -->"
END: Final = "<!-- end of peers -->"


@dataclass(slots=True, eq=False)
class Figure:
    """One figure of each server, a value a round."""

    what: str
    unit: str
    higher_is_better: bool
    goal: float | None
    """Of the ratio that tells how much better ours is."""
    values: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, peer: str) -> list[float]:
        """How many times better ours was than `peer`, a value a round."""
        pairs = zip(self.values.get(Magnetar.name, []), self.values.get(peer, []), strict=False)
        return [ours / theirs if self.higher_is_better else theirs / ours for ours, theirs in pairs]


class Bench:
    """The servers, the rounds, and what came of them."""

    def __init__(self, place: Path, clients: str, seconds: float) -> None:
        self.place = place
        self.clients = clients
        self.seconds = seconds
        self.peers: dict[str, Peer] = {}
        self.missing: list[str] = []
        self.figures: dict[str, Figure] = {}
        self.starts: dict[str, tuple[float, float]] = {}
        """By server: seconds until ready, MB when idle."""
        self.syncs: list[probes.Latency] = []
        self.contended = 0
        self._turn = 0

    def start(self, *kinds: Callable[[Path], Peer]) -> None:
        """Start each, and stop it until its turn."""
        for kind in kinds:
            began = time.perf_counter()
            try:
                peer = kind(self.place)
            except PeerMissing as error:
                self.missing.append(str(error))
                print(error, file=sys.stderr)
                continue
            self.peers[peer.name] = peer
            self.starts[peer.name] = (time.perf_counter() - began, memory_mb(peer.pid))
            peer.pause()

    def stop(self) -> None:
        """All of them."""
        for peer in self.peers.values():
            peer.stop()

    def measure(
        self, names: Sequence[str], turn: Callable[[Peer, int], dict[Figure, float]], number: int
    ) -> None:
        """One round: `turn` of each server that runs, one after the other."""
        present = [self.peers[name] for name in names if name in self.peers]
        self.syncs.append(probes.fsync(self.place, 300))
        for peer in present if number % 2 == 0 else present[::-1]:
            peer.resume()
            try:
                for figure, value in turn(peer, number).items():
                    figure.values.setdefault(peer.name, []).append(value)
                    print(
                        f"round {number + 1}, {peer.name}: {figure.what} {value:,.2f} {figure.unit}",
                        flush=True,
                    )
            finally:
                peer.pause()
        self.contended += probes.pressure() > CONTENDED

    def figure(self, what: str, unit: str, *, higher: bool, goal: float | None = None) -> Figure:
        """The figure of that name, made at its first use."""
        return self.figures.setdefault(what, Figure(what, unit, higher, goal))

    def load(self, module: str, *words: object, python: str = sys.executable) -> dict[str, Any]:
        """A load generator's result."""
        done = subprocess.run(
            [python, "-m", module, *map(str, words)], capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise SystemExit(f"{module} {words} failed:\n{done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    # The rows.

    def perf_produce(
        self, size: int, rate_goal: float, cpu_goal: float
    ) -> Callable[[Peer, int], dict[Figure, float]]:
        """As fast as pulsar-perf can, with its own defaults."""
        rate = self.figure(f"pulsar-perf produce, {size} B: rate", "messages/s", higher=True, goal=rate_goal)
        used = self.figure(f"pulsar-perf produce, {size} B: broker", "CPU s/M", higher=False, goal=cpu_goal)

        def turn(peer: Peer, number: int) -> dict[Figure, float]:
            topic = f"persistent://public/default/produce-{size}-{number}"
            options = ("--rate", "10000000", "--size", str(size), topic)
            run = self._perf("produce", peer, "produce", *options).windows(WINDOWS)
            return {rate: run.rate, used: run.server_cpu}

        return turn

    def perf_paced(self, peer: Peer, number: int) -> dict[Figure, float]:
        """1,000 messages of 100 B a second."""
        p50 = self.figure("pulsar-perf produce, 1,000/s of 100 B: p50", "ms", higher=False, goal=4)
        p99 = self.figure("pulsar-perf produce, 1,000/s of 100 B: p99", "ms", higher=False, goal=4)
        topic = f"persistent://public/default/paced-{number}"
        run = self._perf("paced", peer, "produce", "--rate", "1000", "--size", "100", topic).windows(WINDOWS)
        return {p50: run.p50_ms, p99: run.p99_ms}

    def perf_tail(self, peer: Peer, number: int) -> dict[Figure, float]:
        """A consumer at the end of a topic that is written at full speed."""
        rate = self.figure("pulsar-perf, tailing 1 KiB: delivered", "messages/s", higher=True, goal=5)
        share = self.figure("pulsar-perf, tailing 1 KiB: delivered of produced", "%", higher=True)
        topic = f"persistent://public/default/tail-{number}"
        consumer = self._perf("tail-consume", peer, "consume", topic)
        producer = self._perf("tail-produce", peer, "produce", "--rate", "10000000", "--size", "1024", topic)
        try:
            received = consumer.windows(WINDOWS + 1)
            sent = producer.windows(WINDOWS)
        finally:
            consumer.stop()
            producer.stop()
        return {rate: received.rate, share: 100 * received.rate / sent.rate}

    def python_sync(self, peer: Peer, number: int) -> dict[Figure, float]:
        """The official Python client, one message in flight."""
        p50 = self.figure("official Python client, send 100 B: p50", "us", higher=False, goal=5)
        topic = f"persistent://public/default/sync-{number}"
        result = self.load("tests.benchmarks.load", "official", "latency", peer.service_url, topic, 100, 800)
        return {p50: probes.Latency.of(result["times"]).p50}

    def own_clients(self, size: int, goal: float) -> Callable[[Peer, int], dict[Figure, float]]:
        """Each server's own Python client, as fast as it confirms."""
        rate = self.figure(f"own client, {size} B: confirmed", "messages/s", higher=True, goal=goal)
        used = self.figure(f"own client, {size} B: client + server", "CPU s/M", higher=False)

        def turn(peer: Peer, number: int) -> dict[Figure, float]:
            before = cpu(peer.pid).total
            if isinstance(peer, Redis | RabbitMQ):
                kind = "redis" if isinstance(peer, Redis) else "rabbitmq"
                words: tuple[object, ...] = (kind, "produce", peer.port, size, self.seconds)
                result = self.load("tests.benchmarks.peers.loads", *words, python=self.clients)
            else:
                topic = f"persistent://public/default/own-{size}-{number}"
                words = ("ours", "produce", peer.service_url, topic, size, self.seconds)
                result = self.load("tests.benchmarks.load", *words)
            spent = cpu(peer.pid).total - before + result["cpu_seconds"]
            return {rate: result["messages"] / result["seconds"], used: spent / result["messages"] * 1e6}

        return turn

    def own_sync(self, peer: Peer, number: int) -> dict[Figure, float]:
        """One message in flight, each server's own Python client."""
        p50 = self.figure("own client, send 100 B, one in flight: p50", "us", higher=False)
        if isinstance(peer, Redis):
            words: tuple[object, ...] = ("redis", "latency", peer.port, 100, 1000)
            result = self.load("tests.benchmarks.peers.loads", *words, python=self.clients)
        else:
            topic = f"persistent://public/default/one-{number}"
            result = self.load("tests.benchmarks.load", "ours", "latency", peer.service_url, topic, 100, 1000)
        return {p50: probes.Latency.of(result["times"]).p50}

    def _perf(self, name: str, peer: Peer, verb: str, *options: str) -> PulsarPerf:
        self._turn += 1
        place = self.place / f"perf-{self._turn}"
        place.mkdir()
        return PulsarPerf(place, name, peer.pid, verb, peer.service_url, *options)

    # The report.

    def report(self, rounds: int) -> str:
        """A section of docs/benchmarks.md."""
        sync = statistics.median(each.p50 for each in self.syncs)
        lines = [
            BEGIN,
            "",
            f"{rounds} rounds, {time.strftime('%Y-%m-%d')}. Raw fdatasync of 4 KiB: p50 {sync:.0f} us.",
            f"Measurements beside more than {CONTENDED:.0f} % processor pressure: {self.contended} of {len(self.syncs)}.",
            "",
            "| what | "
            + " | ".join(f"{name} ({peer.durability})" for name, peer in self.peers.items())
            + " | ours is better by (least-greatest) | goal |",
            "|---|" + "---:|" * (len(self.peers) + 2),
        ]
        for figure in self.figures.values():
            cells = [_number(figure.values.get(name)) for name in self.peers]
            told = []
            for name in self.peers:
                if name != Magnetar.name and (ratios := figure.ratios(name)):
                    label = "" if len(figure.values) == 2 else f"{name}: "
                    told.append(
                        f"{label}{statistics.median(ratios):.1f} x ({min(ratios):.1f}-{max(ratios):.1f})"
                    )
            goal = f"{figure.goal:g} x" if figure.goal else ""
            lines.append(
                f"| {figure.what}, {figure.unit} | {' | '.join(cells)} | {'; '.join(told)} | {goal} |"
            )
        for title, index in (("ready after, s", 0), ("memory when idle, MB", 1)):
            cells = [f"{self.starts[name][index]:,.1f}" for name in self.peers]
            lines.append(f"| {title} | {' | '.join(cells)} | | |")
        return "\n".join([*lines, "", *(f"Left out: {each}" for each in self.missing), END, ""])


def _number(values: list[float] | None) -> str:
    if not values:
        return ""
    middle = statistics.median(values)
    return f"{middle:,.0f}" if middle >= 100 else f"{middle:.2f}"


def write(document: Path, section: str) -> None:
    """Put the section where the last one stood, or at the end."""
    text = document.read_text()
    before, found, rest = text.partition(BEGIN)
    if found:
        rest = rest.partition(END)[2].lstrip("\n")
        document.write_text(before + section + rest)
    else:
        document.write_text(
            text.rstrip("\n") + "\n\n## Beside its peers\n\n`make bench-peers`.\n\n" + section
        )


def main() -> None:
    """Read the arguments, measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="length of a run of our client or a peer's"
    )
    parser.add_argument("--only", default="perf,python,ours", help="which groups of rows")
    parser.add_argument("--clients", default=sys.executable, help="the Python that has redis and rstream")
    parser.add_argument("--write", type=Path, help="the document to put the table into")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # So that the servers end, too.
    groups = set(options.only.split(","))
    pulsars = (Magnetar.name, ApachePulsar.name)
    with tempfile.TemporaryDirectory(prefix="magnetar-peers-") as name:
        bench = Bench(Path(name), options.clients, options.seconds)
        try:
            bench.start(Magnetar)
            if groups & {"perf", "python"}:
                bench.start(ApachePulsar)
            if "ours" in groups:
                bench.start(Redis, RabbitMQ)
            for number in range(options.rounds):
                if "perf" in groups:
                    bench.measure(pulsars, bench.perf_produce(100, 1.4, 3), number)
                    bench.measure(pulsars, bench.perf_produce(1024, 2, 4), number)
                    bench.measure(pulsars, bench.perf_paced, number)
                    bench.measure(pulsars, bench.perf_tail, number)
                if "python" in groups:
                    bench.measure(pulsars, bench.python_sync, number)
                if "ours" in groups:
                    logs = (Magnetar.name, Redis.name, RabbitMQ.name)
                    bench.measure(logs, bench.own_clients(100, 5), number)
                    bench.measure(logs, bench.own_clients(1024, 5), number)
                    bench.measure((Magnetar.name, Redis.name), bench.own_sync, number)
        except PerfFailed as error:
            raise SystemExit(str(error)) from None
        finally:
            bench.stop()
        section = bench.report(options.rounds)
        print(section)
        if options.write:
            write(options.write, section)


if __name__ == "__main__":
    main()
