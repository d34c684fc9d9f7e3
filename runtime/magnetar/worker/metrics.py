"""The worker's figures, and those of the functions, sources and sinks that run on it, under Pulsar's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from magnetar.metrics.sample import Sample, counter, gauge
from magnetar.worker.errors import WorkerError

if TYPE_CHECKING:
    from magnetar.worker.components import Components

_FUNCTION = (
    ("received_total", "receivedTotal"),
    ("processed_successfully_total", "processedSuccessfullyTotal"),
    ("system_exceptions_total", "systemExceptionsTotal"),
    ("user_exceptions_total", "userExceptionsTotal"),
)


class WorkerMetrics:
    """Asks the instances before each page, and tells what they said.

    Args:
        components: those of this worker. Raises WorkerError while another worker is on duty.
        names: the labels that every sample has.
    """

    def __init__(self, components: Callable[[], Components], **names: str) -> None:
        self._components = components
        self._names = names
        self._told: list[dict[str, Any]] = []

    async def ask(self) -> None:
        """Let every running instance tell its figures."""
        try:
            components = self._components()
        except WorkerError:  # Another worker is on duty: it tells.
            self._told = []
        else:
            self._told = await components.all_stats()

    def samples(self) -> Iterator[Sample]:
        """As they were told last."""
        instances = sum(len(each["metrics"].get("instances", ())) for each in self._told)
        yield gauge("pulsar_function_worker_instance_count", instances, self._names)
        for component in self._told:
            tenant, namespace, name = component["name"].split("/", 2)
            for each in component["metrics"].get("instances", ()):
                labels = {
                    **self._names,
                    "tenant": tenant,
                    "namespace": f"{tenant}/{namespace}",
                    "name": name,
                    "instance_id": str(each["instanceId"]),
                    "fqfn": component["name"],
                }
                yield from _instance(each["metrics"], labels)


def _instance(said: dict[str, Any], labels: dict[str, str]) -> Iterator[Sample]:
    for name, field in _FUNCTION:
        yield counter(f"pulsar_function_{name}", said[field] or 0, labels)
    processed = said["processedSuccessfullyTotal"] or 0
    latency = said["avgProcessLatency"] or 0.0
    yield counter("pulsar_function_process_latency_ms_count", processed, labels)
    yield counter("pulsar_function_process_latency_ms_sum", latency * processed, labels)
    yield gauge("pulsar_function_last_invocation", said["lastInvocation"] or 0, labels)
    for name, value in sorted((said["userMetrics"] or {}).items()):
        yield gauge("pulsar_function_user_metric", value, {**labels, "metric": name})
