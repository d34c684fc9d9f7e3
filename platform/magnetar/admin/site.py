"""All that the platform says over HTTP: this room's routes, and what the runtime mounts beside them.

FastAPI is loaded at the first request for documentation or for a mounted router, in a thread: it takes
longer to import than everything else a broker needs, and most platforms are never asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from magnetar.admin import answers
from magnetar.admin.api import Api, Receive, Scope, Send
from magnetar.admin.errors import Refused, log, refusal
from magnetar.security.errors import SecurityError

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI

    from magnetar.admin.admin import Admin
    from magnetar.admin.routing import Table

DOCUMENTATION: Final = ("/docs", "/openapi.json")


class Site:
    """An ASGI application."""

    def __init__(self, admin: Admin, table: Table) -> None:
        self.api = Api(admin, table)
        self._loaders: list[Callable[[], APIRouter]] = []
        self._prefixes: list[str] = list(DOCUMENTATION)
        self._rest: FastAPI | None = None
        self._loading: asyncio.Task[FastAPI] | None = None

    @property
    def admin(self) -> Admin:
        return self.api.admin

    def mount(self, load: Callable[[], APIRouter], *prefixes: str) -> None:
        """Leave what lies below `prefixes` to the router that `load` makes when it is first needed.

        The router's routes have whole paths. `load` is called once, in a thread.
        """
        if self._loading is not None:
            raise RuntimeError("mount routers before the first request")
        self._loaders.append(load)
        self._prefixes.extend(prefixes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            match = self.api.find(scope)
        except Refused as refused:
            await self.api.write(
                scope, receive, send, answers.reason(refused.status, str(refused), refused.code)
            )
            return
        if match is None and self._is_mounted(scope["path"]):
            await self._pass_on(scope, receive, send)
        else:
            await self.api.answer(scope, receive, send, match)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a mounted router answer. It finds the caller's role in `request.state.role`."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            scope.setdefault("state", {})["role"] = await self.admin.identify(headers)
            rest = await self._load_once()
        except SecurityError as error:
            await self.api.write(scope, receive, send, answers.reason(*refusal(error)))
        except Exception:
            log.exception("routers.not_loaded")
            failed = answers.reason(500, "What serves this path could not be loaded: see the log")
            await self.api.write(scope, receive, send, failed)
        else:
            await rest(scope, receive, send)

    def _is_mounted(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self._prefixes)

    async def _load_once(self) -> FastAPI:
        if self._rest is not None:
            return self._rest
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(asyncio.to_thread(self._load))
        try:
            self._rest = await asyncio.shield(self._loading)
        except Exception:
            self._loading = None  # Whoever asks next tries again.
            raise
        return self._rest

    def _load(self) -> FastAPI:
        from magnetar.admin.documented_app import build_app

        return build_app(self.api, self._loaders)

    async def drain(self) -> None:
        """Wait until nothing is under way."""
        await self.api.drain()
