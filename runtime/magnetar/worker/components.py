"""What can be done with functions, sources and sinks: the verbs of the REST API, without HTTP.

Verbs on one component take turns. What a verb promises is durable before it answers, and the supervisor follows what
is durable: a worker that dies in between goes on from the registry when it is back.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.worker.broker_admin import BrokerAdmin
from magnetar.worker.component import Component, ComponentName, Kind, Package
from magnetar.worker.configs import config_of, input_patterns, input_topics, parse_config, updated_config
from magnetar.worker.control import InstanceControl
from magnetar.worker.deployment import check_deployment, prepare_topics, take_places
from magnetar.worker.errors import BadRequest, Conflict, NotFound, NotReady, WorkerError
from magnetar.worker.fetching import fetch, filename_of
from magnetar.worker.packages import PackageStore, Upload
from magnetar.worker.plans import Planner
from magnetar.worker.registry import Registry
from magnetar.worker.scheduling import Phase, Wanted
from magnetar.worker.settings import WorkerSettings
from magnetar.worker.shelf import Shelf
from magnetar.worker.status import (
    InstanceMetrics,
    Observed,
    component_stats,
    component_status,
    instance_stats,
    instance_status,
)
from magnetar.worker.supervisor import Supervisor

BUILTIN = "builtin://"
NOT_PERMITTED = "Operation not permitted"
CLEANUP_RETRY_S = 5.0

log = get_logger("magnetar.worker.components")


class Components:
    """The deployed components of one worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        registry: Registry,
        packages: PackageStore,
        planner: Planner,
        supervisor: Supervisor,
        control: InstanceControl,
        admin: BrokerAdmin,
        clock: Clock,
        shelf: Shelf | None = None,
    ) -> None:
        """`shelf`: where packages lie for other workers, should one take over."""
        self._shelf = shelf
        self._settings = settings
        self._registry = registry
        self._packages = packages
        self._planner = planner
        self._supervisor = supervisor
        self._control = control
        self._admin = admin
        self._clock = clock
        self._turns: WeakValueDictionary[ComponentName, asyncio.Lock] = WeakValueDictionary()
        self._cleanups: set[asyncio.Task[None]] = set()
        self._at_work = False

    async def resume(self) -> None:
        """After a start: run what should run, finish deletions that were cut short, drop unused packages."""
        self._at_work = True
        async for component in self._registry.readable():
            if component.deleting:
                self._finish_deletion(component)
            else:
                await self._fetch_package(component)
                self._apply(component)
        await self._drop_unused_packages()

    async def _fetch_package(self, component: Component) -> None:
        """What another worker has deployed. Where that fails, the component will say so when it is started."""
        package = component.package
        if self._shelf is None or package is None or package.builtin:
            return
        try:
            await self._shelf.fetch(package)
        except (
            Exception
        ) as error:  # Of the worker, the client or the disk: one component must not hold up the others.
            log.error("package.not_fetched", component=str(component.name), reason=repr(error))

    def halt(self) -> None:
        """End every process at once: another worker runs them, or will."""
        self._at_work = False
        for task in self._cleanups:
            task.cancel()
        self._supervisor.kill_all()

    async def stop(self) -> None:
        """Stop every process. What is deployed stays deployed."""
        self._at_work = False
        for task in self._cleanups:
            task.cancel()
        await asyncio.gather(*self._cleanups, return_exceptions=True)
        await self._supervisor.stop()

    # --- Deploying ------------------------------------------------------------------------------------------------

    async def register(
        self,
        kind: Kind,
        name: ComponentName,
        data: Mapping[str, Any],
        *,
        upload: Upload | None = None,
        url: str | None = None,
    ) -> None:
        """Create a component and start it. Raises BadRequest: it exists, or cannot work."""
        async with self._turn(name):
            existing = await self._registry.get(name)
            if existing is not None:
                raise BadRequest(_exists(existing))
            if kind is not Kind.FUNCTION and url is not None and url.startswith(BUILTIN):
                data = {**data, "archive": url}
            config = parse_config(kind, data, name)
            async with self._package(kind, config.to_dict(), upload, url) as package:
                if package is None:
                    raise BadRequest(f"{kind.title} Package is not provided: send `data` or `url`")
                await self._check(kind, config, package)
                await prepare_topics(config, self._admin)
                component = Component(
                    kind=kind,
                    name=name,
                    config=config.to_dict(),
                    package=package,
                    epoch=await self._registry.next_epoch(),
                    created_ms=self._clock.time_ms(),
                )
                self._check_at_work()
                try:
                    component = await self._registry.create(component)
                except Conflict as error:
                    raise BadRequest(f"{kind.title} {name.name} already exists") from error
            log.info("component.registered", component=str(name), kind=kind.value, epoch=component.epoch)
            await take_places(config, self._admin)
            self._apply(component)

    async def update(
        self,
        kind: Kind,
        name: ComponentName,
        data: Mapping[str, Any],
        *,
        upload: Upload | None = None,
        url: str | None = None,
    ) -> None:
        """Change a component and start it anew. Raises BadRequest: it does not exist, or nothing changes."""
        async with self._turn(name):
            component = await self._registry.get(name)
            if component is None or component.kind is not kind or component.deleting:
                raise BadRequest(_absent(kind, name))
            config = updated_config(component, data)
            async with self._package(kind, data, upload, url) as package:
                if config.to_dict() == component.config and package in (None, component.package):
                    raise BadRequest("Update contains no change")
                package = package or component.package
                assert package is not None
                await self._check(kind, config, package)
                await prepare_topics(config, self._admin)
                changed = component.begun_again(
                    config=config.to_dict(), package=package, revision=component.revision + 1
                )
                self._check_at_work()
                changed = await self._registry.change(changed)
            log.info("component.updated", component=str(name), revision=changed.revision)
            await take_places(config, self._admin)
            self._apply(changed)
        await self._drop_unused_packages()

    async def delete(self, kind: Kind, name: ComponentName) -> None:
        """Stop and remove a component, and its subscriptions unless its configuration keeps them."""
        async with self._turn(name):
            component = await self._found(kind, name)
            self._check_at_work()
            component = await self._registry.change(replace(component, deleting=True))
            log.info("component.deleted", component=str(name))
            self._check_at_work()
            task = self._finish_deletion(component)
        # Deleted it is, even where process or broker take longer: the rest goes on in the background.
        await asyncio.wait({task}, timeout=self._settings.stop_timeout_s)

    async def _check(self, kind: Kind, config: Any, package: Package) -> None:
        path = None if package.builtin else self._packages.path(package)
        await check_deployment(kind, config, package, path, self._admin)

    @asynccontextmanager
    async def _package(
        self, kind: Kind, data: Mapping[str, Any], upload: Upload | None, url: str | None
    ) -> AsyncIterator[Package | None]:
        """What the request brings as code, kept while it is looked at; None if it brings nothing."""
        if upload is not None:
            async with self._held(upload) as package:
                yield package
            return
        url = url or str((data.get("py") if kind is Kind.FUNCTION else data.get("archive")) or "")
        if not url:
            yield None
        elif url.startswith(BUILTIN):
            if kind is Kind.FUNCTION:
                raise BadRequest(f"{url}: there are no built-in functions; upload a package as `data`")
            yield Package("builtin", url)
        elif "://" not in url and not url.startswith("file:"):
            raise BadRequest(f"{url!r} is a path on the client's machine: upload that file as `data`")
        else:
            fetched = self._packages.begin(filename_of(url))
            try:
                async for piece in fetch(url, file_urls_allowed=self._settings.file_urls_allowed):
                    await fetched.write(piece)
                async with self._held(fetched) as package:
                    yield package
            finally:
                await fetched.discard()

    @asynccontextmanager
    async def _held(self, upload: Upload) -> AsyncIterator[Package]:
        """The package, gone again if the block does not come to its end."""
        try:
            async with self._packages.holding(upload) as package:
                if self._shelf is not None:
                    await self._shelf.put(package)
                yield package
        except BaseException:
            await self._drop_unused_packages()
            raise

    # --- Asking ---------------------------------------------------------------------------------------------------

    async def config(self, kind: Kind, name: ComponentName) -> Mapping[str, Any]:
        return (await self._found(kind, name)).config

    async def component(self, kind: Kind, name: ComponentName) -> Component:
        """Raises NotFound."""
        return await self._found(kind, name)

    async def names(self, kind: Kind, tenant: str, namespace: str) -> list[str]:
        return [
            component.name.name
            async for component in self._registry.in_namespace(tenant, namespace)
            if component.kind is kind and not component.deleting
        ]

    async def status(self, kind: Kind, name: ComponentName) -> dict[str, Any]:
        return component_status(await self._observed(await self._found(kind, name)))

    async def instance_status(self, kind: Kind, name: ComponentName, instance: int) -> dict[str, Any]:
        component = await self._found(kind, name)
        _check_instance(component, instance)
        return instance_status(await self._observed(component), instance)

    async def stats(self, kind: Kind, name: ComponentName) -> dict[str, Any]:
        component = await self._found(kind, name)
        metrics = await self._control.metrics(self._supervisor.control_ports(str(name)))
        return component_stats(metrics, component.parallelism)

    async def instance_stats(self, kind: Kind, name: ComponentName, instance: int) -> dict[str, Any]:
        component = await self._found(kind, name)
        _check_instance(component, instance)
        metrics = await self._control.metrics(self._supervisor.control_ports(str(name)))
        return instance_stats(metrics.get(instance, InstanceMetrics()))

    async def assignments(self) -> list[str]:
        """Fully qualified ids of the instances that should run here."""
        return [
            f"{component.name}:{instance}"
            async for component in self._registry.readable()
            for instance in component.running_instances
        ]

    async def all_stats(self) -> list[dict[str, Any]]:
        """Of the running components, by fully qualified name."""
        running = [key for key, _ in self._supervisor.running()]
        answers = await asyncio.gather(
            *(self._control.metrics(self._supervisor.control_ports(k)) for k in running)
        )
        return [
            {"name": key, "metrics": component_stats(metrics, len(metrics))}
            for key, metrics in zip(running, answers, strict=True)
        ]

    async def _observed(self, component: Component) -> Observed:
        key = str(component.name)
        reports = await self._control.reports(self._supervisor.control_ports(key))
        tail = await asyncio.to_thread(self._planner.log(component.kind, component.name).tail)
        return Observed(
            component=component,
            condition=self._supervisor.condition(key),
            reports=reports,
            pid=self._supervisor.pid(key),
            log_tail=tail,
            worker_id=self._settings.worker_id,
        )

    # --- Starting and stopping ------------------------------------------------------------------------------------

    async def start(self, kind: Kind, name: ComponentName, instance: int | None = None) -> None:
        """Run a stopped component, or instance, again. Raises BadRequest: it is not stopped."""
        await self._set_stopped(kind, name, instance, stopped=False)

    async def stop_component(self, kind: Kind, name: ComponentName, instance: int | None = None) -> None:
        """Stop a component, or an instance, until it is started. Raises BadRequest: it is stopped."""
        await self._set_stopped(kind, name, instance, stopped=True)

    async def restart(self, kind: Kind, name: ComponentName, instance: int | None = None) -> None:
        """Start a component's process anew; all its instances live in one. A failed one starts at once."""
        async with self._turn(name):
            component = await self._found(kind, name)
            if instance is not None:
                _check_instance(component, instance)
            if not component.running_instances or (instance is not None and instance in component.stopped):
                raise BadRequest(f"{NOT_PERMITTED}: it is stopped; start it instead")
            self._check_at_work()
            if component.ended is not None:
                component = await self._registry.change(component.begun_again())
            self._apply(component)
            self._supervisor.restart(str(name))

    async def _set_stopped(
        self, kind: Kind, name: ComponentName, instance: int | None, *, stopped: bool
    ) -> None:
        async with self._turn(name):
            component = await self._found(kind, name)
            if instance is not None:
                _check_instance(component, instance)
            meant = frozenset(range(component.parallelism) if instance is None else (instance,))
            now = component.stopped | meant if stopped else component.stopped - meant
            if now == component.stopped and component.ended is None:
                raise BadRequest(f"{NOT_PERMITTED}: it is {'stopped' if stopped else 'running'} already")
            self._check_at_work()
            component = await self._registry.change(component.begun_again(stopped=now))
            self._apply(component)
            if stopped and not component.running_instances:
                await self._supervisor.until(
                    str(name),
                    lambda condition: condition.phase in (Phase.STOPPED, Phase.FAILED),
                    self._settings.stop_timeout_s,
                )

    def has_ended(self, key: str) -> None:
        """Called when a component says that its input has ended: remember it, with its last numbers."""
        self._in_background(self._record_end(ComponentName(*key.split("/", 2))))

    async def _record_end(self, name: ComponentName) -> None:
        async with self._turn(name):
            component = await self._registry.get(name)
            if component is None or component.deleting or component.ended is not None:
                return
            observed = await self._observed(component)
            if observed.condition.phase is not Phase.ENDED:
                return  # It was started again meanwhile.
            status = component_status(observed)
            ended = tuple(instance["status"] for instance in status["instances"])
            self._apply(await self._registry.change(replace(component, ended=ended)))

    # --- Within ---------------------------------------------------------------------------------------------------

    def _check_at_work(self) -> None:
        """A verb may still be under way here when another worker has taken over, and knows nothing of it.

        Raises:
            NotReady
        """
        if not self._at_work:
            raise NotReady("another function worker takes over: look whether this was done, or retry")

    def _apply(self, component: Component) -> None:
        self._check_at_work()

        def plan(wanted: Wanted) -> Any:
            return self._planner.plan(component, wanted)

        wanted = self._planner.wanted(component)
        self._supervisor.want(str(component.name), wanted, plan, ended=component.ended is not None)

    def _finish_deletion(self, component: Component) -> asyncio.Task[None]:
        return self._in_background(self._clean_up(component))

    def _in_background(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._cleanups.add(task)
        task.add_done_callback(self._background_done)
        return task

    def _background_done(self, task: asyncio.Task[None]) -> None:
        self._cleanups.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("component.background_work_failed", error=repr(error))

    async def _clean_up(self, component: Component) -> None:
        """Everything that is left of a deleted component, the record last; repeated until it is done."""
        key = str(component.name)
        self._supervisor.withdraw(key)
        while not await self._supervisor.until_gone(key, self._settings.stop_timeout_s):
            log.warning("component.still_running", component=key, pid=self._supervisor.pid(key))
        while True:
            try:
                await self._remove_subscriptions(component)
                break
            except WorkerError as error:
                log.warning(
                    "component.cleanup_failed", component=key, reason=str(error), retry_s=CLEANUP_RETRY_S
                )
                await asyncio.sleep(CLEANUP_RETRY_S)
        # With what earlier epochs may have left: the name's next component has another epoch, and nothing yet.
        work_dir = self._planner.work_dir(component.kind, component.name, component.epoch).parent
        await asyncio.to_thread(shutil.rmtree, work_dir, ignore_errors=True)
        await self._registry.remove(component)
        await self._drop_unused_packages()

    async def _remove_subscriptions(self, component: Component) -> None:
        from magnetar.functions.config import SourceConfig

        config = config_of(component)
        if isinstance(config, SourceConfig) or not config.cleanup_subscription:
            return
        for topic in [*input_topics(config), *await self._matched_topics(input_patterns(config))]:
            await self._admin.delete_subscription(topic, config.subscription)

    async def _matched_topics(self, patterns: list[str]) -> list[str]:
        import re

        matched = []
        for pattern in patterns:
            _, tenant, namespace, _ = pattern.replace("://", "/", 1).split("/", 3)
            topics = await self._admin.topics(tenant, namespace)
            matched += [topic for topic in topics if re.fullmatch(pattern, topic)]
        return matched

    async def _drop_unused_packages(self) -> None:
        if not self._at_work:
            return  # What another worker puts on the shelf just now, no record names yet.
        try:
            elsewhere = self._shelf.remove_unused if self._shelf is not None else None
            await self._packages.remove_unused(self._used_packages, elsewhere)
        except (WorkerError, OSError) as error:  # They take space, and do no other harm.
            log.error("packages.not_dropped", reason=str(error))

    async def _used_packages(self) -> set[str]:
        return {
            component.package.sha256
            async for component in self._registry.all()
            if component.package is not None and not component.package.builtin
        }

    async def _found(self, kind: Kind, name: ComponentName) -> Component:
        component = await self._registry.get(name)
        if component is None or component.kind is not kind or component.deleting:
            raise NotFound(_absent(kind, name))
        return component

    def _turn(self, name: ComponentName) -> asyncio.Lock:
        lock = self._turns.get(name)
        if lock is None:
            lock = self._turns[name] = asyncio.Lock()
        return lock


def _check_instance(component: Component, instance: int) -> None:
    if not 0 <= instance < component.parallelism:
        raise BadRequest(
            f"{component.kind.title} {component.name.name} has no instance {instance}: "
            f"its parallelism is {component.parallelism}"
        )


def _exists(component: Component) -> str:
    if component.deleting:
        return f"{component.kind.title} {component.name.name} is still being deleted: try again in a moment"
    return f"{component.kind.title} {component.name.name} already exists"


def _absent(kind: Kind, name: ComponentName) -> str:
    return f"{kind.title} {name.name} doesn't exist"
