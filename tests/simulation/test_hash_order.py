"""The same seed tells the same story whatever strings hash to: no core goes through a set, nor asks what hash order says.

Each world is told in two processes that differ in PYTHONHASHSEED alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEDGER = """
from magnetar.simulation.ledger_world import LedgerWorld
print([LedgerWorld(seed).run() for seed in range(20)])
"""
LOG = """
from magnetar.simulation.log_world import LogWorld
for seed in range(10):
    world = LogWorld(seed)
    print(world.run(), world._sent, world._stored, world.loop.time())
"""
SUBSCRIPTION = """
from tests.simulation.broker.lives import LIVES
from tests.simulation.broker.stories import tell
for life in LIVES.values():
    for seed in range(20):
        print(tell(life, seed))
"""
DELIVERY = """
from tests.simulation.instance.test_delivery_world import exact
for seed in range(20):
    world = exact(seed)
    print(world.topics, world.kills, world.now)
"""


@pytest.mark.parametrize(
    "story", [LEDGER, LOG, SUBSCRIPTION, DELIVERY], ids=["ledger", "log", "subscription", "delivery"]
)
def test_no_story_depends_on_hash_order(story: str) -> None:
    def told(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "import logging; logging.disable(50)\n" + story],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert not done.returncode, done.stderr[-2000:]
        return done.stdout

    first = told("1")
    assert len(first) > 1000
    assert told("2") == first
