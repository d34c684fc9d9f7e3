"""How requests are answered: results as JSON, errors as `{"reason": ..., "code": ...}` with the
status their table gives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import Request
from starlette.responses import JSONResponse, Response

from magnetar.admin.codes import of_name, of_status
from magnetar.environment.logs import get_logger
from magnetar.worker.errors import Elsewhere, WorkerError

Handler: TypeAlias = Callable[[Request], Awaitable[Any]]

log = get_logger("magnetar.worker.rest")


def answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """An endpoint around `handler`: None is 204, a Response is itself, anything else JSON."""

    async def endpoint(request: Request) -> Response:
        try:
            result = await handler(request)
        except Exception as error:
            return refusal(request, error)
        if result is None:
            return Response(status_code=204)
        return result if isinstance(result, Response) else JSONResponse(result)

    return endpoint


def refusal(request: Request, error: Exception) -> Response:
    """The answer for an error. What is our own fault is logged with its traceback."""
    from magnetar.metadata.errors import StoreUnavailable
    from magnetar.security.errors import Forbidden

    if isinstance(error, Elsewhere):
        query = f"?{request.url.query}" if request.url.query else ""
        location = f"{error.url.rstrip('/')}{request.url.path}{query}"
        return JSONResponse(
            {"reason": str(error), "code": of_status(307)}, error.status, {"Location": location}
        )
    if isinstance(error, WorkerError):
        status = error.status
    elif isinstance(error, Forbidden):
        status = 401
    elif isinstance(error, StoreUnavailable):
        status = 503
    else:
        status = 500
        log.exception("request.failed", method=request.method, path=request.url.path)
    code = of_name(error) if isinstance(error, WorkerError) else of_status(status)
    return JSONResponse({"reason": str(error) or type(error).__name__, "code": code}, status)
