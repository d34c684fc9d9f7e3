"""gRPC InstanceControl: what the worker asks of an instance. gRPC is imported when the first server starts."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from magnetar.instance.statistics import Counts, Incidents, Statistics

if TYPE_CHECKING:
    from google.protobuf.empty_pb2 import Empty

    import magnetar.instance.instance_control_pb2 as messages

SERVICE = "proto.InstanceControl"
STOP_GRACE_S = 0.5


class Reported(Protocol):
    """An instance, as far as control is concerned."""

    instance_id: int
    worker_id: str
    statistics: Statistics

    @property
    def component(self) -> str: ...

    @property
    def running(self) -> bool:
        """Whether user code is loaded and fed."""

    @property
    def ended(self) -> bool: ...

    @property
    def failure(self) -> str:
        """Why it does not run, or last did not; empty if nothing is wrong."""

    @property
    def healthy(self) -> bool:
        """Whether it may be left alone; False asks for a new host."""


class ControlServer:
    """Answers for one instance on a free loopback port."""

    def __init__(self, instance: Reported) -> None:
        self._instance = instance
        self._messages: Any = None
        self._server: Any = None

    async def start(self) -> int:
        """Serve; returns the port."""
        grpc: Any = import_module("grpc")
        aio: Any = import_module("grpc.aio")
        self._messages = import_module("magnetar.instance.instance_control_pb2")
        empty = import_module("google.protobuf.empty_pb2").Empty
        answers = {
            "GetFunctionStatus": self._status,
            "GetMetrics": self._metrics,
            "GetAndResetMetrics": self._metrics_and_reset,
            "ResetMetrics": self._reset,
            "HealthCheck": self._health,
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=empty.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, answer in answers.items()
        }
        self._server = aio.server()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)

    async def _status(self, request: Empty, context: Any) -> messages.FunctionStatus:
        instance, statistics = self._instance, self._instance.statistics
        counts = statistics.counts
        status: messages.FunctionStatus = self._messages.FunctionStatus(
            running=instance.running,
            failureException=instance.failure,
            numRestarts=statistics.restarts,
            numSuccessfullyProcessed=counts.processed,
            averageLatency=counts.average_latency_ms,
            lastInvocationTime=statistics.last_invocation_ms,
            instanceId=str(instance.instance_id),
            workerId=instance.worker_id,
            numReceived=counts.received,
            ended=instance.ended,
            numSkipped=statistics.skipped,
            numDeadLettered=statistics.dead_lettered,
        )
        user = {"source": "Source", "sink": "Sink"}.get(instance.component, "User")
        self._add(status, user, statistics.user)
        self._add(status, "System", statistics.system)
        return status

    def _add(self, status: messages.FunctionStatus, kind: str, incidents: Incidents) -> None:
        setattr(status, f"num{kind}Exceptions", incidents.total)
        latest = getattr(status, f"latest{kind}Exceptions")
        for incident in incidents.latest:
            latest.add(exceptionString=incident.text, msSinceEpoch=incident.at_ms)

    async def _metrics(self, request: Empty, context: Any) -> messages.MetricsData:
        statistics = self._instance.statistics
        counts, minute = statistics.counts, statistics.last_minute()
        data: messages.MetricsData = self._messages.MetricsData(
            receivedTotal=counts.received,
            processedSuccessfullyTotal=counts.processed,
            systemExceptionsTotal=counts.system_exceptions,
            userExceptionsTotal=counts.user_exceptions,
            avgProcessLatency=counts.average_latency_ms,
            lastInvocation=statistics.last_invocation_ms,
            receivedTotal_1min=minute.received,
            processedSuccessfullyTotal_1min=minute.processed,
            systemExceptionsTotal_1min=minute.system_exceptions,
            userExceptionsTotal_1min=minute.user_exceptions,
            avgProcessLatency_1min=minute.average_latency_ms,
        )
        for name, (total, count) in statistics.user_metrics.items():
            data.userMetrics[f"user_metric_{name}_sum"] = total
            data.userMetrics[f"user_metric_{name}_count"] = count
        return data

    async def _metrics_and_reset(self, request: Empty, context: Any) -> messages.MetricsData:
        data = await self._metrics(request, context)
        self._instance.statistics.reset_minute()
        return data

    async def _reset(self, request: Empty, context: Any) -> Empty:
        self._instance.statistics.counts = Counts()
        self._instance.statistics.reset_minute()
        empty: Empty = import_module("google.protobuf.empty_pb2").Empty()
        return empty

    async def _health(self, request: Empty, context: Any) -> messages.HealthCheckResult:
        result: messages.HealthCheckResult = self._messages.HealthCheckResult(success=self._instance.healthy)
        return result
