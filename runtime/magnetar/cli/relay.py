"""What a worker is asked that is a broker's to answer, it asks a broker: whoever knows one address of the cluster
can use it for everything.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from magnetar.admin.codes import of_status
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.cli.live_brokers import LiveBrokers

BODY_BYTES_MAX = 16 * 1024 * 1024
TIMEOUT_S = 30.0
REDIRECTS_MAX = 5
_NOT_PASSED_ON = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade", "te", "trailer"}
)

log = get_logger("magnetar.cli")


class _Answer(NamedTuple):
    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes


class BrokerRelay:
    """An ASGI application that passes requests on to a live broker, and to the one it is sent to from there."""

    def __init__(self, brokers: LiveBrokers) -> None:
        self._brokers = brokers

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = await _body(receive)
        if body is None:
            await _answer(send, _refusal(413, f"a request may have {BODY_BYTES_MAX} bytes"))
            return
        target = scope["raw_path"].decode("ascii")
        if scope["query_string"]:
            target += f"?{scope['query_string'].decode('ascii')}"
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in scope["headers"]
            if name.decode("latin-1") not in _NOT_PASSED_ON
        }
        await _answer(send, await self._ask(scope["method"], target, headers, body))

    async def _ask(self, method: str, target: str, headers: dict[str, str], body: bytes) -> _Answer:
        reason = "no broker lives"
        for broker in await self._brokers.now():
            try:
                return await asyncio.to_thread(_follow, method, f"{broker.web_url}{target}", headers, body)
            except ConnectionRefusedError as error:
                reason = f"{broker.web_url}: {error}"  # It has just died: nothing was asked. The next one.
            except (OSError, HTTPException) as error:
                log.warning("request.not_passed_on", target=target, broker=broker.web_url, reason=str(error))
                return _refusal(502, f"{broker.web_url} did not answer: {error}")
        return _refusal(503, f"{reason}: try again")


def _follow(method: str, url: str, headers: dict[str, str], body: bytes) -> _Answer:
    """The answer, also of the broker one is sent to."""
    for _ in range(REDIRECTS_MAX):
        answer = _exchange(method, url, headers, body)
        location = next((value for name, value in answer.headers if name.lower() == "location"), None)
        if answer.status not in (307, 308) or location is None:
            break
        url = urljoin(url, location)
    return answer


def _exchange(method: str, url: str, headers: dict[str, str], body: bytes) -> _Answer:
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "127.0.0.1", parts.port, timeout=TIMEOUT_S)
    try:
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method, target, body or None, headers)
        response = connection.getresponse()
        return _Answer(response.status, response.getheaders(), response.read())
    finally:
        connection.close()


async def _body(receive: Any) -> bytes | None:
    """The whole body; None if it is too long."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"".join(parts)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY_BYTES_MAX:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _refusal(status: int, reason: str) -> _Answer:
    return _Answer(
        status,
        [("content-type", "application/json")],
        json.dumps({"reason": reason, "code": of_status(status)}).encode(),
    )


async def _answer(send: Any, answer: _Answer) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in answer.headers
        if name.lower() not in _NOT_PASSED_ON
    ]
    headers.append((b"content-length", b"%d" % len(answer.body)))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
