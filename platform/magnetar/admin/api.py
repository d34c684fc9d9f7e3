"""From a request to its answer: find the route, ask permission, do it, and say what became of it.

An ASGI application. Whatever a route raises becomes a JSON `reason`; nothing is ever left unanswered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from magnetar.admin import answers
from magnetar.admin.answers import Answer, as_answer
from magnetar.admin.call import Call
from magnetar.admin.errors import Elsewhere, Refused, refusal
from magnetar.admin.routing import Guards, Match, Table
from magnetar.environment.logs import get_logger

if TYPE_CHECKING:
    from magnetar.admin.admin import Admin

log = get_logger("magnetar.admin")

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_BODYLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


class _Spelled(bytes):
    """The name of a header that is sent as it is spelled.

    Uvicorn sends names in small letters, and Java's clients find `X-Pulsar-PROPERTY` by its capitals.
    """

    def lower(self) -> bytes:
        return self


class ClientGone(Exception):
    """The client has left before it said everything."""


class Api:
    """The routes of this room, as an ASGI application."""

    def __init__(self, admin: Admin, table: Table) -> None:
        self.admin = admin
        self.table = table
        self._under_way: set[asyncio.Task[Answer]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # Neither life cycle nor web sockets concern this application.
        try:
            match = self.find(scope)
        except Refused as refused:
            await self.write(scope, receive, send, answers.reason(refused.status, str(refused), refused.code))
            return
        await self.answer(scope, receive, send, match)

    def find(self, scope: Scope) -> Match | None:
        """The route of a request. Raises Refused."""
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        return self.table.match(method, raw.decode("latin-1"))

    async def answer(self, scope: Scope, receive: Receive, send: Send, match: Match | None) -> None:
        """Do what was asked, and tell."""
        if match is None:
            told = answers.reason(404, f"There is nothing at {scope['path'][:200]}")
        elif len(self._under_way) >= self.admin.settings.requests_max:
            told = answers.reason(503, "Too many requests are under way: retry later")
        else:
            try:
                body = await self._body(scope, receive)
            except Refused as refused:
                told = answers.reason(refused.status, str(refused), refused.code, connection="close")
            except ClientGone:
                return
            else:
                told = await self._within_time(self._handle(scope, match, body), match)
        await self.write(scope, receive, send, told)

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """
        Raises:
            Refused: it is too large, or takes too long.
            ClientGone
        """
        if scope["method"] in _BODYLESS:
            return b""
        limit = self.admin.settings.body_bytes_max
        too_large = Refused(413, f"The body is larger than {limit} bytes")
        for name, value in scope["headers"]:
            if name == b"content-length" and value.isdigit() and int(value) > limit:
                raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.admin.settings.body_timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    part = message.get("body", b"")
                    size += len(part)
                    if size > limit:
                        raise too_large
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "The body did not arrive in time") from None

    async def _within_time(self, work: Any, match: Match) -> Answer:
        """Wait for an answer, but not for ever. Work is never cancelled halfway."""
        task: asyncio.Task[Answer] = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        limit = self.admin.settings.request_timeout_s
        done, _ = await asyncio.wait((task,), timeout=limit)
        if not done:
            log.warning("request.slow", route=f"{match.route.method} {match.route.path}", seconds=limit)
            return answers.reason(503, f"Not done within {limit:g} s; it goes on: look again, or retry")
        return task.result()

    async def _handle(self, scope: Scope, match: Match, body: bytes) -> Answer:
        route = match.route
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            role = await self.admin.identify(headers)
            call = Call(
                self.admin,
                match.parameters,
                query=scope.get("query_string", b"").decode("latin-1"),
                headers=headers,
                body=body,
                role=role,
            )
            resource = route.resource(match.parameters)
            if route.guards is not Guards.NOTHING:
                await self.admin.authorizer.authorize(role, route.action, resource)
            told = as_answer(await route.handler(call))
            if call.notes:
                told.headers = {**told.headers, **call.notes}
            return told
        except Elsewhere as elsewhere:
            return self._redirect(scope, elsewhere)
        except Exception as error:
            status, why, code = refusal(error)
            if status == 500:
                log.exception("request.failed", route=f"{route.method} {route.path}")
            elif status > 500 and not isinstance(error, Refused):
                log.warning("request.failed", route=f"{route.method} {route.path}", status=status, reason=why)
            return answers.reason(status, why, code)

    @staticmethod
    def _redirect(scope: Scope, elsewhere: Elsewhere) -> Answer:
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        kept = [
            part
            for part in scope.get("query_string", b"").decode("latin-1").split("&")
            if part and not part.startswith("authoritative=")
        ]
        location = f"{elsewhere.web_url}{path}?{'&'.join((*kept, 'authoritative=true'))}"
        return answers.reason(307, str(elsewhere), location=location)

    async def write(self, scope: Scope, receive: Receive, send: Send, answer: Answer) -> None:
        """Send an answer, part by part where it comes in parts."""
        head = scope["method"] == "HEAD"
        headers: list[tuple[bytes, bytes]] = [
            (_Spelled(name.encode("latin-1")), header_value(value)) for name, value in answer.headers.items()
        ]
        body = answer.body
        if isinstance(body, bytes):
            if answer.status not in (204, 304):
                if body:
                    headers.append((b"content-type", answer.content_type.encode()))
                headers.append((b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.start", "status": answer.status, "headers": headers})
            await send({"type": "http.response.body", "body": b"" if head else body})
            return
        headers.append((b"content-type", answer.content_type.encode()))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        if not head:
            await self._write_parts(scope, receive, send, body)
        await send({"type": "http.response.body", "body": b""})

    @staticmethod
    async def _write_parts(scope: Scope, receive: Receive, send: Send, parts: AsyncGenerator[bytes]) -> None:
        """Send part after part for as long as there is somebody to read them."""
        gone = asyncio.get_running_loop().create_task(_until_gone(receive))
        try:
            async with aclosing(parts):
                async for part in parts:
                    if gone.done():
                        break
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except Exception:
            # The status is out already: what remains is to cut the answer short, so that it cannot be
            # taken for a whole one.
            log.exception("answer.cut_short", path=scope["path"])
            raise
        finally:
            gone.cancel()

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        while self._under_way:
            await asyncio.wait(self._under_way)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue  # What is left of the request.


def header_value(text: str) -> bytes:
    """A header's value, without the characters that would end it."""
    return "".join(each if each.isprintable() or each == " " else "?" for each in text).encode()
