"""A standalone platform in a process of its own, for one benchmark run."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

READY = re.compile(r"magnetar ready: (pulsar://\S+) (http://\S+) \(([\d.]+) s\)")


class Server:
    """Started when made; `stop` ends it."""

    def __init__(self, directory: Path) -> None:
        self._log = (directory / "server.log").open("w")
        command = [
            str(Path(sys.executable).with_name("magnetar")),
            "standalone",
            "--data",
            str(directory / "data"),
        ]
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [*command, "--port", "0", "--web-port", "0"], stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        found = READY.search(self._process.stdout.readline())
        if found is None:
            self.stop()
            raise SystemExit(f"the platform did not start: see {self._log.name}")
        self.ready_s = time.perf_counter() - began
        self.service_url, self.web_url = found[1], found[2]
        self.pid = self._process.pid

    def stop(self) -> None:
        """Drain and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._log.close()

    def get(self, path: str) -> Any:
        """GET below /admin."""
        with urllib.request.urlopen(f"{self.web_url}/admin{path}", timeout=30) as response:
            return json.loads(response.read() or b"null")

    def create_function(self, name: str, config: dict[str, Any], package: Path) -> None:
        """Register a Python function."""
        mark = uuid.uuid4().hex
        disposition = "Content-Disposition: form-data;"
        head = f'--{mark}\r\n{disposition} name="functionConfig"\r\nContent-Type: application/json\r\n\r\n'
        file = f'\r\n--{mark}\r\n{disposition} name="data"; filename="{package.name}"\r\n\r\n'
        body = head.encode() + json.dumps(config).encode() + file.encode() + package.read_bytes()
        request = urllib.request.Request(
            f"{self.web_url}/admin/v3/functions/public/default/{name}",
            body + f"\r\n--{mark}--\r\n".encode(),
            {"Content-Type": f"multipart/form-data; boundary={mark}"},
            method="POST",
        )
        with urllib.request.urlopen(request, timeout=60):
            pass
