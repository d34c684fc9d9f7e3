"""The documentation of the routes, as OpenAPI: made from the table when somebody asks for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.routing import DOMAINS, Route, Table

if TYPE_CHECKING:
    from magnetar.policies.model import PolicyModel

TITLE: Final = "Magnetar"
VERSION: Final = "v2"

_REFUSED: Final = {
    "description": "Refused, and why.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"reason": {"type": "string"}, "code": {"type": "string"}},
            }
        }
    },
}


def document(table: Table, routers: dict[str, Any]) -> dict[str, Any]:
    """What `routers` says, and every route of the table besides."""
    from pydantic.json_schema import models_json_schema

    models: list[type[PolicyModel]] = sorted(
        {route.body for route in table.routes if route.body is not None}, key=lambda kind: kind.__name__
    )
    _, definitions = models_json_schema(
        [(kind, "validation") for kind in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {path: dict(told) for path, told in routers.get("paths", {}).items()}
    for route in table.routes:
        if not route.documented:
            continue
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    components = dict(routers.get("components", {}))
    components["schemas"] = {**components.get("schemas", {}), **definitions.get("$defs", {})}
    return {**routers, "paths": paths, "components": components}


def _operation(route: Route) -> dict[str, Any]:
    said = (route.handler.__doc__ or "").strip()
    told: dict[str, Any] = {
        "tags": [_tag(route.path)],
        "summary": said.partition("\n")[0],
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "parameters": [
            *(_parameter(name, "path") for name in re.findall(r"\{(\w+)\}", route.path)),
            *(_parameter(name, "query") for name in route.query),
        ],
        "responses": {
            "200": {"description": "What was asked for."},
            "204": {"description": "Done; or there is nothing to tell."},
            "default": _REFUSED,
        },
    }
    if "\n" in said:
        told["description"] = said
    if route.body is not None:
        schema = {"$ref": f"#/components/schemas/{route.body.__name__}"}
        told["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return told


def _parameter(name: str, place: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if name == "domain":
        schema["enum"] = list(DOMAINS)
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _tag(path: str) -> str:
    parts = path.strip("/").split("/")
    if parts[0] != "admin":
        return parts[0]
    return "topics" if parts[2] == "{domain}" else parts[2]
