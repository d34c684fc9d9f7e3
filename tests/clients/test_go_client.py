"""What an application in Go does with Pulsar, step by step."""

from __future__ import annotations

import pytest

from magnetar.testing.processes import MagnetarProcess
from tests.clients.toolchains import HERE, WITH_FETCHING, go_tour
from tests.clients.tour import check, steps, take

STEPS = steps(HERE / "go" / "tour.go")

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("go"), WITH_FETCHING]


@pytest.fixture(scope="module")
def told(platform: MagnetarProcess) -> dict[str, str]:
    """What the tour told, which is taken once."""
    return take([str(go_tour()), platform.web_url, platform.service_url])


def test_the_tour_has_steps() -> None:
    assert len(STEPS) > 12


@pytest.mark.parametrize("step", STEPS)
def test_go(told: dict[str, str], step: str) -> None:
    check(told, step)
