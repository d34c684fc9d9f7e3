"""What an application in JavaScript does with Pulsar, step by step.

The client's package holds no library: its install step downloads a prebuilt one, or builds it where libpulsar's
headers are. Where neither goes, the tour is left out, and the reason is npm's own.
"""

from __future__ import annotations

import pytest

from magnetar.testing.processes import MagnetarProcess
from tests.clients.toolchains import WITH_FETCHING, node_modules
from tests.clients.tour import check, take

KINDS = ("Exclusive", "Failover", "Shared", "KeyShared")
STEPS = [*(f"subscription {kind}" for kind in KINDS), "refused and given again", "readers"]

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("node"), WITH_FETCHING]


def test_node(platform: MagnetarProcess) -> None:
    directory = node_modules()
    told = take(["node", "tour.js", platform.web_url, platform.service_url], cwd=directory)
    for step in STEPS:
        check(told, step)
