"""Answers the worker's questions about a window job: gRPC InstanceControl, like any instance."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from magnetar.instance import instance_control_pb2 as messages
from magnetar.spark.window_job import JobStatus

SERVICE = "proto.InstanceControl"
Answer: TypeAlias = Callable[[Empty, Any], Message]


class ControlServer:
    """Serves one job's status on a free loopback port. Rows without a time count as user exceptions."""

    def __init__(self, status: JobStatus) -> None:
        self._status = status
        self._server = grpc.server(ThreadPoolExecutor(max_workers=1, thread_name_prefix="control"))
        handlers: dict[str, tuple[Answer, type[Message]]] = {
            "GetFunctionStatus": (self._function_status, messages.FunctionStatus),
            "GetMetrics": (self._metrics, messages.MetricsData),
            "GetAndResetMetrics": (self._metrics, messages.MetricsData),
            "ResetMetrics": (self._nothing, Empty),
            "HealthCheck": (self._health, messages.HealthCheckResult),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                answer, request_deserializer=Empty.FromString, response_serializer=kind.SerializeToString
            )
            for name, (answer, kind) in handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))

    def start(self) -> int:
        """Serve; returns the port."""
        port: int = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        return port

    def stop(self) -> None:
        """Stop serving at once."""
        self._server.stop(None).wait()

    def _function_status(self, request: Empty, context: Any) -> messages.FunctionStatus:
        status = self._status
        found = messages.FunctionStatus(
            running=status.running,
            failureException=status.failure,
            numReceived=status.rows_received,
            numSuccessfullyProcessed=status.rows_received - status.rows_without_time,
            numUserExceptions=status.rows_without_time,
            lastInvocationTime=status.last_batch_ms,
            instanceId="0",
            ended=status.ended,
        )
        if status.rows_without_time:
            reason = "the payload has no readable time (see timestampExtractorClassName): in no window"
            found.latestUserExceptions.add(exceptionString=reason, msSinceEpoch=status.last_batch_ms)
        return found

    def _metrics(self, request: Empty, context: Any) -> messages.MetricsData:
        status = self._status
        return messages.MetricsData(
            receivedTotal=status.rows_received,
            processedSuccessfullyTotal=status.rows_received - status.rows_without_time,
            userExceptionsTotal=status.rows_without_time,
            lastInvocation=status.last_batch_ms,
        )

    def _nothing(self, request: Empty, context: Any) -> Empty:
        return Empty()

    def _health(self, request: Empty, context: Any) -> messages.HealthCheckResult:
        return messages.HealthCheckResult(success=True)
