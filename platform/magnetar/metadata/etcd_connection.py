"""Calls to an etcd cluster: to one server at a time, to the next when that one fails or falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from magnetar.environment.logs import get_logger
from magnetar.metadata import etcd_pb2 as pb
from magnetar.metadata.errors import MetadataError, SessionExpired, StoreClosed, StoreUnavailable

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]
_GRACE_S = 5.0
"""For what was asked of a server before we turned to another: it may only have been slow."""
_UNKNOWN_OUTCOME = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
STREAM_BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError)
"""What grpc raises on a stream that has ended: the second where its channel was closed, the third on writing to it."""

_log = get_logger("magnetar.metadata")


class Answer(Protocol):
    """What all of etcd's answers have."""

    @property
    def header(self) -> pb.ResponseHeader: ...

    @classmethod
    def FromString(cls, data: bytes) -> Answer: ...  # noqa: N802


A = TypeVar("A", bound=Answer)


class Compacted(MetadataError):
    """The revision that was asked for has been thrown away."""


class EtcdConnection:
    """A channel to one of several servers, and the highest revision any answer has told of."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers
        self._turn = 0
        self._channel = self._open()
        self._streams: set[Any] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self.closed = False
        self.revision = 0

    async def ask(self, method: str, request: Any, answer: type[A], timeout_s: float) -> A:
        """
        Raises:
            StoreUnavailable: no answer: it may have happened or not. The next call goes to another server.
            SessionExpired: the lease named in the request is gone.
            Compacted, MetadataError: the server refuses.
        """
        if self.closed:
            raise StoreClosed
        channel = self._channel
        call = channel.unary_unary(
            f"/etcdserverpb.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        try:
            answered: A = await call(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            self._failed(channel, method, error)
            raise AssertionError from error  # `_failed` always raises.
        except grpc.aio.UsageError as error:  # The channel has been closed meanwhile.
            raise StoreUnavailable(f"the connection to etcd was lost ({error})") from error
        except asyncio.CancelledError:
            if being_cancelled():
                raise
            raise StoreUnavailable(
                "the connection to etcd was given up for another; the operation may have happened"
            ) from None
        self.heard(answered)
        return answered

    def heard(self, answer: Answer) -> None:
        self.revision = max(self.revision, answer.header.revision)

    def stream(self, method: str, request: Any, answer: type[A]) -> Any:
        """A call both sides may talk on; `rotate` cancels it. Give it back by `done`."""
        call = self._channel.stream_stream(
            f"/etcdserverpb.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )()
        self._streams.add(call)
        return call

    def done(self, stream: Any) -> None:
        self._streams.discard(stream)
        stream.cancel()

    def rotate(self, channel: Any | None = None) -> None:
        """Turn to the next server, unless that has been done since `channel` failed."""
        if self.closed or (channel is not None and channel is not self._channel):
            return
        old, self._channel = self._channel, self._open()
        for stream in list(self._streams):
            stream.cancel()
        self._streams.clear()
        closing = asyncio.get_running_loop().create_task(old.close(_GRACE_S))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self.closed = True
        for stream in list(self._streams):
            stream.cancel()
        await asyncio.gather(self._channel.close(None), *self._closing)

    def _open(self) -> Any:
        server = self._servers[self._turn % len(self._servers)]
        self._turn += 1
        return grpc.aio.insecure_channel(server, options=_OPTIONS)

    def _failed(self, channel: Any, method: str, error: grpc.aio.AioRpcError) -> None:
        code, details = error.code(), error.details()
        if code is grpc.StatusCode.NOT_FOUND and "lease" in (details or ""):
            raise SessionExpired("the etcd lease of this session has expired") from error
        if code is grpc.StatusCode.OUT_OF_RANGE:
            raise Compacted(f"etcd {method}: {details}") from error
        if code not in _UNKNOWN_OUTCOME:
            raise MetadataError(f"etcd refused {method}: {code.name} {details}") from error
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            self.rotate(channel)
        raise StoreUnavailable(
            f"etcd gave no answer ({code.name} {details}); the operation may have happened"
        ) from error


def being_cancelled() -> bool:
    """Whether a CancelledError is meant for this task, rather than for a call whose channel was closed."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
