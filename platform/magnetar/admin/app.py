"""Putting the web side together.

site = build_site(broker, resources, authorizer)
site.mount(lambda: worker.router, "/admin/v3/functions", "/admin/v3/sources", "/admin/v3/sinks")
server = WebServer(site)          # magnetar.admin.server
port = await server.start("127.0.0.1", 8080)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from magnetar.admin.admin import Admin, Identify, anonymous
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Table
from magnetar.admin.settings import AdminSettings
from magnetar.admin.site import Site
from magnetar.metrics.process import process_samples
from magnetar.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
    from fastapi import FastAPI

    from magnetar.broker.broker import Broker
    from magnetar.policies.resources import Resources
    from magnetar.security.authorizer import Authorizer


def build_site(
    broker: Broker,
    resources: Resources,
    authorizer: Authorizer,
    *,
    settings: AdminSettings | None = None,
    identify: Identify = anonymous,
    metrics: MetricsRegistry | None = None,
    runtime_configuration: Mapping[str, str] | None = None,
) -> Site:
    """The web side of a broker, as an ASGI application.

    Args:
        identify: tells from a request's headers who sends it.
        metrics: what `/metrics` shows; if None, the broker's samples and the process's.
        runtime_configuration: what `brokers/configuration/runtime` shows beside the broker's settings.
    """
    admin = Admin(
        broker=broker,
        resources=resources,
        authorizer=authorizer,
        settings=settings or AdminSettings(),
        identify=identify,
        metrics=metrics or _own_metrics(broker),
        runtime_configuration=runtime_configuration or {},
    )
    return Site(admin, Table(all_routes()))


def _own_metrics(broker: Broker) -> MetricsRegistry:
    metrics = MetricsRegistry()
    metrics.add(broker.metric_samples)
    metrics.add(process_samples)
    return metrics


def build_app(site: Site) -> FastAPI:
    """The same as one FastAPI application, with documentation and with what has been mounted."""
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    from magnetar.admin.openapi import TITLE, VERSION, document

    app = FastAPI(title=TITLE, version=VERSION, docs_url="/docs", redoc_url=None, openapi_url="/openapi.json")
    for load in site.loaders:
        app.include_router(load())

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"reason": str(error.detail)}, error.status_code, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    async def misunderstood(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])
        return JSONResponse({"reason": f"Invalid request: {faults}"}, 400)

    routers_only = app.openapi

    def whole() -> dict[str, Any]:
        return document(site.api.table, routers_only())

    app.openapi = whole  # type: ignore[method-assign]  # As FastAPI documents it.
    app.mount("/", site.api)
    return app
