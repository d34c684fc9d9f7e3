"""Tours print a line for each step, `ok NAME` or `FAIL NAME: why`; each step is a test."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

TIMEOUT_S = 280


def steps(source: Path) -> list[str]:
    """The names of the steps in a tour's source."""
    return re.findall(r'step\("([^"]+)",', source.read_text())


def take(command: Sequence[str], cwd: Path | None = None) -> dict[str, str]:
    """What became of each step: "" if it went well. Everything else that was printed is under ""."""
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL
        )
        printed, complaints = done.stdout, done.stderr
    except subprocess.TimeoutExpired as late:
        printed = (late.stdout or b"").decode()
        complaints = f"not done within {TIMEOUT_S} s\n" + (late.stderr or b"").decode()
    told = {"": complaints[-4000:]}
    for line in printed.splitlines():
        if line.startswith("ok "):
            told[line[3:]] = ""
        elif line.startswith("FAIL "):
            name, _, why = line[5:].partition(": ")
            told[name] = why or "it failed"
    return told


def check(told: dict[str, str], step: str) -> None:
    """Raises AssertionError: the step failed, or was not reached."""
    assert step in told, f"it was not reached: {told['']}"
    assert not told[step], told[step]
