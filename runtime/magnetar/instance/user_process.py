"""One user process: started by exec, watched, and ended by its own handle."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from magnetar.environment.logs import get_logger
from magnetar.functions.process.job import Job
from magnetar.functions.process.wire import ToHost, ToProcess, json_frame
from magnetar.instance.errors import UserCodeRefused, UserProcessLost
from magnetar.instance.process_protocol import FrameListener, ProcessProtocol

EXIT_CONFIG = 78
READY_TIMEOUT_S = 120.0
"""A package may load a large model; it may not take for ever."""
STACK_WAIT_S = 0.3
SILENCE_WAIT_S = 1.0
LAST_WORDS_CHARS = 2000

log = get_logger("magnetar.instance.process")


class UserProcess:
    """Runs `magnetar.functions.process.main` for one job.

    Frames go to `on_frame`, and what that raises to `on_broken`. `on_lost` is told, once, why the process is gone,
    unless `stop` asked for it.
    """

    def __init__(
        self,
        job: Job,
        *,
        last_words: Path,
        runtime_flags: str,
        on_frame: FrameListener,
        on_lost: Callable[[str], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._job = job
        self._last_words = last_words
        self._flags = shlex.split(runtime_flags)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_broken = on_broken
        self._process: subprocess.Popen[bytes] | None = None
        self._protocol = ProcessProtocol(self._frame, self._closed)
        self._ready: asyncio.Future[None] | None = None
        self._exit: asyncio.Task[None] | None = None
        self._reason = ""
        self._stopping = False
        self._silent = asyncio.Event()
        """Everything it ever sent has been read."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it and wait until it has loaded the package.

        Raises:
            UserCodeRefused: the package does not load, or the connector does not open; with the reason.
            UserProcessLost: it died before it could say so.
        """
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        ours, theirs = socket.socketpair()
        try:
            self._last_words.parent.mkdir(parents=True, exist_ok=True)
            with self._last_words.open("wb") as words:
                self._process = subprocess.Popen(  # noqa: ASYNC220  (milliseconds, and this thread must be its parent)
                    [
                        sys.executable,
                        *self._flags,
                        "-P",
                        str(_entry_script()),
                        str(theirs.fileno()),
                        str(os.getpid()),
                        *_portions(self._job),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=words,
                    stderr=words,
                    pass_fds=(theirs.fileno(),),
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._exit = loop.create_task(self._wait(), name=f"exit of {self._job.fqfn}")
        await loop.create_unix_connection(lambda: self._protocol, sock=ours)
        self.send_json(ToProcess.JOB, self._job.to_json())
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                await asyncio.shield(self._ready)
        except TimeoutError:
            await self.stop(0.0)
            raise UserProcessLost(f"the package did not load within {READY_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await self.stop(0.0)
            raise
        log.info("process.ready", function=self._job.fqfn, instance=self._job.instance_id, pid=self.pid)

    def send(self, *chunks: bytes | memoryview) -> None:
        self._protocol.write(*chunks)

    def send_json(self, kind: ToProcess, value: Any) -> None:
        self._protocol.write(json_frame(kind, value))

    def pause(self) -> None:
        self._protocol.pause()

    def resume(self) -> None:
        self._protocol.resume()

    async def kill(self, reason: str) -> None:
        """End it because it hangs; its stack goes into the reason."""
        if self._process is None or self._process.returncode is not None:
            return
        self._signal(signal.SIGUSR2)
        await asyncio.sleep(STACK_WAIT_S)
        stack = await asyncio.to_thread(_tail, self._last_words)
        self._reason = f"{reason}\n{stack}".rstrip()
        self._signal(signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """Ask it to finish, and after `grace_s` make it. Returns when it is gone. Never raises."""
        self._stopping = True
        if self._exit is None:
            return
        if grace_s > 0:
            self._protocol.write(json_frame(ToProcess.CLOSE, {}))
            _, pending = await asyncio.wait({self._exit}, timeout=grace_s)
            if pending:
                log.warning("process.killed", function=self._job.fqfn, pid=self.pid, after_s=grace_s)
        self._signal(signal.SIGKILL)
        await self._exit
        self._protocol.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)  # Does nothing once it has ended.

    def _frame(self, kind: int, body: memoryview) -> None:
        if self._ready is not None and not self._ready.done():
            if kind == ToHost.READY:
                self._ready.set_result(None)
                return
            if kind == ToHost.REFUSED:
                said = json.loads(bytes(body))
                self._ready.set_exception(
                    UserCodeRefused(said["reason"], said["traceback"], permanent=said["permanent"])
                )
                return
        try:
            self._on_frame(kind, body)
        except Exception as error:  # Ours, not user code's: it must not be taken for the process' death.
            log.exception("frame.not_handled", function=self._job.fqfn, kind=kind)
            self._on_broken(error)

    def _closed(self) -> None:
        """The channel is closed: the process is ending, or has closed a descriptor it should not have."""
        self._silent.set()
        self._signal(signal.SIGKILL)

    async def _wait(self) -> None:
        assert self._process is not None
        code = await _ended(self._process)
        try:
            async with asyncio.timeout(SILENCE_WAIT_S):
                await self._silent.wait()  # What it sent last was work done.
        except TimeoutError:
            log.warning("process.left_channel_open", function=self._job.fqfn)
        self._protocol.close()
        words = await asyncio.to_thread(_tail, self._last_words)
        reason = self._reason or describe_exit(code, words)
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(UserProcessLost(reason))
            self._ready.exception()  # Whoever waits sees it; nobody waiting is fine as well.
        elif not self._stopping:
            self._on_lost(reason)


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for its end; returns its exit status, negative for a signal."""
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    handle = os.pidfd_open(process.pid)
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)
    return process.wait()


def describe_exit(code: int, last_words: str) -> str:
    """Why a process ended, as a user wants to read it."""
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        told = f"the user process was killed by {name}"
    else:
        told = f"the user process ended with exit status {code}"
    return f"{told}: {last_words}" if last_words else told


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LAST_WORDS_CHARS))
            return file.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def _entry_script() -> Path:
    return _portion_of("magnetar.functions") / "functions" / "process" / "main.py"


def _portions(job: Job) -> list[str]:
    """The folders of the `magnetar` namespace that the user process may see."""
    rooms = (
        ["magnetar.functions"]
        if job.component == "function"
        else ["magnetar.functions", "magnetar.connectors"]
    )
    return list(dict.fromkeys(str(_portion_of(room)) for room in rooms))


def _portion_of(room: str) -> Path:
    spec = find_spec(room)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"{room} is not installed")
    return Path(spec.origin).parent.parent
