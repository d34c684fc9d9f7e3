"""`/admin/v3/functions`, `/admin/v3/sources` and `/admin/v3/sinks`: the same verbs, and what each has of its own.

Source: pulsar-broker, admin/impl/{Functions,Sources,Sinks}Base.java. What their handlers return nothing for is 204.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response

from magnetar.worker.component import ComponentName, Kind
from magnetar.worker.errors import BadRequest, NotFound, NotReady
from magnetar.worker.packages import Upload
from magnetar.worker.rest.answers import Handler, answering
from magnetar.worker.rest.forms import FileSink, Form, receive_form

if TYPE_CHECKING:
    from magnetar.worker.components import Components
    from magnetar.worker.worker import Worker

NAME = "/{tenant}/{namespace}/{name}"


def add_component_routes(router: APIRouter, worker: Worker) -> None:
    for kind in Kind:
        routes = ComponentRoutes(worker, kind)
        routes.add(router, f"/admin/v3/{kind.value}s")
        if kind is not Kind.FUNCTION:
            routes.add(router, f"/admin/v3/{kind.value}", hidden=True)  # Deprecated, and still used.


class ComponentRoutes:
    """The handlers for one kind of component."""

    def __init__(self, worker: Worker, kind: Kind) -> None:
        self._worker = worker
        self._kind = kind

    def add(self, router: APIRouter, prefix: str, *, hidden: bool = False) -> None:
        tag = f"{self._kind.value}s"

        def route(method: str, path: str, handler: Handler, summary: str, form: tuple[str, ...] = ()) -> None:
            endpoint = answering(handler)
            if hidden:
                router.add_route(prefix + path, endpoint, methods=[method])
                return
            router.add_api_route(
                prefix + path,
                endpoint,
                methods=[method],
                response_class=Response,
                response_model=None,
                tags=[tag],
                summary=summary,
                operation_id=f"{method.lower()}_{tag}_{len(router.routes)}",
                openapi_extra=_described(path, form),
            )

        # Literal paths first: the first route that matches is taken.
        if self._kind is Kind.FUNCTION:
            route("POST", "/upload", self._upload, "Store a file", ("data", "path"))
            route("GET", "/download", self._download, "Fetch a stored file")
            route("GET", "/connectors", self._all_connectors, "List all connectors")
            route("GET", "/builtins", self._no_builtins, "List built-in functions")
            route("POST", "/builtins/reload", self._reload, "Look for built-in functions again")
        else:
            builtin = f"/builtin{tag}"
            route("GET", builtin, self._connectors, f"List built-in {tag}")
            route(
                "GET",
                builtin + "/{connector}/configdefinition",
                self._definition,
                "Describe a connector's settings",
            )
            title = self._kind.title
            route("POST", f"/reloadBuiltIn{title}s", self._reload, f"Look for built-in {tag} again")
        form = (f"{self._kind.value}Config", "data", "url")
        route("GET", "/{tenant}/{namespace}", self._list, f"List the {tag} of a namespace")
        route("POST", NAME, self._register, f"Create a {self._kind.value}", form)
        route("PUT", NAME, self._update, f"Update a {self._kind.value}", (*form, "updateOptions"))
        route("DELETE", NAME, self._delete, f"Delete a {self._kind.value}")
        route("GET", NAME, self._get, "Fetch its configuration")
        route("GET", NAME + "/status", self._status, "Fetch its status")
        route("GET", NAME + "/{instance}/status", self._status, "Fetch the status of an instance")
        for verb, handler in (("start", self._start), ("stop", self._stop), ("restart", self._restart)):
            route("POST", f"{NAME}/{verb}", handler, f"{verb.capitalize()} it")
            route("POST", NAME + "/{instance}/" + verb, handler, f"{verb.capitalize()} an instance")
        if self._kind is Kind.FUNCTION:
            route("GET", NAME + "/stats", self._stats, "Fetch its statistics")
            route("GET", NAME + "/{instance}/stats", self._stats, "Fetch the statistics of an instance")
            route(
                "POST",
                NAME + "/trigger",
                self._trigger,
                "Send a message through it",
                ("data", "dataStream", "topic"),
            )
            route("GET", NAME + "/download", self._download_package, "Fetch its package")
            route("GET", NAME + "/state/{key}", self._no_state, "Fetch a value of its state")
            route("POST", NAME + "/state/{key}", self._no_state, "Set a value of its state", ("state",))

    # --- Deploying ------------------------------------------------------------------------------------------------

    async def _register(self, request: Request) -> None:
        components, name = await self._named(request)
        form = await self._package_form(request)
        try:
            await components.register(
                self._kind, name, form.json_object(self._config_part), upload=form.file, url=form.text("url")
            )
        finally:
            if form.file is not None:
                await form.file.discard()

    async def _update(self, request: Request) -> None:
        components, name = await self._named(request)
        form = await self._package_form(request)
        try:
            data = form.json_object(self._config_part) if form.text(self._config_part) else {}
            await components.update(self._kind, name, data, upload=form.file, url=form.text("url"))
        finally:
            if form.file is not None:
                await form.file.discard()

    async def _delete(self, request: Request) -> None:
        components, name = await self._named(request)
        await components.delete(self._kind, name)

    @property
    def _config_part(self) -> str:
        return f"{self._kind.value}Config"

    async def _package_form(self, request: Request) -> Form:
        async def open_file(filename: str) -> Upload:
            return self._worker.packages.begin(filename)

        return await receive_form(
            request,
            field_bytes_max=self._worker.settings.config_bytes_max,
            file_part="data",
            open_file=open_file,
        )

    # --- Asking ---------------------------------------------------------------------------------------------------

    async def _list(self, request: Request) -> list[str]:
        parameters = request.path_params
        tenant, namespace = parameters["tenant"], parameters["namespace"]
        components = await self._allowed(request, f"{tenant}/{namespace}")
        return await components.names(self._kind, tenant, namespace)

    async def _get(self, request: Request) -> Any:
        components, name = await self._named(request)
        return await components.config(self._kind, name)

    async def _status(self, request: Request) -> Any:
        components, name = await self._named(request)
        instance = _instance(request)
        if instance is None:
            return await components.status(self._kind, name)
        return await components.instance_status(self._kind, name, instance)

    async def _stats(self, request: Request) -> Any:
        components, name = await self._named(request)
        instance = _instance(request)
        if instance is None:
            return await components.stats(self._kind, name)
        return await components.instance_stats(self._kind, name, instance)

    # --- Starting and stopping ------------------------------------------------------------------------------------

    async def _start(self, request: Request) -> None:
        components, name = await self._named(request)
        await components.start(self._kind, name, _instance(request))

    async def _stop(self, request: Request) -> None:
        components, name = await self._named(request)
        await components.stop_component(self._kind, name, _instance(request))

    async def _restart(self, request: Request) -> None:
        components, name = await self._named(request)
        await components.restart(self._kind, name, _instance(request))

    # --- Of functions only ----------------------------------------------------------------------------------------

    async def _trigger(self, request: Request) -> Response | None:
        components, name = await self._named(request)
        form = await receive_form(request, field_bytes_max=self._worker.settings.config_bytes_max)
        data = form.fields.get("dataStream", form.fields.get("data"))
        if data is None:
            raise BadRequest("send the message as `data` (text) or `dataStream` (file)")
        component = await components.component(self._kind, name)
        result = await self._worker.trigger(component, data, form.text("topic"))
        return None if result is None else Response(result, media_type="text/plain")

    async def _download_package(self, request: Request) -> Response:
        components, name = await self._named(request)
        package = (await components.component(self._kind, name)).package
        if package is None or package.builtin:
            raise NotFound(f"{name} has no package of its own")
        return FileResponse(
            self._worker.packages.path(package),
            media_type="application/octet-stream",
            filename=package.filename,
        )

    async def _no_state(self, request: Request) -> None:
        components, name = await self._named(request)
        await components.component(self._kind, name)
        raise NotReady("no state service is running: functions keep no state in this release")

    async def _upload(self, request: Request) -> None:
        await self._allowed(request, None)
        area = self._worker.uploads

        async def open_file(_: str) -> FileSink:
            return await area.begin()

        form = await receive_form(
            request,
            field_bytes_max=self._worker.settings.config_bytes_max,
            file_part="data",
            open_file=open_file,
        )
        try:
            path = form.text("path")
            if form.file is None or path is None:
                raise BadRequest("send the file as `data` and where it belongs as `path`")
            await area.store(path, form.file)
        finally:
            if form.file is not None:
                await form.file.discard()

    async def _download(self, request: Request) -> Response:
        await self._allowed(request, None)
        path = request.query_params.get("path")
        if not path:
            raise BadRequest("name the file to download as `path`")
        return FileResponse(self._worker.uploads.find(path), media_type="application/octet-stream")

    async def _all_connectors(self, request: Request) -> list[dict[str, Any]]:
        from magnetar.connectors.registry import builtin_connectors

        return [connector.definition() for connector in builtin_connectors()]

    async def _no_builtins(self, request: Request) -> list[dict[str, Any]]:
        return []

    async def _reload(self, request: Request) -> None:
        """They come with this release, and do not change while it runs."""
        await self._allowed(request, None)

    # --- Of connectors only ---------------------------------------------------------------------------------------

    @property
    def _connector_kind(self) -> Literal["source", "sink"]:
        return "source" if self._kind is Kind.SOURCE else "sink"

    async def _connectors(self, request: Request) -> list[dict[str, Any]]:
        from magnetar.connectors.registry import builtin_connectors

        return [connector.definition() for connector in builtin_connectors(self._connector_kind)]

    async def _definition(self, request: Request) -> list[dict[str, Any]]:
        from magnetar.connectors.errors import UnknownConnector
        from magnetar.connectors.registry import builtin_connector

        try:
            connector = builtin_connector(request.path_params["connector"], self._connector_kind)
        except UnknownConnector as error:
            raise NotFound(str(error)) from error
        return [field.definition() for field in connector.fields()]

    # --- Who asks for what ----------------------------------------------------------------------------------------

    async def _named(self, request: Request) -> tuple[Components, ComponentName]:
        parameters = request.path_params
        name = ComponentName(parameters["tenant"], parameters["namespace"], parameters["name"])
        return await self._allowed(request, f"{name.tenant}/{name.namespace}"), name

    async def _allowed(self, request: Request, namespace: str | None) -> Components:
        """The components, for whoever may use this kind in `namespace`; None: may administer the platform."""
        from magnetar.security.authorizer import CLUSTER, Action

        actions = {
            Kind.FUNCTION: Action.RUN_FUNCTIONS,
            Kind.SOURCE: Action.RUN_SOURCES,
            Kind.SINK: Action.RUN_SINKS,
        }
        action = Action.ADMINISTER_CLUSTER if namespace is None else actions[self._kind]
        await self._worker.authorize(request, action, CLUSTER if namespace is None else namespace)
        return self._worker.components


def _instance(request: Request) -> int | None:
    """Raises BadRequest."""
    text = request.path_params.get("instance")
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise BadRequest(f"{text!r} is no instance id: they are numbers from 0")
    return int(text)


def _described(path: str, form: tuple[str, ...]) -> dict[str, Any]:
    """What OpenAPI says of a route beyond its path."""
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    described: dict[str, Any] = {
        "parameters": [
            {"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names
        ]
    }
    if form:
        binary = {"data", "dataStream"}
        properties = {
            name: {"type": "string", "format": "binary"} if name in binary else {"type": "string"}
            for name in form
        }
        schema = {"type": "object", "properties": properties}
        described["requestBody"] = {"content": {"multipart/form-data": {"schema": schema}}}
    return described
