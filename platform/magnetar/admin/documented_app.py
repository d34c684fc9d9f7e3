"""The web side as one FastAPI application. Import it late: it takes longer than all else a broker needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from magnetar.admin import codes
from magnetar.admin.api import Api
from magnetar.admin.openapi import TITLE, VERSION, document


def build_app(api: Api, loaders: Iterable[Callable[[], APIRouter]]) -> FastAPI:
    """Documentation of everything, what `loaders` bring, and below them the routes of `api`."""
    app = routers_app(loaders)
    routers_only = app.openapi

    def whole() -> dict[str, Any]:
        return document(api.table, routers_only())

    app.openapi = whole  # type: ignore[method-assign]  # As FastAPI documents it.
    app.mount("/", api)
    return app


def routers_app(loaders: Iterable[Callable[[], APIRouter]]) -> FastAPI:
    """What `loaders` bring, documented; refusals are told as everywhere."""
    app = FastAPI(title=TITLE, version=VERSION, docs_url="/docs", redoc_url=None, openapi_url="/openapi.json")
    for load in loaders:
        app.include_router(load())

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse(
            _told(error.status_code, str(error.detail)), error.status_code, headers=error.headers
        )

    @app.exception_handler(RequestValidationError)
    async def misunderstood(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        return JSONResponse(_told(400, f"Invalid request: {faults}"), 400)

    return app


def _told(status: int, reason: str) -> dict[str, str]:
    return {"reason": reason, "code": codes.of_status(status)}
