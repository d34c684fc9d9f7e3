"""A component's process, for real: started by exec, in a group of its own, never outliving the worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from magnetar.environment.logs import get_logger
from magnetar.worker.launching import ExitReport, LaunchEvents, LaunchPlan
from magnetar.worker.leash import Leash
from magnetar.worker.log_file import LogFile

EX_CONFIG = 78
"""The exit code of a process that cannot work as it is configured. Source: sysexits.h."""
LIFELINE = Path(__file__).with_name("lifeline.py")
LINE_BYTES_MAX = 64 * 1024
READ_BYTES = 16 * 1024

log = get_logger("magnetar.worker.process")


class ProcessLauncher:
    """Launcher of operating system processes. Belongs to the loop it is used on."""

    def __init__(self, leash: Leash | None = None) -> None:
        """`leash`: told of each process, so that none outlives the worker's lease."""
        self._leash = leash

    def launch(self, plan: LaunchPlan, events: LaunchEvents) -> ProcessChild:
        return ProcessChild(plan, events, self._leash)


class ProcessChild:
    """One process from its start to its end.

    It must be started from the thread that runs the loop: the kernel takes the end of the starting *thread* for the
    parent's death.
    """

    def __init__(self, plan: LaunchPlan, events: LaunchEvents, leash: Leash | None = None) -> None:
        self._plan = plan
        self._events = events
        self._leash = leash
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_early = False
        self._line = bytearray()
        self._task = self._loop.create_task(self._run())

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def terminate(self) -> None:
        if self._process is None:
            self._stopped_early = True
        elif self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is None:
            self._stopped_early = True
        elif self._process.returncode is None:
            _kill_group(self._process.pid)

    async def _run(self) -> None:
        try:
            report = await self._start_and_wait()
        except OSError as error:
            report = ExitReport(f"it could not be started: {error}")
        self._events.exited(report)

    async def _start_and_wait(self) -> ExitReport:
        spec, log_descriptor = await asyncio.to_thread(_prepare, self._plan)
        try:
            if self._stopped_early:
                return ExitReport("it was stopped before it began")
            process = self._process = _spawn(self._plan, spec, log_descriptor)
            if self._leash is not None:
                self._leash.began(process.pid)
        finally:
            os.close(log_descriptor)
        log.info("process.started", module=self._plan.module, pid=process.pid, log=str(self._plan.log.path))
        await self._ended(process)
        _kill_group(process.pid)  # Whatever it left behind.
        if self._leash is not None:
            self._leash.ended(process.pid)
        report = await asyncio.to_thread(_report, process.returncode, self._plan.log)
        log.info("process.ended", module=self._plan.module, pid=process.pid, reason=report.reason)
        return report

    async def _ended(self, process: subprocess.Popen[bytes]) -> None:
        """Until it is gone; what it says meanwhile is passed on."""
        assert process.stdout is not None
        gone = asyncio.Event()
        pid_descriptor = os.pidfd_open(process.pid)
        output = process.stdout.fileno()
        os.set_blocking(output, False)
        self._loop.add_reader(output, self._read, output)
        self._loop.add_reader(pid_descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            self._loop.remove_reader(pid_descriptor)
            os.close(pid_descriptor)
            self._loop.remove_reader(output)
            self._read(output)
            process.stdout.close()
            process.wait()

    def _read(self, descriptor: int) -> None:
        with suppress(BlockingIOError):
            while data := os.read(descriptor, READ_BYTES):
                self._line += data
                *lines, rest = self._line.split(b"\n")
                self._line = rest[:LINE_BYTES_MAX]
                for line in lines:
                    self._said(bytes(line))
            self._loop.remove_reader(descriptor)  # It closed its output.

    def _said(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if message.get("ready"):
                control = {
                    int(instance): int(port) for instance, port in (message.get("control") or {}).items()
                }
                self._events.ready(control)
            if message.get("ended"):
                self._events.input_ended()
        except (ValueError, TypeError, AttributeError):
            log.warning(
                "process.said_nonsense", module=self._plan.module, line=line[:200].decode("utf-8", "replace")
            )


def _prepare(plan: LaunchPlan) -> tuple[Path, int]:
    plan.work_dir.mkdir(parents=True, exist_ok=True)
    spec = plan.work_dir / "spec.json"
    draft = spec.with_suffix(".draft")
    draft.touch(mode=0o600)  # It may hold secrets.
    draft.write_text(json.dumps(plan.spec, indent=1))
    draft.replace(spec)
    return spec, plan.log.open()


def _spawn(plan: LaunchPlan, spec: Path, log_descriptor: int) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", plan.module, "--spec", str(spec)]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(LIFELINE), str(os.getpid()), *program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log_descriptor,
        cwd=plan.work_dir,
        process_group=0,
    )


def _report(code: int, log_file: LogFile) -> ExitReport:
    lines = [line for line in log_file.tail() if line.strip()]
    last_words = f": {lines[-1].strip()[:500]}" if lines else ""
    if code < 0:
        return ExitReport(f"it was killed by {signal.Signals(-code).name}{last_words}")
    return ExitReport(f"it exited with code {code}{last_words}", hopeless=code == EX_CONFIG)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
