"""Processor time and memory of a process with all its descendants, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It ended while we looked.
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, frontier = [pid], [pid]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


@dataclass(frozen=True, slots=True)
class Cpu:
    """On-CPU seconds, the kernel's on behalf of the process apart."""

    user: float
    system: float

    @property
    def total(self) -> float:
        return self.user + self.system

    def __sub__(self, earlier: Cpu) -> Cpu:
        return Cpu(self.user - earlier.user, self.system - earlier.system)


def cpu(pid: int) -> Cpu:
    """What the tree has used: the threads' nanoseconds and the ticks of children already reaped, split as the ticks are."""
    total = system = 0.0
    for member in tree(pid):
        base = Path(f"/proc/{member}")
        try:
            ticks = list(map(int, (base / "stat").read_text().rpartition(")")[2].split()[11:15]))
            threads = [int((task / "schedstat").read_text().split()[0]) for task in (base / "task").iterdir()]
        except OSError:
            continue  # It ended while we looked.
        total += sum(threads) / 1e9 + (ticks[2] + ticks[3]) / TICKS
        system += (ticks[1] + ticks[3]) / TICKS
    return Cpu(total - system, system)


def memory_mb(pid: int) -> float:
    """Proportional set size of the tree: shared pages counted once."""
    total = 0
    for member in tree(pid):
        try:
            lines = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # It ended while we looked.
        total += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return total / 1024
