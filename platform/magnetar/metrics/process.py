"""What a process tells about itself: CPU, memory, files, the loop's lag and the collector's pauses."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from magnetar.environment.loop_health import LAG_BOUNDS_S, LoopHealth
from magnetar.metrics.sample import Sample, counter, gauge

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def process_started_at() -> float:
    """When the kernel started this process, in seconds since 1970: before the interpreter had run a line."""
    return time.time() - process_age_s()


def process_age_s() -> float:
    """Seconds since the kernel started this process, to a hundredth."""
    # Field 22 of proc(5)'s stat, counted after the command, which may itself hold blanks and brackets.
    after_command = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    since_boot = int(after_command[19]) / _TICKS_PER_S
    return time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot


def process_samples() -> Iterator[Sample]:
    """Under the names every Prometheus client library uses."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield counter("process_cpu_seconds_total", usage.ru_utime + usage.ru_stime)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    yield gauge("process_resident_memory_bytes", pages * _PAGE_BYTES)
    yield gauge("process_open_fds", len(os.listdir("/proc/self/fd")))
    yield gauge("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield gauge("process_threads", threading.active_count())
    yield gauge("process_start_time_seconds", process_started_at())


def loop_samples(health: LoopHealth) -> Iterator[Sample]:
    """How late the event loop was, and how long the garbage collector stopped it."""
    below = 0
    for bound, count in zip(LAG_BOUNDS_S, health.lag_counts, strict=False):
        below += count
        yield Sample("magnetar_loop_lag_seconds_bucket", {"le": f"{bound:g}"}, below, "histogram")
    yield Sample("magnetar_loop_lag_seconds_bucket", {"le": "+Inf"}, health.samples, "histogram")
    yield Sample("magnetar_loop_lag_seconds_sum", {}, health.lag_s, "histogram")
    yield Sample("magnetar_loop_lag_seconds_count", {}, health.samples, "histogram")
    yield gauge("magnetar_loop_lag_max_seconds", health.take_lag_max())
    yield counter("magnetar_gc_collections_total", health.collections)
    yield counter("magnetar_gc_pause_seconds_total", health.gc_pause_s)
    yield gauge("magnetar_gc_pause_max_seconds", health.gc_pause_max_s)


def memory_of_tree_bytes(pids: Collection[int]) -> int:
    """Proportional set size of processes together: memory shared among them counts once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # It has ended.
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
