"""A worker around fakes: processes that exist on paper, and a broker that remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from fastapi import FastAPI

from magnetar.environment.clock import SystemClock
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.worker.component import Component, ComponentName
from magnetar.worker.control import InstanceControl
from magnetar.worker.errors import PlatformUnavailable
from magnetar.worker.launching import ExitReport, LaunchEvents, LaunchPlan
from magnetar.worker.registry import Registry
from magnetar.worker.scheduling import SchedulingRules
from magnetar.worker.settings import WorkerSettings
from magnetar.worker.status import ExceptionReport, InstanceMetrics, InstanceReport
from magnetar.worker.worker import Worker

T = TypeVar("T")
PACKAGE = b"class Shout:\n    def process(self, input, context):\n        return input.upper()\n"


@dataclass
class FakeChild:
    plan: LaunchPlan
    events: LaunchEvents
    pid: int | None
    stubborn: bool = False
    """It takes no notice of being asked to finish."""

    @property
    def package(self) -> bytes:
        return Path(self.plan.spec["package"]["path"]).read_bytes()

    def terminate(self) -> None:
        if not self.stubborn:
            self.exit("it exited with code 0")

    def kill(self) -> None:
        self.exit("it was killed by SIGKILL")

    def exit(self, reason: str, *, hopeless: bool = False) -> None:
        if self.pid is not None:
            self.pid = None
            report = ExitReport(reason, hopeless)
            asyncio.get_running_loop().call_soon(self.events.exited, report)


@dataclass
class FakeLauncher:
    """Processes that are ready at once, unless told otherwise."""

    children: list[FakeChild] = field(default_factory=list)
    ready_at_once: bool = True

    def launch(self, plan: LaunchPlan, events: LaunchEvents) -> FakeChild:
        child = FakeChild(plan, events, pid=1000 + len(self.children))
        self.children.append(child)
        if self.ready_at_once:
            ports = {instance: 5000 + instance for instance in plan.spec["instances"]}
            asyncio.get_running_loop().call_soon(events.ready, ports)
        return child

    @property
    def running(self) -> list[FakeChild]:
        return [child for child in self.children if child.pid is not None]


@dataclass
class FakeControl(InstanceControl):
    report: InstanceReport = field(
        default_factory=lambda: InstanceReport(
            received=5, processed=4, user_exceptions=1, latest_user=[ExceptionReport("ValueError: x", 17)]
        )
    )

    async def reports(self, ports: Mapping[int, int]) -> dict[int, InstanceReport]:
        return dict.fromkeys(ports, self.report)

    async def metrics(self, ports: Mapping[int, int]) -> dict[int, InstanceMetrics]:
        return {i: InstanceMetrics(received=5, processed=4, average_latency_ms=2.0 + i) for i in ports}

    well: bool = True

    async def healthy(self, ports: Mapping[int, int]) -> bool:
        return self.well


@dataclass
class FakeAdmin:
    namespaces: set[tuple[str, str]] = field(
        default_factory=lambda: {("public", "default"), ("public", "empty")}
    )
    deduplicated: list[str] = field(default_factory=list)
    subscriptions: list[tuple[str, str]] = field(default_factory=list)
    deleted_subscriptions: list[tuple[str, str]] = field(default_factory=list)
    existing_topics: list[str] = field(default_factory=list)
    refusal: str = ""

    async def has_tenant(self, tenant: str) -> bool:
        return any(tenant == known for known, _ in self.namespaces)

    async def has_namespace(self, tenant: str, namespace: str) -> bool:
        return (tenant, namespace) in self.namespaces

    async def enable_deduplication(self, topic: str) -> None:
        self._maybe_refuse()
        self.deduplicated.append(topic)

    async def create_subscription(self, topic: str, subscription: str) -> None:
        self._maybe_refuse()
        self.subscriptions.append((topic, subscription))

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        self._maybe_refuse()
        self.deleted_subscriptions.append((topic, subscription))

    async def delete_topic(self, topic: str) -> None:
        self._maybe_refuse()
        self.existing_topics.remove(topic)

    async def topics(self, tenant: str, namespace: str) -> list[str]:
        return self.existing_topics

    def _maybe_refuse(self) -> None:
        if self.refusal:
            raise PlatformUnavailable(self.refusal)


class Platform:
    """A worker, its fakes, and a client of its REST API."""

    def __init__(self, data_dir: Path, **settings: Any) -> None:
        self.metadata = MemoryEnsemble().connect()
        self.launcher = FakeLauncher()
        self.admin = FakeAdmin()
        self.control = FakeControl()
        rules = SchedulingRules(backoff_first_s=0.01, backoff_longest_s=0.02, stop_grace_s=0.05)
        self.settings = WorkerSettings(data_dir, scheduling=rules, stop_timeout_s=2, **settings)
        self.worker = self._new_worker()
        self.client = self._client()

    def _new_worker(self) -> Worker:
        return Worker(
            self.settings,
            metadata=self.metadata,
            service_url="pulsar://127.0.0.1:6650",
            web_url="http://127.0.0.1:8080",
            clock=SystemClock(),
            admin=self.admin,
            launcher=self.launcher,
            control=self.control,
        )

    def _client(self) -> httpx.AsyncClient:
        app = FastAPI()
        app.include_router(self.worker.router)
        transport = httpx.ASGITransport(app)
        return httpx.AsyncClient(transport=transport, base_url="http://worker/admin")

    async def restart_worker(self) -> None:
        """Another worker over the same metadata and disk, as after a crash of the first."""
        await self.client.aclose()
        await self.worker.stop()
        self.worker = self._new_worker()
        self.client = self._client()
        await self.worker.start()

    async def close(self) -> None:
        await self.client.aclose()
        await self.worker.stop()

    async def register(
        self,
        name: str = "shout",
        config: Mapping[str, Any] | None = None,
        *,
        kind: str = "function",
        package: bytes | None = PACKAGE,
        filename: str = "shout.py",
        url: str | None = None,
        method: str = "POST",
    ) -> httpx.Response:
        defaults = (
            {"className": "shout.Shout", "inputs": ["in"], "output": "out"} if kind == "function" else {}
        )
        parts: list[tuple[str, Any]] = [
            (f"{kind}Config", (None, json.dumps({**defaults, **(config or {})}), "application/json"))
        ]
        if url is not None:
            parts.append(("url", (None, url, "text/plain")))
        elif package is not None:
            parts.append(("data", (filename, package, "application/octet-stream")))
        return await self.client.request(method, f"/v3/{kind}s/public/default/{name}", files=parts)

    async def status(self, name: str = "shout", kind: str = "function") -> dict[str, Any]:
        answer = await self.client.get(f"/v3/{kind}s/public/default/{name}/status")
        assert answer.status_code == 200, answer.text
        status: dict[str, Any] = answer.json()
        return status

    def phase(self, name: str) -> str:
        return str(self.worker._supervisor.condition(f"public/default/{name}").phase)

    async def component(self, name: str) -> Component:
        component = await Registry(self.metadata).get(ComponentName("public", "default", name))
        assert component is not None
        return component

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the fakes have come to be so."""

        async def answer() -> bool:
            return condition()

        await self.eventually(answer, bool)

    async def eventually(self, ask: Callable[[], Awaitable[T]], satisfied: Callable[[T], bool]) -> None:
        """Ask until the answer satisfies."""
        deadline = time.monotonic() + 5
        while not satisfied(await ask()):
            assert time.monotonic() < deadline, "it never came to be"
            await asyncio.sleep(0.002)


@pytest.fixture
async def make_platform(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Platform]]]:
    made: list[Platform] = []

    async def make(**settings: Any) -> Platform:
        platform = Platform(tmp_path / "data", **settings)
        made.append(platform)
        await platform.worker.start()
        return platform

    yield make
    for platform in made:
        await platform.close()


@pytest.fixture
async def platform(make_platform: Callable[..., Awaitable[Platform]]) -> Platform:
    return await make_platform()
