"""A standalone platform in a process of its own, for one benchmark run."""

from __future__ import annotations

import json
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from magnetar.testing.processes import MagnetarProcess


class Server:
    """Started when made; `stop` ends it."""

    def __init__(self, directory: Path) -> None:
        began = time.perf_counter()
        self._process = MagnetarProcess.standalone(directory).start()
        self.ready_s = time.perf_counter() - began
        self.service_url, self.web_url = self._process.service_url, self._process.web_url
        self.pid = self._process.pid

    def stop(self) -> None:
        """Drain and end."""
        self._process.stop()

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
