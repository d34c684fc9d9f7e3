"""Starts `magnetar standalone` for the demo, speaks to its REST API, and leaves nothing running."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

READY = re.compile(r"magnetar ready: (pulsar://\S+) (http://\S+) \(([\d.]+) s\)")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class Platform:
    """A standalone platform in a process of its own, on free loopback ports."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._log = directory / "standalone.log"
        self._process: subprocess.Popen[str] | None = None
        self.service_url = ""
        self.web_url = ""
        self.ready_after_s = 0.0

    def __enter__(self) -> Platform:
        magnetar = Path(sys.executable).with_name("magnetar")
        command = [
            str(magnetar),
            "standalone",
            "--data",
            str(self._directory / "data"),
            "--port",
            "0",
            "--web-port",
            "0",
        ]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _wait_until_ready(self) -> None:
        process = self._running()
        assert process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        for line in process.stdout:
            if found := READY.search(line):
                self.service_url, self.web_url = found[1], found[2]
                self.ready_after_s = float(found[3])
                return
            if time.monotonic() > deadline:
                break
        raise SystemExit(f"the platform did not start; its log says:\n{self.log_tail()}")

    def _stop(self) -> None:
        process = self._running()
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the platform was never started")
        return self._process

    def log_tail(self, lines: int = 20) -> str:
        """The end of the platform's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def get(self, path: str) -> Any:
        """GET a REST path below /admin."""
        return self._call(urllib.request.Request(f"{self.web_url}/admin{path}"))

    def post(self, path: str, body: object = None) -> Any:
        """POST JSON to a REST path below /admin."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        return self._call(urllib.request.Request(f"{self.web_url}/admin{path}", data, headers, method="POST"))

    def register(self, kind: str, name: str, config: dict[str, Any], package: Path | None = None) -> None:
        """Create a function, source or sink: `POST /admin/v3/{kind}s/public/default/{name}`, multipart."""
        boundary = uuid.uuid4().hex
        parts = [_part(boundary, f'name="{kind}Config"', "application/json", json.dumps(config).encode())]
        if package is not None:
            disposition = f'name="data"; filename="{package.name}"'
            parts.append(_part(boundary, disposition, "application/octet-stream", package.read_bytes()))
        elif "archive" in config:
            parts.append(_part(boundary, 'name="url"', "text/plain", config["archive"].encode()))
        body = b"".join(parts) + f"--{boundary}--\r\n".encode()
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        url = f"{self.web_url}/admin/v3/{kind}s/public/default/{name}"
        self._call(urllib.request.Request(url, body, headers, method="POST"))

    def _call(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")
            raise SystemExit(f"{request.method} {request.full_url}: {error.code} {reason}") from error
        return json.loads(text) if text else None


def _part(boundary: str, disposition: str, kind: str, data: bytes) -> bytes:
    head = f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\nContent-Type: {kind}\r\n\r\n"
    return head.encode() + data + b"\r\n"
