"""What functions, sinks and sources have in common: a client, a user process, and a life with ups and downs."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from magnetar.client.client import Client
from magnetar.client.errors import ClientError
from magnetar.environment.clock import Clock
from magnetar.environment.logs import Logger, get_logger
from magnetar.functions.config import SourceConfig
from magnetar.functions.process.job import Job
from magnetar.functions.process.wire import ToHost, ToProcess
from magnetar.instance.admin_calls import AdminCallFailed, AdminCalls
from magnetar.instance.errors import GuaranteeUnavailable, InputRestarted, InstanceError
from magnetar.instance.keeper import ProcessKeeper, ProcessPlan, hang_limit_s
from magnetar.instance.log_topic import LogTopic
from magnetar.instance.spec import Spec
from magnetar.instance.statistics import Statistics

HANG_LIMIT_S = 300.0
RETRY_S = 0.5
RETRY_MAX_S = 30.0
MEMORY_BYTES = 1 << 30
"""For the client's producers. What is in hand is bounded before it comes to that."""
DEDUPLICATION_WAIT_S = 10.0


class Instance(ABC):
    """Opens everything, works until it is stopped or its input ends, and starts over when something breaks."""

    def __init__(self, spec: Spec, instance_id: int, import_paths: tuple[str, ...], clock: Clock) -> None:
        self.spec = spec
        self.instance_id = instance_id
        self.worker_id = spec.worker_id
        self.clock = clock
        self.statistics = Statistics()
        self.ended = False
        self.log: Logger = get_logger("magnetar.instance").bind(
            function=spec.config.fqfn, instance=instance_id
        )
        self.started = asyncio.Event()
        """Set when user code was first loaded and everything is open."""
        self.admin = AdminCalls(spec.web_url)
        self._import_paths = import_paths
        self._failure = ""
        self._broken: asyncio.Future[None] | None = None
        self._client: Client | None = None
        self._keeper: ProcessKeeper | None = None
        self._log_topic: LogTopic | None = None

    # What control asks

    @property
    def component(self) -> str:
        return self.spec.component

    @property
    def running(self) -> bool:
        return self.ended or (self._keeper is not None and self._keeper.process is not None)

    @property
    def failure(self) -> str:
        return self._failure or (self._keeper.failure if self._keeper is not None else "")

    @property
    def healthy(self) -> bool:
        """The host answers; a user process that fails is its own business, and shown in the status."""
        return True

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def keeper(self) -> ProcessKeeper:
        assert self._keeper is not None
        return self._keeper

    # Its life

    async def run(self) -> None:
        """Work until the input has ended, or until cancelled.

        Raises:
            UserCodeRefused: only another package or config can help.
        """
        failures = 0
        while True:
            began = self.clock.monotonic()
            try:
                await self._work()
                self._failure = ""
                return
            except (ClientError, AdminCallFailed, GuaranteeUnavailable, InputRestarted) as error:
                self._failure = f"{type(error).__name__}: {error}"
                self.statistics.system_failed(self._failure, self.clock.time_ms())
                failures = 1 if self.clock.monotonic() - began > RETRY_MAX_S else failures + 1
                wait_s = min(RETRY_S * 2 ** min(failures - 1, 10), RETRY_MAX_S)
                self.log.warning("instance.broken", reason=self._failure, again_in_s=wait_s)
            await asyncio.sleep(wait_s)

    async def _work(self) -> None:
        """One life: open, work, close."""
        spec = self.spec
        loop = asyncio.get_running_loop()
        self._broken = loop.create_future()
        self._client = Client(spec.service_url, memory_limit_bytes=MEMORY_BYTES)
        tasks: list[asyncio.Task[None]] = []
        graceful = False
        self._prepare()
        try:
            if spec.config.log_topic:
                self._log_topic = LogTopic(
                    self._client, spec.config.log_topic, spec.config.fqfn, self.instance_id
                )
                await self._log_topic.open()
            job = await self._open()
            plan = ProcessPlan(
                job,
                last_words=self._log_path(".stderr"),
                runtime_flags=spec.config.runtime_flags or "",
                hang_limit_s=self._hang_limit_s(),
            )
            self._keeper = ProcessKeeper(plan, self, self.statistics, self.clock)
            self._before_work()
            tasks.append(loop.create_task(self._keeper.run(), name=f"user process of {spec.config.fqfn}"))
            tasks.append(loop.create_task(self._until_ended(), name=f"work of {spec.config.fqfn}"))
            await asyncio.wait([*tasks, self._broken], return_when=asyncio.FIRST_COMPLETED)
            for done in (self._broken, *tasks):
                if done.done():
                    done.result()
        except asyncio.CancelledError:
            graceful = True
            raise
        finally:
            await self._shut(tasks, graceful=graceful)

    async def _shut(self, tasks: list[asyncio.Task[None]], *, graceful: bool) -> None:
        """User code first, while its last words can still be published; then what is open towards the broker."""
        if graceful and self.running:
            await self._drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert self._broken is not None
        if self._broken.done() and not self._broken.cancelled():
            self._broken.exception()  # Seen, whatever else went wrong first.
        await self._close()
        if self._log_topic is not None:
            await self._log_topic.close()
            self._log_topic = None
        if self._client is not None:
            await asyncio.gather(self._client.close(), return_exceptions=True)
            self._client = None

    def session_failed(self, error: Exception) -> None:
        """Nothing can go on until everything is opened anew."""
        if self._broken is not None and not self._broken.done():
            self._broken.set_exception(
                error if isinstance(error, (ClientError, InstanceError)) else ClientError(str(error))
            )

    @abstractmethod
    def _prepare(self) -> None:
        """Begin a life: with empty hands."""

    async def _drain(self) -> None:
        """Take in nothing more and finish what is in hand, within a few seconds."""

    @abstractmethod
    async def _open(self) -> Job:
        """Open what the work needs and say what the user process is to run. Raises ClientError."""

    def _before_work(self) -> None:
        """The keeper is there, its process is not yet."""

    @abstractmethod
    async def _until_ended(self) -> None:
        """Work; returns when the input has ended and everything that came of it is stored."""

    @abstractmethod
    async def _close(self) -> None:
        """Let go of what `_open` opened, half of it too."""

    # The user process

    @abstractmethod
    def process_ready(self) -> None: ...

    @abstractmethod
    def process_lost(self, reason: str) -> None: ...

    def process_frame(self, kind: int, body: memoryview) -> None:
        """What is the same for all components; others add to it."""
        if kind == ToHost.METRICS:
            self.statistics.measured(json.loads(bytes(body)))
        elif kind == ToHost.LOGS and self._log_topic is not None:
            self._log_topic.publish(json.loads(bytes(body)))

    def answer(self, call: int, **fields: Any) -> None:
        """Answer a call of the user process."""
        process = self.keeper.process
        if process is not None:
            process.send_json(ToProcess.ANSWER, {"call": call, **fields})

    def job(self, **fields: Any) -> Job:
        """The job, with what all components' have."""
        spec, config = self.spec, self.spec.config
        hang_limit = self._hang_limit_s()
        return Job(
            component=spec.component,
            tenant=config.tenant,
            namespace=config.namespace,
            name=config.name,
            instance_id=self.instance_id,
            num_instances=config.parallelism,
            version=spec.epoch,
            package=spec.package_path,
            kind=spec.package_kind,
            class_name=(config.class_name or "") if spec.package_kind != "builtin" else spec.package_path,
            paths=self._import_paths,
            secrets=dict(config.secrets or {}),
            guarantee=config.processing_guarantees.value,
            log_file=str(self._log_path(".log")),
            log_to_topic=bool(config.log_topic),
            beat_every_s=min(1.0, hang_limit / 4) if hang_limit > 0 else 60.0,
            **fields,
        )

    def _hang_limit_s(self) -> float:
        """By the option `hangTimeoutMs`, else by `timeoutMs`: a message not done by then is to be tried again."""
        limit = hang_limit_s(self.spec.config.runtime_options())
        timeout_ms = None if isinstance(self.spec.config, SourceConfig) else self.spec.config.timeout_ms
        if limit is not None:
            return limit
        return timeout_ms / 1000 if timeout_ms else HANG_LIMIT_S

    def _log_path(self, suffix: str) -> Path:
        config = self.spec.config
        directory = self.spec.log_dir / config.tenant / config.namespace / config.name
        return directory / f"{config.name}-{self.instance_id}{suffix}"

    async def require_deduplication(self, topic: str) -> None:
        """Raises GuaranteeUnavailable unless the broker deduplicates on `topic`, or does not say."""
        deadline = self.clock.monotonic() + DEDUPLICATION_WAIT_S
        while True:
            try:
                status = await self.admin.deduplication_status(topic)
            except AdminCallFailed as error:
                if error.status not in (404, 405):
                    raise
                return
            if status is None or status.lower() in ("enabled", "recovering", "initialized"):
                return
            if self.clock.monotonic() > deadline:
                raise GuaranteeUnavailable(
                    f"deduplication of '{topic}' is {status}: EFFECTIVELY_ONCE rests on it; turn it on "
                    "(topics set-deduplication --enable) or use ATLEAST_ONCE"
                )
            await asyncio.sleep(0.2)
