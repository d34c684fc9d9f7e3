"""A platform without a worker, and hosts started, crashed and restarted by the tests themselves."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pulsar
import pytest

from magnetar.testing.processes import MagnetarProcess, free_port

DEADLINE_S = 90.0


class HostProcess:
    """`python -m magnetar.instance`, or a program that calls it with a fault planted."""

    def __init__(self, spec: Path, log: Path, *, crash_point: str = "", program: str | None = None) -> None:
        environment = {**os.environ, "MAGNETAR_CRASH_POINT": crash_point}
        start = ["-c", program] if program else ["-m", "magnetar.instance"]
        self._log = log
        with log.open("a") as words:
            self.process = subprocess.Popen(
                [sys.executable, *start, "--spec", str(spec)],
                stdout=subprocess.PIPE,
                stderr=words,
                env=environment,
            )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def said(self, what: str, timeout_s: float = DEADLINE_S) -> dict[str, Any]:
        """Wait for the line that has `what`."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = json.loads(self._lines.get(timeout=max(0.01, deadline - time.monotonic())))
            except queue.Empty:
                raise AssertionError(
                    f"the host never said {what!r}; its log ends:\n{self.log_tail()}"
                ) from None
            if what in line:
                found: dict[str, Any] = line
                return found

    def died(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for its end; returns the exit status."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the host did not reach its crash point; its log ends:\n{self.log_tail()}"
            ) from None

    def user_processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            children: list[psutil.Process] = psutil.Process(self.process.pid).children()
            return children
        return []

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])


class Platform:
    """A standalone platform at one address for all its lives."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.process = MagnetarProcess.standalone(
            directory, port=free_port(), web_port=free_port(), arguments=["--no-functions"]
        )
        self.process.start()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(
            f"{self.process.web_url}/admin/v2/{path}", data, headers, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def make_topic(self, name: str, *, partitions: int = 0, deduplicated: bool = False) -> None:
        path = f"persistent/public/default/{name}"
        if partitions:
            self.call("PUT", f"{path}/partitions", partitions)
        else:
            self.call("PUT", path)
        if deduplicated:
            self.call("POST", f"{path}/deduplicationEnabled", True)

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.process.start()

    def publish(
        self, topic: str, payloads: Sequence[bytes], *, batch: int = 50, key: str | None = None
    ) -> None:
        """With the official client, in batches."""
        client = pulsar.Client(
            self.process.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        producer = client.create_producer(
            topic, batching_enabled=batch > 1, batching_max_messages=max(2, batch), block_if_queue_full=True
        )
        for payload in payloads:
            producer.send_async(payload, None, partition_key=key)
        producer.flush()
        client.close()

    def read(self, topic: str) -> list[pulsar.Message]:
        """Everything in a topic, with the official client."""
        client = pulsar.Client(
            self.process.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        messages = []
        while reader.has_message_available():
            messages.append(reader.read_next(10_000))
        client.close()
        return messages

    def backlog(self, topic: str, subscription: str) -> int:
        stats = self.call("GET", f"persistent/public/default/{topic}/stats")
        found: int = stats["subscriptions"].get(subscription, {"msgBacklog": -1})["msgBacklog"]
        return found


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    platform = Platform(tmp_path_factory.mktemp("platform"))
    yield platform
    platform.process.stop()


@pytest.fixture
def run_host(platform: Platform, tmp_path: Path) -> Iterator[Callable[..., HostProcess]]:
    """Start a host for a config: `run_host(component, config, source)`."""
    hosts: list[HostProcess] = []

    def start(
        component: str,
        config: dict[str, Any],
        source: str | None = None,
        *,
        crash_point: str = "",
        program: str | None = None,
        epoch: int = 1,
        instances: tuple[int, ...] = (0,),
    ) -> HostProcess:
        package: dict[str, Any] = {"kind": "builtin", "path": config.get("archive", "")}
        if source is not None:
            code = tmp_path / "code.py"
            code.write_text(source)
            package = {"kind": "py", "path": str(code)}
        spec = {
            "version": 1,
            "service_url": platform.process.service_url,
            "web_url": platform.process.web_url,
            "cluster": "standalone",
            "worker_id": "test",
            "component": component,
            "config": config,
            "package": package,
            "instances": list(instances),
            "epoch": epoch,
            "log_dir": str(tmp_path / "logs"),
            "work_dir": str(tmp_path / "work"),
        }
        path = tmp_path / "spec.json"
        path.write_text(json.dumps(spec))
        host = HostProcess(path, tmp_path / "host.log", crash_point=crash_point, program=program)
        hosts.append(host)
        return host

    yield start
    for host in hosts:
        host.stop()


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what}")
        time.sleep(0.05)
    return found


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until
