"""A short one of what `make soak MINUTES=30` does with 200 topics and 2,000 connections."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from magnetar.testing.soak import Soak, SoakPlan

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def test_clients_come_and_go_and_the_broker_is_killed(tmp_path: Path) -> None:
    plan = SoakPlan(
        30.0, topics=16, connections=80, per_second=150, kills=1, seed=random.SystemRandom().randrange(10**6)
    )
    report = Soak(tmp_path, plan).run()
    assert not report.wrong, f"seed {plan.seed}\n{report.text()}\nstory and logs: {tmp_path}"
