"""The REST API, spoken with the standard library: a command should not wait for an HTTP framework to load."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

from magnetar.cli.errors import RequestRefused

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_S = 120.0
REDIRECTS_MAX = 10

_CHUNK = 256 * 1024


class AdminApi:
    """Requests to one platform. Follows redirects to the broker that serves a topic."""

    def __init__(self, url: str = DEFAULT_URL, *, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token

    def get(self, path: str, **query: object) -> Any:
        """The answer as JSON, as text where it is none, or None where it is empty."""
        return self.request("GET", path, query=query)

    def put(self, path: str, body: object = None, **query: object) -> Any:
        return self.request("PUT", path, body=body, query=query)

    def post(self, path: str, body: object = None, **query: object) -> Any:
        return self.request("POST", path, body=body, query=query)

    def delete(self, path: str, **query: object) -> Any:
        return self.request("DELETE", path, query=query)

    def request(
        self, method: str, path: str, *, body: object = None, query: Mapping[str, object] | None = None
    ) -> Any:
        """Send JSON.

        Raises:
            RequestRefused: with the platform's own reason, or why it cannot be reached.
        """
        data = None if method in ("GET", "DELETE") and body is None else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        answer, content = self._send(method, _with_query(path, query), data, headers)
        return _decode(answer, content)

    def get_raw(
        self, path: str, query: Mapping[str, object] | None = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        """Headers and content, as they are."""
        answer, content = self._send("GET", _with_query(path, query), None, {})
        return answer.headers, content

    def send_form(
        self, method: str, path: str, fields: Mapping[str, object], package: Path | None = None
    ) -> Any:
        """Send a multipart form: `fields` as JSON parts (text as it is), and a package as the part `data`.

        The package is streamed, so its size does not matter.
        """
        form = _Form(fields, package)
        headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
        answer, content = self._send(method, path, form, headers)
        return _decode(answer, content)

    def _send(
        self, method: str, path: str, body: bytes | _Form | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        url = f"{self.url}{path}"
        for _ in range(REDIRECTS_MAX):
            answer, content = self._send_once(method, url, body, headers)
            if answer.status not in (301, 302, 307, 308):
                break
            url = urljoin(url, answer.headers["Location"])
        if answer.status >= 300:
            raise RequestRefused(_reason(answer, content), answer.status)
        if warning := answer.headers.get("X-Magnetar-Warning"):
            print(f"magnetar: warning: {warning}", file=sys.stderr)
        return answer, content

    def _send_once(
        self, method: str, url: str, body: bytes | _Form | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestRefused(f"--admin-url {url!r}: expected http://host:port")
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
        sent = {"Accept": "application/json", **headers}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        try:
            connection.request(method, target, iter(body) if isinstance(body, _Form) else body, sent)
            answer = connection.getresponse()
            return answer, answer.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise RequestRefused(
                f"{parts.scheme}://{parts.netloc} cannot be reached: {reason}; is the platform running? "
                "(--admin-url, MAGNETAR_ADMIN_URL)"
            ) from error
        finally:
            connection.close()


class _Form:
    """A multipart form, measured before it is sent and read from disk while it is."""

    def __init__(self, fields: Mapping[str, object], package: Path | None) -> None:
        self._boundary = os.urandom(16).hex()
        self._package = package
        head = [self._part(name, value) for name, value in fields.items()]
        if package is not None:
            disposition = f'form-data; name="data"; filename="{quote(package.name)}"'
            head.append(self._head(disposition, "application/octet-stream"))
        self._head_bytes = b"".join(head)
        self._tail_bytes = (b"\r\n" if package is not None else b"") + f"--{self._boundary}--\r\n".encode()
        size = 0 if package is None else package.stat().st_size
        self.length = len(self._head_bytes) + size + len(self._tail_bytes)
        self.content_type = f"multipart/form-data; boundary={self._boundary}"

    def __iter__(self) -> Iterator[bytes]:
        yield self._head_bytes
        if self._package is not None:
            with self._package.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
        yield self._tail_bytes

    def _part(self, name: str, value: object) -> bytes:
        is_text = isinstance(value, str)
        text = value if isinstance(value, str) else json.dumps(value)
        kind = "text/plain" if is_text else "application/json"
        return self._head(f'form-data; name="{name}"', kind) + text.encode() + b"\r\n"

    def _head(self, disposition: str, kind: str) -> bytes:
        return (
            f"--{self._boundary}\r\nContent-Disposition: {disposition}\r\nContent-Type: {kind}\r\n\r\n"
        ).encode()


def segment(text: str) -> str:
    """`text` as one segment of a path."""
    return quote(text, safe="")


def _with_query(path: str, query: Mapping[str, object] | None) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in (query or {}).items()
        if value is not None
    }
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


def _decode(answer: http.client.HTTPResponse, content: bytes) -> Any:
    if not content:
        return None
    if "json" in answer.headers.get("Content-Type", ""):
        return json.loads(content)
    return content.decode("utf-8", "replace")


def _reason(answer: http.client.HTTPResponse, content: bytes) -> str:
    text = content.decode("utf-8", "replace").strip()
    try:
        fields = json.loads(text)
    except ValueError:
        fields = None
    if isinstance(fields, dict) and isinstance(fields.get("reason"), str) and fields["reason"]:
        return f"{fields['reason']} ({answer.status})"
    return f"{text[:500] or answer.reason} ({answer.status})"
