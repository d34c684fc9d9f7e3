"""Crash points: nothing unless asked for, and then a death without farewell."""

from __future__ import annotations

import subprocess
import sys

import pytest

from magnetar.environment import crash

PASSES = """
from magnetar.environment.crash import crash_point
for n in range(5):
    crash_point("other")
    crash_point("here")
    print(n, flush=True)
"""


def passes_before_death(variable: str | None) -> tuple[int, int]:
    ended = subprocess.run(
        [sys.executable, "-c", PASSES],
        env={} if variable is None else {crash.VARIABLE: variable},
        capture_output=True,
        text=True,
        timeout=30,
    )
    return len(ended.stdout.split()), ended.returncode


def test_nothing_happens_unless_asked_for() -> None:
    assert passes_before_death(None) == (5, 0)
    assert passes_before_death("elsewhere") == (5, 0)


def test_death_at_the_nth_passage() -> None:
    assert passes_before_death("here") == (0, -9)
    assert passes_before_death("here:3") == (2, -9)


def test_a_senseless_count_is_refused() -> None:
    with pytest.raises(ValueError, match="NAME:N"):
        crash.arm("here:soon")
    crash.arm(None)
