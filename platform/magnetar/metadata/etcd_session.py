"""A session with etcd is a lease that is kept alive; when it has run out there, a new one is taken."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.metadata import etcd_pb2 as pb
from magnetar.metadata.errors import MetadataError, StoreClosed, StoreUnavailable
from magnetar.metadata.etcd_connection import STREAM_BROKEN, EtcdConnection, being_cancelled
from magnetar.metadata.session_lease import SessionLease
from magnetar.metadata.store import SessionState

_LEASE = 2 / 3
"""The share of the time to live that our belief lasts, from when a keep-alive was sent: 0020-metadata-leases.md."""
_HEARTBEAT = 1 / 8
_PATIENCE = 1 / 3
"""For one keep-alive: a server that does not answer in that time is left for the next."""
_RETRY_S = 0.1

_log = get_logger("magnetar.metadata")


class EtcdSession:
    """Keeps one lease alive after the other, and tells of it."""

    def __init__(
        self,
        connection: EtcdConnection,
        timeout_s: float,
        clock: Clock,
        tell: Callable[[SessionState], None],
    ) -> None:
        self._connection = connection
        self._asked_ttl_s = max(1, math.ceil(timeout_s))
        self._clock = clock
        self._tell = tell
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._ttl_s = float(self._asked_ttl_s)
        self._lost = False
        self.lease = SessionLease()
        self.id = 0
        """etcd's number of the lease; 0 while there is none."""

    @property
    def name(self) -> str:
        return f"{self.id:x}" if self.id else ""

    async def start(self) -> None:
        """Take the first lease. Raises StoreUnavailable."""
        await self._grant()
        self._task = asyncio.create_task(self._keep_alive(), name="etcd session")

    def look(self) -> None:
        """Something says that the lease is gone: ask now."""
        self._wake.set()

    async def close(self) -> None:
        """Give the lease back: all that hangs on it goes at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.lease.ended()
        if self.id:
            request = pb.LeaseRevokeRequest(ID=self.id)
            try:
                await self._connection.ask(
                    "Lease/LeaseRevoke", request, pb.LeaseRevokeResponse, self._ttl_s * _PATIENCE
                )
            except MetadataError as error:
                _log.info("session.left_to_expire", session=self.name, reason=str(error))

    async def _keep_alive(self) -> None:
        while True:
            self._wake.clear()
            try:
                if not self.id:
                    await self._grant()
                await self._send_sign()
                pause_s = self._ttl_s * _HEARTBEAT
            except StoreClosed:
                return
            except MetadataError as error:
                self.lease.given_up()
                if not self._lost and self.id:
                    self._lost = True
                    _log.warning("session.silent", session=self.name, reason=str(error))
                    self._tell(SessionState.LOST_CONNECTION)
                pause_s = _RETRY_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _grant(self) -> None:
        sign = self.lease.send("", self._clock.monotonic())
        request = pb.LeaseGrantRequest(TTL=self._asked_ttl_s)
        granted = await self._connection.ask(
            "Lease/LeaseGrant", request, pb.LeaseGrantResponse, self._asked_ttl_s * _PATIENCE
        )
        self.id, self._ttl_s, self._lost = granted.ID, float(granted.TTL), False
        if sign is not None:
            self.lease.answered(sign, "", self._ttl_s * _LEASE)
        _log.info("session.changed", state="connected", session=self.name, ttl_s=self._ttl_s)
        self._tell(SessionState.CONNECTED)

    async def _send_sign(self) -> None:
        sign = self.lease.send(self.name, self._clock.monotonic())
        if sign is None:  # Left over by a call that failed.
            self.lease.given_up()
            return
        request = pb.LeaseKeepAliveRequest(ID=self.id)
        stream = self._connection.stream("Lease/LeaseKeepAlive", request, pb.LeaseKeepAliveResponse)
        try:
            async with asyncio.timeout(self._ttl_s * _PATIENCE):
                await _write(stream, request)
                answer = await _read(stream)
        except TimeoutError:
            self._connection.rotate()
            raise StoreUnavailable("etcd does not answer keep-alives") from None
        except STREAM_BROKEN as error:
            self._connection.rotate()
            raise StoreUnavailable(f"etcd does not answer keep-alives: {error}") from error
        finally:
            self._connection.done(stream)
        self._connection.heard(answer)
        if answer.TTL <= 0:
            self._expired()
            return
        self.lease.answered(sign, self.name, answer.TTL * _LEASE)
        if self._lost:
            self._lost = False
            _log.info("session.changed", state="reestablished", session=self.name)
            self._tell(SessionState.REESTABLISHED)

    def _expired(self) -> None:
        _log.warning("session.changed", state="expired", session=self.name)
        self.lease.ended()
        self.id = 0
        self._lost = False
        self._tell(SessionState.EXPIRED)
        self._wake.set()


async def _write(stream: Any, request: pb.LeaseKeepAliveRequest) -> None:
    try:
        await stream.write(request)
    except asyncio.CancelledError:
        if being_cancelled():
            raise
        raise StoreUnavailable("the connection to etcd was given up") from None


async def _read(stream: Any) -> pb.LeaseKeepAliveResponse:
    """The next answer; a stream that was cancelled or ended is a server that does not answer."""
    try:
        answer = await stream.read()
    except asyncio.CancelledError:
        if being_cancelled():
            raise
        raise StoreUnavailable("the connection to etcd was given up") from None
    if not isinstance(answer, pb.LeaseKeepAliveResponse):
        raise StoreUnavailable("etcd has ended the stream of keep-alives")
    return answer
