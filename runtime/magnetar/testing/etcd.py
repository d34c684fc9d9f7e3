"""A real etcd server. The program is Debian's `etcd-server`, or whatever `etcd` the PATH or MAGNETAR_ETCD names.

with EtcdServer(tmp_path) as server:
    store = await open_store(f"etcd:{server.address}")
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from magnetar.testing.processes import ProcessFailed, free_port

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


class EtcdServer:
    """One server, with its data and log below a directory. Started again, it finds its data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._peer_port = 0
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        return self._directory / "etcd.log"

    def start(self) -> int:
        """Start, wait until it serves, and return its port: a free one, the same after every restart.

        Raises:
            ProcessFailed: there is no etcd, or it did not come up.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port(self.host)
        self._peer_port = self._peer_port or free_port(self.host)
        client, peers = f"http://{self.address}", f"http://{self.host}:{self._peer_port}"
        command = [
            *(find_etcd(), "--name", "one", "--data-dir", str(self._directory / "etcd-data")),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"one={peers}", "--heartbeat-interval", "50", "--election-timeout", "500"),
        ]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
            )
        try:
            self._wait_until_serving()
        except BaseException:
            self.kill()
            raise
        return self.port

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL if that takes too long. Nothing happens if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL and wait. Nothing happens if it does not run."""
        self._end(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send any signal, SIGSTOP and SIGCONT for instance."""
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # A paused process hears nothing but SIGKILL.
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            if '"health":"true"' in self._health():
                return
            time.sleep(0.02)
        tail = self.log.read_text(errors="replace")[-2000:]
        raise ProcessFailed(f"etcd did not get ready on {self.address}; its log ends:\n{tail}")

    def _health(self) -> str:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(f"GET /health HTTP/1.0\r\nHost: {self.host}\r\n\r\n".encode())
                return b"".join(iter(lambda: connection.recv(4096), b"")).decode("utf-8", "replace")
        except OSError:
            return ""


def find_etcd() -> str:
    """The program to run.

    Raises:
        ProcessFailed: there is none.
    """
    program = os.environ.get("MAGNETAR_ETCD") or shutil.which("etcd")
    if not program:
        raise ProcessFailed(
            "no etcd found: `apt-get install etcd-server`, or set MAGNETAR_ETCD to its program"
        )
    return program
