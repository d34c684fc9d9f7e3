"""OpenAPI, and routers that the runtime mounts: FastAPI, loaded when asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from fastapi import Request

from magnetar.security.errors import Unauthenticated
from tests.unit.admin.conftest import Platform


async def test_every_route_is_documented(platform: Platform) -> None:
    answer = await platform.http.get("/openapi.json")
    assert answer.status_code == 200
    document = answer.json()
    assert document["openapi"].startswith("3.")
    for route in platform.site.api.table.routes:
        if route.documented:
            operation = document["paths"][route.path][route.method.lower()]
            assert operation["summary"], f"{route.method} {route.path} says nothing"
    assert "PostSchemaPayload" in document["components"]["schemas"]
    operations = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(operations) == len(set(operations))
    assert (await platform.http.get("/docs")).status_code == 200


async def test_routers_are_mounted(platform: Platform) -> None:
    def load() -> object:
        from fastapi import APIRouter, HTTPException

        router = APIRouter()

        @router.get("/admin/v3/functions/{tenant}")
        async def functions(tenant: str) -> list[str]:
            if tenant == "nobody":
                raise HTTPException(404, "no such tenant")
            return [tenant]

        @router.get("/admin/v3/functions/me/role")
        async def role(request: Request) -> str | None:
            told: str | None = request.state.role
            return told

        @router.get("/admin/v3/functions/{tenant}/{number}")
        async def numbered(tenant: str, number: int) -> int:
            return number

        return router

    async def by_header(headers: Mapping[str, str]) -> str | None:
        if "x-role" not in headers:
            raise Unauthenticated("who are you?")
        return headers["x-role"]

    platform.site.mount(load, "/admin/v3/functions")  # type: ignore[arg-type]
    http = platform.http
    assert (await http.get("/admin/v3/functions/acme")).json() == ["acme"]
    assert (await http.get("/admin/v3/functions/nobody")).json() == {
        "reason": "no such tenant",
        "code": "not_found",
    }
    assert (await http.get("/admin/v3/functions/a/x")).status_code == 400
    assert (await http.get("/admin/v3/functions/a/b/c/d")).json()["reason"]
    assert (await http.get("/admin/v3/functionsandmore")).status_code == 404
    paths = (await http.get("/openapi.json")).json()["paths"]
    assert "/admin/v3/functions/{tenant}" in paths
    assert "/admin/v2/tenants" in paths
    platform.site.admin.identify = by_header
    assert (await http.get("/admin/v3/functions/me/role")).status_code == 401
    assert (await http.get("/admin/v3/functions/me/role", headers={"x-role": "x"})).json() == "x"


async def test_a_router_that_cannot_be_loaded_is_said(platform: Platform) -> None:
    def load() -> object:
        raise ImportError("no such package")

    platform.site.mount(load, "/admin/v3/functions")  # type: ignore[arg-type]
    answer = await platform.http.get("/admin/v3/functions/acme")
    assert answer.status_code == 500
    assert (await platform.http.get("/admin/v2/tenants")).status_code == 200


def test_fastapi_is_not_loaded_with_the_routes() -> None:
    """Its import takes longer than everything else a start needs."""
    program = (
        "import sys, magnetar.admin.app, magnetar.admin.server\n"
        "from magnetar.admin.routes import all_routes\n"
        "from magnetar.admin.routing import Table\n"
        "Table(all_routes())\n"
        "print([name for name in ('fastapi', 'starlette', 'multipart') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
