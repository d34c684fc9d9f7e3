"""What an instance says over gRPC arrives in the worker; one that says nothing is left out."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from magnetar.instance.control import ControlServer
from magnetar.instance.statistics import Statistics
from magnetar.worker import control
from magnetar.worker.control import InstanceControl

pytestmark = pytest.mark.integration


@dataclass
class Instance:
    instance_id: int = 0
    worker_id: str = "w"
    component: str = "source"
    statistics: Statistics = field(default_factory=Statistics)
    running: bool = True
    ended: bool = True
    failure: str = "it hung"
    healthy: bool = False


async def test_reports_metrics_and_health_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "DEADLINE_S", 1.0)
    instance = Instance()
    instance.statistics.counts.received = 7
    instance.statistics.counts.processed = 6
    instance.statistics.user.add("ValueError: x", 17)
    instance.statistics.dead_lettered = 1
    server = ControlServer(instance)
    ports = {0: await server.start(), 3: 1}
    asked = InstanceControl()
    try:
        reports = await asked.reports(ports)
        assert list(reports) == [0], "nobody answers on port 1"
        report = reports[0]
        assert (report.running, report.ended, report.failure) == (True, True, "it hung")
        assert (report.received, report.processed, report.dead_lettered) == (7, 6, 1)
        assert [(e.text, e.at_ms) for e in report.latest_source] == [("ValueError: x", 17)]
        assert report.source_exceptions == 1
        assert (await asked.metrics(ports))[0].received == 7
        assert not await asked.healthy({0: ports[0]})
        instance.healthy = True
        assert await asked.healthy({0: ports[0]})
        assert not await asked.healthy(ports)
        assert await asked.healthy({}), "there is nobody to be unwell"
    finally:
        await server.stop()
