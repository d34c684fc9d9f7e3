"""What /metrics tells of functions, as their instances told it."""

from __future__ import annotations

from typing import Any, cast

from magnetar.worker.components import Components
from magnetar.worker.errors import NotReady
from magnetar.worker.metrics import WorkerMetrics
from magnetar.worker.status import InstanceMetrics, component_stats


class Told:
    async def all_stats(self) -> list[dict[str, Any]]:
        said = InstanceMetrics(
            received=7, processed=5, user_exceptions=2, average_latency_ms=1.5, user={"u": 3.0}
        )
        return [{"name": "t/n/f", "metrics": component_stats({0: said}, 1)}]


async def test_an_instance_has_a_series_for_each_figure() -> None:
    metrics = WorkerMetrics(lambda: cast("Components", Told()), cluster="c")
    assert [sample.value for sample in metrics.samples()] == [0], "nobody was asked yet"
    await metrics.ask()
    told = {sample.name: sample for sample in metrics.samples()}
    assert told["pulsar_function_worker_instance_count"].value == 1
    received = told["pulsar_function_received_total"]
    assert received.value == 7
    assert received.labels == {
        "cluster": "c",
        "tenant": "t",
        "namespace": "t/n",
        "name": "f",
        "instance_id": "0",
        "fqfn": "t/n/f",
    }
    assert told["pulsar_function_process_latency_ms_sum"].value == 7.5
    assert told["pulsar_function_user_exceptions_total"].value == 2
    assert told["pulsar_function_user_metric"].labels["metric"] == "u"


async def test_a_worker_that_stands_by_tells_of_none() -> None:
    def standing_by() -> Components:
        raise NotReady("another worker is on duty")

    metrics = WorkerMetrics(standing_by)
    await metrics.ask()
    assert [sample.value for sample in metrics.samples()] == [0]
