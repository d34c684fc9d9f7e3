"""What a role without a broker says over HTTP: /metrics, /status.html, what it mounts, and what it passes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar.admin.codes import of_status
from magnetar.admin.server import WebServer
from magnetar.environment.logs import get_logger
from magnetar.environment.loop_health import LoopHealth
from magnetar.metrics.exposition import CONTENT_TYPE
from magnetar.metrics.process import loop_samples, process_samples
from magnetar.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    from fastapi import APIRouter

    from magnetar.cli.settings.model import PlatformSettings
    from magnetar.metrics.sample import Collector

log = get_logger("magnetar.cli")


class RoleSite:
    """An ASGI application.

    Args:
        ready: whether the role serves: `/status.html` says OK then.
        load: makes the router of what lies below `prefixes`; called once, in a thread, when first needed.
        otherwise: answers everything else; None: 404.
    """

    def __init__(
        self,
        metrics: MetricsRegistry,
        ready: Callable[[], bool],
        *,
        load: Callable[[], APIRouter] | None = None,
        prefixes: Sequence[str] = (),
        otherwise: Callable[[Any, Any, Any], Any] | None = None,
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._load = load
        self._prefixes = prefixes
        self._otherwise = otherwise
        self._loading: asyncio.Task[Any] | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"]
        if path.rstrip("/") == "/metrics":
            await self._send_metrics(send)
        elif path == "/status.html":
            await (
                _send(send, 200, b"OK", "text/plain") if self._ready() else _refuse(send, 503, "not ready")
            )
        elif any(path == prefix or path.startswith(f"{prefix}/") for prefix in self._prefixes):
            scope.setdefault("state", {})["role"] = None
            await (await self._loaded())(scope, receive, send)
        elif self._otherwise is not None:
            await self._otherwise(scope, receive, send)
        else:
            await _refuse(send, 404, f"there is nothing at {path}; see /metrics and /status.html")

    async def _loaded(self) -> Any:
        if self._loading is None or (self._loading.done() and self._loading.exception() is not None):
            self._loading = asyncio.get_running_loop().create_task(asyncio.to_thread(self._build))
        return await asyncio.shield(self._loading)

    def _build(self) -> Any:
        from magnetar.admin.documented_app import routers_app

        return routers_app([] if self._load is None else [self._load])

    async def _send_metrics(self, send: Any) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", CONTENT_TYPE.encode())],
            }
        )
        async for chunk in self._metrics.page():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def serve_metrics(
    settings: PlatformSettings, port: int, collectors: Sequence[Collector]
) -> AsyncIterator[None]:
    """/metrics of `collectors`, of the process and of its loop, and /status.html, until left."""
    async with AsyncExitStack() as parts:
        health = LoopHealth()
        health.start()
        parts.callback(health.stop)
        metrics = MetricsRegistry()
        for collector in collectors:
            metrics.add(collector)
        metrics.add(process_samples)
        metrics.add(partial(loop_samples, health))
        web = WebServer(RoleSite(metrics, lambda: True), settings.web)
        await web.start(settings.host, port)
        parts.push_async_callback(web.stop)
        yield


async def _refuse(send: Any, status: int, reason: str) -> None:
    await _send(
        send, status, json.dumps({"reason": reason, "code": of_status(status)}).encode(), "application/json"
    )


async def _send(send: Any, status: int, body: bytes, content_type: str) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
