"""Two minutes of what `make chaos MINUTES=30` does for longer."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from magnetar.testing.chaos import ChaosRun

pytestmark = [pytest.mark.integration, pytest.mark.zookeeper, pytest.mark.timeout(1800)]

SECONDS = 120.0


def test_nothing_acknowledged_is_lost_whatever_dies(tmp_path: Path) -> None:
    """New faults each time; a seed in CHAOS_SEED draws those of an earlier run again."""
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
    report = ChaosRun(tmp_path, SECONDS, seed).run()
    assert not report.wrong, f"{report.text()}\nstory and logs: {tmp_path}"
    assert report.receipted > 1000
