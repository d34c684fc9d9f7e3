"""Status and stats as Pulsar's JSON has them, put together from the schedule and what the instances say. Pure.

Beyond Pulsar, each instance's status has `state` (the schedule's phase), `ended`, `pid`, `numDeadLettered`,
`numSkipped` (inputs whose results were stored already) and, where something went wrong, `logTail`; `error` says why
the process last failed until it has run well for a while again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.worker.component import Component, Kind
from magnetar.worker.scheduling import Condition, Phase

NOT_SCHEDULED = "Function has not been scheduled"


@dataclass(frozen=True, slots=True)
class ExceptionReport:
    text: str
    at_ms: int

    def to_json(self) -> dict[str, Any]:
        return {"exceptionString": self.text, "timestampMs": self.at_ms}


@dataclass(frozen=True, slots=True)
class InstanceReport:
    """What an instance says of itself. Source: InstanceCommunication.proto, FunctionStatus."""

    running: bool = True
    failure: str = ""
    restarts: int = 0
    received: int = 0
    processed: int = 0
    user_exceptions: int = 0
    latest_user: Sequence[ExceptionReport] = ()
    system_exceptions: int = 0
    latest_system: Sequence[ExceptionReport] = ()
    source_exceptions: int = 0
    latest_source: Sequence[ExceptionReport] = ()
    sink_exceptions: int = 0
    latest_sink: Sequence[ExceptionReport] = ()
    average_latency_ms: float = 0.0
    last_invocation_ms: int = 0
    ended: bool = False
    skipped: int = 0
    """Inputs not run again because their results were stored."""
    dead_lettered: int = 0


@dataclass(frozen=True, slots=True)
class InstanceMetrics:
    """An instance's counts, all-time and of the last minute. Source: InstanceCommunication.proto, MetricsData."""

    received: int = 0
    processed: int = 0
    system_exceptions: int = 0
    user_exceptions: int = 0
    average_latency_ms: float = 0.0
    last_invocation_ms: int = 0
    minute_received: int = 0
    minute_processed: int = 0
    minute_system_exceptions: int = 0
    minute_user_exceptions: int = 0
    minute_average_latency_ms: float = 0.0
    user: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Observed:
    """All that is known of a component at one moment."""

    component: Component
    condition: Condition
    reports: Mapping[int, InstanceReport]
    """By instance; those that did not answer are missing."""
    pid: int | None
    log_tail: Sequence[str]
    worker_id: str


def component_status(observed: Observed) -> dict[str, Any]:
    """Pulsar's FunctionStatus, SourceStatus or SinkStatus."""
    statuses = [instance_status(observed, number) for number in range(observed.component.parallelism)]
    return {
        "numInstances": len(statuses),
        "numRunning": sum(status["running"] for status in statuses),
        "instances": [{"instanceId": number, "status": status} for number, status in enumerate(statuses)],
    }


def instance_status(observed: Observed, number: int) -> dict[str, Any]:
    """One instance's `status`. An ended component keeps the numbers it ended with."""
    component, condition = observed.component, observed.condition
    report = observed.reports.get(number)
    last = component.ended or ()
    if report is None and condition.phase is Phase.ENDED and number < len(last):
        return {**last[number], "running": False, "ended": True, "state": Phase.ENDED.value}
    report = report or InstanceReport()
    stopped = number in component.stopped
    running = (
        not stopped
        and condition.phase in (Phase.RUNNING, Phase.ENDED)
        and observed.pid is not None
        and report.running
    )
    error = _error(condition, report, stopped=stopped, running=running)
    status: dict[str, Any] = {
        "running": running,
        "error": error,
        "numRestarts": condition.restarts + report.restarts,
        **_counts(component.kind, report),
        "workerId": observed.worker_id,
        "state": Phase.STOPPED.value if stopped else condition.phase.value,
        "ended": condition.phase is Phase.ENDED or report.ended,
        "pid": observed.pid,
    }
    if error:
        status["logTail"] = list(observed.log_tail)
    return status


def _error(condition: Condition, report: InstanceReport, *, stopped: bool, running: bool) -> str:
    if stopped:
        return ""
    if condition.failure:
        later = condition.next_start_at is not None
        return condition.failure + ("; it will be started again" if later else "")
    if report.failure:
        return report.failure
    if not running and condition.phase in (Phase.STARTING, Phase.BACKING_OFF):
        return NOT_SCHEDULED if condition.phase is Phase.BACKING_OFF else "it is starting"
    return ""


def _counts(kind: Kind, report: InstanceReport) -> dict[str, Any]:
    """What each kind calls its numbers. Functions fold connector exceptions into the system's, as Pulsar does."""
    if kind is Kind.SOURCE:
        return {
            "numReceivedFromSource": report.received,
            "numSystemExceptions": report.system_exceptions,
            "latestSystemExceptions": _exceptions(report.latest_system),
            "numSourceExceptions": report.source_exceptions,
            "latestSourceExceptions": _exceptions(report.latest_source),
            "numWritten": report.processed,
            "lastReceivedTime": report.last_invocation_ms,
        }
    if kind is Kind.SINK:
        return {
            "numReadFromPulsar": report.received,
            "numSystemExceptions": report.system_exceptions,
            "latestSystemExceptions": _exceptions(report.latest_system),
            "numSinkExceptions": report.sink_exceptions,
            "latestSinkExceptions": _exceptions(report.latest_sink),
            "numWrittenToSink": report.processed,
            "lastReceivedTime": report.last_invocation_ms,
            "numDeadLettered": report.dead_lettered,
        }
    return {
        "numReceived": report.received,
        "numSuccessfullyProcessed": report.processed,
        "numUserExceptions": report.user_exceptions,
        "latestUserExceptions": _exceptions(report.latest_user),
        "numSystemExceptions": report.system_exceptions + report.source_exceptions + report.sink_exceptions,
        "latestSystemExceptions": _exceptions(
            [*report.latest_system, *report.latest_source, *report.latest_sink]
        ),
        "averageLatency": report.average_latency_ms,
        "lastInvocationTime": report.last_invocation_ms,
        "numDeadLettered": report.dead_lettered,
        "numSkipped": report.skipped,
    }


def _exceptions(reports: Sequence[ExceptionReport]) -> list[dict[str, Any]]:
    return [report.to_json() for report in reports]


def component_stats(metrics: Mapping[int, InstanceMetrics], parallelism: int) -> dict[str, Any]:
    """Pulsar's FunctionStats: totals are sums, latency the mean of the instances' means."""
    known = list(metrics.values())
    return {
        "receivedTotal": sum(m.received for m in known),
        "processedSuccessfullyTotal": sum(m.processed for m in known),
        "systemExceptionsTotal": sum(m.system_exceptions for m in known),
        "userExceptionsTotal": sum(m.user_exceptions for m in known),
        "avgProcessLatency": _mean([m.average_latency_ms for m in known if m.processed]),
        "1min": {
            "receivedTotal": sum(m.minute_received for m in known),
            "processedSuccessfullyTotal": sum(m.minute_processed for m in known),
            "systemExceptionsTotal": sum(m.minute_system_exceptions for m in known),
            "userExceptionsTotal": sum(m.minute_user_exceptions for m in known),
            "avgProcessLatency": _mean([m.minute_average_latency_ms for m in known if m.minute_processed]),
        },
        "lastInvocation": max((m.last_invocation_ms for m in known if m.last_invocation_ms), default=None),
        "instances": [
            {"instanceId": number, "metrics": instance_stats(metrics.get(number, InstanceMetrics()))}
            for number in range(parallelism)
        ],
    }


def instance_stats(metrics: InstanceMetrics) -> dict[str, Any]:
    return {
        "receivedTotal": metrics.received,
        "processedSuccessfullyTotal": metrics.processed,
        "systemExceptionsTotal": metrics.system_exceptions,
        "userExceptionsTotal": metrics.user_exceptions,
        "avgProcessLatency": metrics.average_latency_ms if metrics.processed else None,
        "1min": {
            "receivedTotal": metrics.minute_received,
            "processedSuccessfullyTotal": metrics.minute_processed,
            "systemExceptionsTotal": metrics.minute_system_exceptions,
            "userExceptionsTotal": metrics.minute_user_exceptions,
            "avgProcessLatency": metrics.minute_average_latency_ms if metrics.minute_processed else None,
        },
        "lastInvocation": metrics.last_invocation_ms or None,
        "userMetrics": dict(metrics.user),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
