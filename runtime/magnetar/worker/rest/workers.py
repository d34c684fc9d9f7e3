"""`/admin/v2/worker` and `/admin/v2/worker-stats`: the worker cluster, which has one member here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from magnetar.worker.errors import BadRequest
from magnetar.worker.rest.answers import Handler, answering

if TYPE_CHECKING:
    from magnetar.worker.worker import Worker

ALONE = "this needs at least two workers, and there is one"


def add_worker_routes(router: APIRouter, worker: Worker) -> None:
    """Routes for super-users, save the question whether there is a leader."""

    async def allowed(request: Request) -> None:
        from magnetar.security.authorizer import CLUSTER, Action

        await worker.authorize(request, Action.ADMINISTER_CLUSTER, CLUSTER)

    def member() -> dict[str, Any]:
        settings = worker.settings
        return {"workerId": settings.worker_id, "workerHostname": settings.hostname, "port": worker.web_port}

    async def cluster(request: Request) -> list[dict[str, Any]]:
        await allowed(request)
        return [member()]

    async def leader(request: Request) -> dict[str, Any]:
        await allowed(request)
        return member()

    async def leader_ready(request: Request) -> bool:
        return worker.running

    async def assignments(request: Request) -> dict[str, list[str]]:
        await allowed(request)
        return {worker.settings.worker_id: await worker.components.assignments()}

    async def connectors(request: Request) -> list[dict[str, Any]]:
        from magnetar.connectors.registry import builtin_connectors

        await allowed(request)
        return [connector.definition() for connector in builtin_connectors()]

    async def alone(request: Request) -> None:
        await allowed(request)
        raise BadRequest(ALONE)

    async def drain_status(request: Request) -> dict[str, str]:
        await allowed(request)
        return {"status": "NOT_RUN", "lastError": ""}

    async def functions_metrics(request: Request) -> list[dict[str, Any]]:
        await allowed(request)
        return await worker.components.all_stats()

    async def worker_metrics(request: Request) -> list[dict[str, Any]]:
        await allowed(request)
        assigned = await worker.components.assignments()
        dimensions = {"cluster": worker.settings.cluster, "workerId": worker.settings.worker_id}
        return [{"metrics": {"fun_worker_instance_count": len(assigned)}, "dimensions": dimensions}]

    def route(method: str, path: str, handler: Handler, summary: str) -> None:
        router.add_api_route(
            path,
            answering(handler),
            methods=[method],
            response_class=Response,
            response_model=None,
            tags=["worker"],
            summary=summary,
            operation_id=f"{method.lower()}_worker_{len(router.routes)}",
        )

    base = "/admin/v2/worker"
    route("GET", f"{base}/cluster", cluster, "List the workers")
    route("GET", f"{base}/cluster/leader", leader, "Name the leader")
    route("GET", f"{base}/cluster/leader/ready", leader_ready, "Whether the leader is ready")
    route("GET", f"{base}/assignments", assignments, "Which instances run where")
    route("GET", f"{base}/connectors", connectors, "List all connectors")
    route("PUT", f"{base}/rebalance", alone, "Even out instances between workers")
    route("PUT", f"{base}/drain", alone, "Move instances away")
    route("GET", f"{base}/drain", drain_status, "How far draining is")
    route("PUT", f"{base}/leader/drain", alone, "Move a worker's instances away")
    route("GET", f"{base}/leader/drain", drain_status, "How far draining a worker is")
    route("GET", "/admin/v2/worker-stats/metrics", worker_metrics, "The worker's metrics")
    route("GET", "/admin/v2/worker-stats/functionsmetrics", functions_metrics, "The components' statistics")
