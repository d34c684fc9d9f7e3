"""Starts `magnetar standalone` for the demo, speaks to its REST API, and leaves nothing running."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

from magnetar.testing.processes import MagnetarProcess, ProcessFailed


class Platform:
    """A standalone platform in a process of its own, on free loopback ports."""

    def __init__(self, directory: Path) -> None:
        self._process = MagnetarProcess.standalone(directory)

    def __enter__(self) -> Platform:
        try:
            self._process.start()
        except ProcessFailed as failure:
            raise SystemExit(str(failure)) from None
        self.service_url, self.web_url = self._process.service_url, self._process.web_url
        self.ready_after_s = self._process.ready_after_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()

    def log_tail(self) -> str:
        """The end of the platform's log."""
        return self._process.log_tail()

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
