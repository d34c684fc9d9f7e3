"""What an application in Java does with Pulsar, step by step."""

from __future__ import annotations

import pytest

from magnetar.testing.processes import MagnetarProcess
from tests.clients.toolchains import HERE, WITH_FETCHING, java, java_class_path
from tests.clients.tour import check, steps, take

TOUR = HERE / "java" / "ClientTour.java"
STEPS = [f"batches compressed by {each}" for each in ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")] + steps(TOUR)

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("java"), WITH_FETCHING]


@pytest.fixture(scope="module")
def told(platform: MagnetarProcess) -> dict[str, str]:
    """What the tour told, which is taken once."""
    command = java(java_class_path(), str(TOUR), platform.web_url, platform.service_url)
    return take(command)


def test_the_tour_has_steps() -> None:
    assert len(STEPS) > 30


@pytest.mark.parametrize("step", STEPS)
def test_java(told: dict[str, str], step: str) -> None:
    check(told, step)
