"""`pulsar-perf` as a child, read while it runs: rates of its windows, and what the server used meanwhile."""

from __future__ import annotations

import re
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.benchmarks.peers.servers import java_command
from tests.benchmarks.processes import cpu

WINDOW_S = 2
WARM_UP_WINDOWS = 3
"""Left out at the beginning: the virtual machine compiles what is hot."""
END_TIMEOUT_S = 60.0

WINDOW = re.compile(
    r"Throughput (?:produced|received):\s*(?P<count>\d+) msg ---\s*(?P<rate>[\d.]+)\s*msg/s.*?"
    r"Latency: mean:.*?med:\s*(?P<p50>[\d.]+).*?99pct:\s*(?P<p99>[\d.]+)"
)
FAILURES = re.compile(r"failure\s+(?P<rate>[\d.]+) msg/s")


@dataclass(frozen=True, slots=True)
class PerfRun:
    """What one run said, without its warm-up. Milliseconds; processor seconds per million messages."""

    rate: float
    p50_ms: float
    p99_ms: float
    server_cpu: float


class PerfFailed(Exception):
    """pulsar-perf did not do what it was asked."""


class PulsarPerf:
    """One `pulsar-perf`, running."""

    def __init__(self, place: Path, name: str, server_pid: int, verb: str, url: str, *options: str) -> None:
        configuration = place / f"{name}.conf"
        configuration.write_text(f"brokerServiceUrl={url}\n")
        java = java_command(place, "info", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseG1GC")
        tool = "org.apache.pulsar.testclient.PulsarPerfTestTool"
        given = [verb, "--service-url", url, "--stats-interval-seconds", str(WINDOW_S), *options]
        self._name, self._server_pid = name, server_pid
        self._process = subprocess.Popen(
            [*java, tool, str(configuration), *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def windows(self, wanted: int) -> PerfRun:
        """Read `wanted` windows after the warm-up, then end it.

        Raises:
            PerfFailed: it ended before, or sends failed.
        """
        rates: list[float] = []
        p50s: list[float] = []
        p99s: list[float] = []
        first: tuple[int, float] | None = None
        last = (0, 0.0)
        seen = 0
        tail: list[str] = []
        try:
            for line in _lines(self._process.stdout):
                tail = [*tail[-20:], line]
                if (failures := FAILURES.search(line)) and float(failures["rate"]):
                    raise PerfFailed(f"pulsar-perf {self._name}: sends failed: {line}")
                if not (found := WINDOW.search(line)):
                    continue
                seen += 1
                last = (int(found["count"]), cpu(self._server_pid).total)
                if seen < WARM_UP_WINDOWS:
                    continue
                if seen == WARM_UP_WINDOWS:
                    first = last
                    continue
                rates.append(float(found["rate"]))
                p50s.append(float(found["p50"]))
                p99s.append(float(found["p99"]))
                if len(rates) == wanted:
                    break
        finally:
            self.stop()
        if first is None or len(rates) < wanted or last[0] == first[0]:
            raise PerfFailed(f"pulsar-perf {self._name} ended early:\n" + "".join(tail))
        used = (last[1] - first[1]) / (last[0] - first[0]) * 1e6
        return PerfRun(statistics.median(rates), statistics.median(p50s), statistics.median(p99s), used)

    def stop(self) -> None:
        """It reports and ends by SIGINT, as from a terminal."""
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline:
            if self._process.stdout is not None and not self._process.stdout.read(4096):
                break
        self._process.kill()
        self._process.wait()


def _lines(output: IO[str] | None) -> IO[str]:
    assert output is not None
    return output
