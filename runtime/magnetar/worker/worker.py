"""The worker: its parts put together, started, watched over and stopped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.worker.broker_admin import BrokerAdmin, RestBrokerAdmin
from magnetar.worker.components import Components
from magnetar.worker.control import InstanceControl
from magnetar.worker.duty import Duty
from magnetar.worker.errors import NotReady
from magnetar.worker.launching import Launcher
from magnetar.worker.leash import Leash
from magnetar.worker.log_file import LogFile
from magnetar.worker.packages import PackageStore
from magnetar.worker.plans import Planner
from magnetar.worker.process import ProcessLauncher
from magnetar.worker.registry import Registry
from magnetar.worker.settings import WorkerSettings
from magnetar.worker.shelf import Shelf
from magnetar.worker.supervisor import Supervisor
from magnetar.worker.triggering import Trigger
from magnetar.worker.uploads import UploadArea

if TYPE_CHECKING:
    from fastapi import APIRouter, Request

    from magnetar.metadata.store import MetadataStore
    from magnetar.security.authorizer import Action, Authorizer

log = get_logger("magnetar.worker")


class Worker:
    """Runs functions, sources and sinks on this machine.

    Args:
        service_url, web_url: of the broker that serves the components, and whose admin API the worker asks.
        admin: asks the broker in another way than over `web_url`.
        launcher: starts processes in another way.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        metadata: MetadataStore,
        service_url: str,
        web_url: str,
        clock: Clock,
        authorizer: Authorizer | None = None,
        admin: BrokerAdmin | None = None,
        launcher: Launcher | None = None,
        control: InstanceControl | None = None,
    ) -> None:
        self.settings = settings
        self.service_url = service_url
        self.web_url = web_url
        self._authorizer = authorizer
        self.packages = PackageStore(settings.data_dir / "packages", settings.package_bytes_max)
        self.uploads = UploadArea(settings.data_dir / "uploads", settings.package_bytes_max)
        self._control = control or InstanceControl()
        self._leash = Leash(metadata, clock, self._lease_sure_again)
        self._supervisor = Supervisor(
            launcher or ProcessLauncher(self._leash), settings.scheduling, clock, self._has_ended
        )
        planner = Planner(settings, self.packages, service_url, web_url)
        admin = admin or RestBrokerAdmin(web_url)
        self.trigger = Trigger(service_url, settings.worker_id)
        shelf = None if self._leash.endless else Shelf(self.packages, admin, self.trigger.client)
        self._components = Components(
            settings,
            registry=Registry(metadata),
            packages=self.packages,
            planner=planner,
            supervisor=self._supervisor,
            control=self._control,
            admin=admin,
            clock=clock,
            shelf=shelf,
        )
        self._duty = Duty(
            metadata,
            settings.worker_id,
            web_url,
            begin=self._components.resume,
            end=self._components.halt,
        )
        self._watch: asyncio.Task[None] | None = None

    @property
    def router(self) -> APIRouter:
        """`/admin/v3/functions`, `sources`, `sinks` and `/admin/v2/worker`."""
        from magnetar.worker.rest import build_router

        return build_router(self)

    @property
    def running(self) -> bool:
        return self._watch is not None

    @property
    def web_port(self) -> int:
        return urlsplit(self.web_url).port or 0

    async def authorize(self, request: Request, action: Action, resource: str) -> None:
        """Ask whether whoever sends `request` may do this. Raises Forbidden."""
        if self._authorizer is not None:
            await self._authorizer.authorize(getattr(request.state, "role", None), action, resource)

    @property
    def components(self) -> Components:
        """Raises NotReady before the worker has started and after it has stopped; Elsewhere while another is on duty."""
        if self._watch is None:
            raise NotReady("the function worker is not running")
        self._duty.check()
        return self._components

    async def start(self) -> None:
        """Accept requests, and bring back what is deployed, unless another worker does: then stand by."""
        await asyncio.to_thread(self.packages.prepare)
        await asyncio.to_thread(self.uploads.prepare)
        self._leash.start()
        await self._duty.start()
        self._watch = asyncio.get_running_loop().create_task(self._watch_over())
        log.info("worker.started", worker_id=self.settings.worker_id)

    async def stop(self) -> None:
        """Stop all processes, gracefully while the rules' grace lasts. What is deployed stays deployed."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        await self._components.stop()
        await self._duty.stop()
        await self._leash.stop()
        await self.trigger.close()
        log.info("worker.stopped", worker_id=self.settings.worker_id)

    def _lease_sure_again(self) -> None:
        """Processes ended with the lease; nobody has taken over meanwhile, or we would have been told."""
        if self._duty.on_duty:
            self._supervisor.restart_failed()

    def _has_ended(self, key: str) -> None:
        self._components.has_ended(key)

    async def _watch_over(self) -> None:
        """Now and then: turn logs over, and replace processes that live but do not answer."""
        unanswered: dict[tuple[str, int], int] = {}
        while True:
            await asyncio.sleep(self.settings.health_check_interval_s)
            try:
                await asyncio.to_thread(_turn_over, [plan.log for plan in self._supervisor.plans()])
                unanswered = await self._check_health(unanswered)
            except Exception as error:  # Whatever it is, the next round may do better.
                log.exception("worker.watch_failed", error=repr(error))

    async def _check_health(self, unanswered: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """How often in a row each running process has not answered; too often, and it is replaced."""
        running = list(self._supervisor.running())
        answers = await asyncio.gather(
            *(self._control.healthy(self._supervisor.control_ports(key)) for key, _ in running)
        )
        silent = {
            launched: unanswered.get(launched, 0) + 1
            for launched, healthy in zip(running, answers, strict=True)
            if not healthy
        }
        for (key, launch), times in silent.items():
            if times >= self.settings.health_checks_failed_max:
                self._supervisor.unresponsive(
                    key, launch, f"it did not answer {times} health checks in a row"
                )
        return silent


def _turn_over(logs: list[LogFile]) -> None:
    for log_file in logs:
        try:
            log_file.turn_over()
        except OSError as error:  # A full disk must not stop the watch.
            log.error("log.not_turned_over", path=str(log_file.path), error=str(error))
