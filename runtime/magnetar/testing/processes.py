"""Start a role of the `magnetar` command as a real process, and stop or kill it by its own handle.

with MagnetarProcess.standalone(tmp_path) as platform:
    client = pulsar.Client(platform.service_url)
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

READY = re.compile(r"^magnetar ready: (?P<urls>\S+(?: \S+)*?)(?: \((?P<seconds>[\d.]+) s\))?$")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class ProcessFailed(Exception):
    """The process ended, or said nothing, before it was ready. The message holds the end of its log."""


class MagnetarProcess:
    """One role in a process of its own, bound to 127.0.0.1.

    Args:
        arguments: of the `magnetar` command, without the command.
        log: its standard error goes there, appended, so that one file tells of several lives.
        environment: added to this process's own.
    """

    def __init__(
        self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.arguments = list(arguments)
        self.log = log
        self.environment = dict(environment or {})
        self.urls: tuple[str, ...] = ()
        self.ready_after_s = 0.0
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def standalone(
        cls,
        directory: Path,
        *,
        port: int = 0,
        web_port: int = 0,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> MagnetarProcess:
        """A whole platform with its data and log below `directory`. Not started yet."""
        command = [
            "standalone",
            "--data",
            str(directory / "data"),
            "--port",
            str(port),
            "--web-port",
            str(web_port),
        ]
        return cls([*command, *arguments], directory / "standalone.log", environment)

    @property
    def service_url(self) -> str:
        """`pulsar://host:port`."""
        return self.urls[0]

    @property
    def web_url(self) -> str:
        """`http://host:port`."""
        return self.urls[1]

    @property
    def pid(self) -> int:
        """The operating system's number of the running process."""
        return self._running().pid

    def start(self) -> Self:
        """Start it and wait for its ready line.

        Raises:
            ProcessFailed: it ended first, or took longer than START_TIMEOUT_S.
        """
        self.launch()
        return self.wait_until_ready()

    def launch(self) -> None:
        """Start it, and leave it to itself until `wait_until_ready`."""
        command = [str(Path(sys.executable).with_name("magnetar")), *self.arguments]
        self.urls = ()
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **self.environment},
                process_group=0,  # Ctrl-C is for whoever started it, who then stops it in good order.
            )

    def wait_until_ready(self, timeout_s: float = START_TIMEOUT_S) -> Self:
        """Wait for the ready line of a process that was launched.

        Raises:
            ProcessFailed: it ended first, or said nothing in time; then it is killed.
        """
        try:
            self._wait_until_ready(timeout_s)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """SIGTERM and wait; SIGKILL after `timeout_s`. Returns the exit status."""
        process = self._running()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # A paused process hears nothing but SIGKILL.
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        return self._reap()

    def kill(self) -> int:
        """SIGKILL and wait. Returns the exit status."""
        self._running().kill()
        return self._reap()

    def send_signal(self, number: int) -> None:
        """Send any signal."""
        self._running().send_signal(number)

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and its locks, and does nothing, until `resume`."""
        self.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def exit_status(self) -> int | None:
        """Of a process that has ended; None while it runs, or before its first start."""
        return None if self._process is None else self._process.poll()

    def wait(self, timeout_s: float) -> int:
        """Wait until it ends by itself. Returns the exit status."""
        return self._running().wait(timeout_s)

    def log_tail(self, lines: int = 30) -> str:
        """The end of its log."""
        return (
            "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.exists() else ""
        )

    def __enter__(self) -> Self:
        return self if self.alive() else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self.stop()

    def _wait_until_ready(self, timeout_s: float) -> None:
        process = self._running()
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        readable = select.poll()  # unlike select(), it takes descriptors above 1,023
        readable.register(process.stdout, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not readable.poll(left * 1000):
                break
            line = process.stdout.readline()
            if not line:
                break
            if found := READY.match(line.strip()):
                self.urls = tuple(found["urls"].split())
                self.ready_after_s = float(found["seconds"] or 0)
                return
        raise ProcessFailed(
            f"`magnetar {' '.join(self.arguments)}` did not get ready; its log ends:\n{self.log_tail()}"
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ProcessFailed(f"`magnetar {' '.join(self.arguments)}` was never started")
        return self._process

    def _reap(self) -> int:
        process = self._running()
        status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return status


def free_port(host: str = "127.0.0.1") -> int:
    """A port that was free a moment ago: for a server that must come back at the same address after a kill."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
