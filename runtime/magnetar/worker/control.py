"""What running instances say of themselves, over gRPC InstanceControl.

gRPC and its messages are loaded in a thread by the first question, so that a worker without components never pays for
them. An instance that does not answer is left out of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from magnetar.environment.logs import get_logger
from magnetar.worker.status import ExceptionReport, InstanceMetrics, InstanceReport

SERVICE = "/proto.InstanceControl/"
DEADLINE_S = 5.0

T = TypeVar("T")
log = get_logger("magnetar.worker.control")


class InstanceControl:
    """A client of the instances' control ports on this machine."""

    async def reports(self, ports: Mapping[int, int]) -> dict[int, InstanceReport]:
        return await self._ask_all(ports, "GetFunctionStatus", "FunctionStatus", _report)

    async def metrics(self, ports: Mapping[int, int]) -> dict[int, InstanceMetrics]:
        return await self._ask_all(ports, "GetMetrics", "MetricsData", _metrics)

    async def healthy(self, ports: Mapping[int, int]) -> bool:
        """Whether every instance answers that it is well."""
        answers = await self._ask_all(
            ports, "HealthCheck", "HealthCheckResult", lambda result: bool(result.success)
        )
        return len(answers) == len(ports) and all(answers.values())

    async def _ask_all(
        self, ports: Mapping[int, int], method: str, answer_type: str, convert: Callable[[Any], T]
    ) -> dict[int, T]:
        if not ports:
            return {}
        answers = await asyncio.gather(*(self._ask(port, method, answer_type) for port in ports.values()))
        return {
            instance: convert(answer)
            for instance, answer in zip(ports, answers, strict=True)
            if answer is not None
        }

    async def _ask(self, port: int, method: str, answer_type: str) -> Any:
        aio, messages, empty = await asyncio.to_thread(_load)
        async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary(
                SERVICE + method,
                request_serializer=empty.SerializeToString,
                response_deserializer=getattr(messages, answer_type).FromString,
            )
            try:
                return await call(empty(), timeout=DEADLINE_S)
            except aio.AioRpcError as error:
                log.debug("instance.unanswered", port=port, method=method, reason=error.details())
                return None


def _load() -> tuple[Any, Any, Any]:
    return (
        import_module("grpc.aio"),
        import_module("magnetar.instance.instance_control_pb2"),
        import_module("google.protobuf.empty_pb2").Empty,
    )


def _report(status: Any) -> InstanceReport:
    return InstanceReport(
        running=status.running,
        failure=status.failureException,
        restarts=status.numRestarts,
        received=status.numReceived,
        processed=status.numSuccessfullyProcessed,
        user_exceptions=status.numUserExceptions,
        latest_user=_exceptions(status.latestUserExceptions),
        system_exceptions=status.numSystemExceptions,
        latest_system=_exceptions(status.latestSystemExceptions),
        source_exceptions=status.numSourceExceptions,
        latest_source=_exceptions(status.latestSourceExceptions),
        sink_exceptions=status.numSinkExceptions,
        latest_sink=_exceptions(status.latestSinkExceptions),
        average_latency_ms=status.averageLatency,
        last_invocation_ms=status.lastInvocationTime,
        ended=status.ended,
        skipped=status.numSkipped,
        dead_lettered=status.numDeadLettered,
    )


def _exceptions(found: Any) -> tuple[ExceptionReport, ...]:
    return tuple(ExceptionReport(item.exceptionString, item.msSinceEpoch) for item in found)


def _metrics(data: Any) -> InstanceMetrics:
    return InstanceMetrics(
        received=data.receivedTotal,
        processed=data.processedSuccessfullyTotal,
        system_exceptions=data.systemExceptionsTotal,
        user_exceptions=data.userExceptionsTotal,
        average_latency_ms=data.avgProcessLatency,
        last_invocation_ms=data.lastInvocation,
        minute_received=data.receivedTotal_1min,
        minute_processed=data.processedSuccessfullyTotal_1min,
        minute_system_exceptions=data.systemExceptionsTotal_1min,
        minute_user_exceptions=data.userExceptionsTotal_1min,
        minute_average_latency_ms=data.avgProcessLatency_1min,
        user=dict(data.userMetrics),
    )
