"""The host process: one component's instances, from its spec to its end."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.functions.config import FunctionConfig, SourceConfig
from magnetar.functions.errors import PackageError
from magnetar.functions.packages import PackageInfo, inspect_package, unpack
from magnetar.instance.admin_calls import AdminCallFailed, AdminCalls
from magnetar.instance.control import ControlServer
from magnetar.instance.errors import SpecUnusable
from magnetar.instance.function_instance import FunctionInstance
from magnetar.instance.instance import Instance
from magnetar.instance.source_instance import SourceInstance
from magnetar.instance.spec import Spec

TERMINATE_AGAIN_S = 1.0
MINUTE_S = 60.0

log = get_logger("magnetar.instance.host")


class Host:
    """Runs until told to stop; `run` returns the exit status."""

    def __init__(self, spec: Spec, clock: Clock) -> None:
        self._spec = spec
        self._clock = clock
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Finish what is in hand and end. Safe in a signal handler of the loop."""
        self._stop.set()

    async def run(self) -> None:
        """Run the instances; returns after `stop`.

        Raises:
            SpecUnusable, UserCodeRefused: only another package or config can help.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        import_paths = await asyncio.to_thread(lay_out, self._spec)
        kind = SourceInstance if self._spec.component == "source" else FunctionInstance
        instances: list[Instance] = [
            kind(self._spec, instance_id, import_paths, self._clock) for instance_id in self._spec.instances
        ]
        controls = [ControlServer(instance) for instance in instances]
        lives = [
            loop.create_task(instance.run(), name=f"instance {instance.instance_id}")
            for instance in instances
        ]
        tasks: list[asyncio.Task[Any]] = [
            loop.create_task(self._announce(instances, controls), name="announce"),
            loop.create_task(self._see_end(instances, lives), name="end"),
            loop.create_task(self._count_minutes(instances), name="minutes"),
            loop.create_task(self._stop.wait(), name="stop"),
        ]
        try:
            while not self._stop.is_set():
                running = [task for task in tasks if not task.done()]
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            for task in (*tasks, *lives):
                task.cancel()
            await asyncio.gather(*tasks, *lives, return_exceptions=True)
            await asyncio.gather(*(control.stop() for control in controls))
        log.info("host.stopped", function=self._spec.config.fqfn)

    async def _announce(self, instances: list[Instance], controls: list[ControlServer]) -> None:
        """Say that everything runs, once it does."""
        ports = [await control.start() for control in controls]
        for instance in instances:
            await instance.started.wait()
        say(
            {
                "ready": True,
                "control": {str(i.instance_id): port for i, port in zip(instances, ports, strict=True)},
            }
        )

    async def _see_end(self, instances: list[Instance], lives: list[asyncio.Task[None]]) -> None:
        """When all inputs have ended: terminate the output if that is wanted, and say so."""
        await asyncio.gather(*lives)
        topic = self._to_terminate()
        if topic is not None:
            await self._terminate(topic)
        for instance in instances:
            instance.ended = True
        say({"ended": True})

    async def _count_minutes(self, instances: list[Instance]) -> None:
        while True:
            await asyncio.sleep(MINUTE_S)
            for instance in instances:
                instance.statistics.reset_minute()

    def _to_terminate(self) -> str | None:
        config = self._spec.config
        if isinstance(config, FunctionConfig):
            return config.output if config.terminate_output else None
        return config.output if isinstance(config, SourceConfig) and config.terminates else None

    async def _terminate(self, topic: str) -> None:
        admin = AdminCalls(self._spec.web_url)
        while True:
            try:
                await admin.terminate(topic)
            except AdminCallFailed as error:
                log.warning("topic.not_terminated", topic=topic, reason=str(error))
                await asyncio.sleep(TERMINATE_AGAIN_S)
            else:
                log.info("topic.terminated", topic=topic)
                return


def lay_out(spec: Spec) -> tuple[str, ...]:
    """Unpack the package; returns what belongs on its process' module path. Raises SpecUnusable."""
    if spec.package_kind == "builtin":
        return ()
    try:
        info: PackageInfo = inspect_package(
            Path(spec.package_path), spec.config.class_name or "", spec.package_kind
        )
        return tuple(unpack(info, spec.work_dir / "package"))
    except PackageError as error:
        raise SpecUnusable(str(error)) from error
    except OSError as error:
        raise SpecUnusable(f"{spec.package_path} cannot be unpacked: {error}") from error


def say(message: Mapping[str, Any]) -> None:
    """Tell the worker: one line of JSON on standard output."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
