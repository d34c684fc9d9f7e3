"""The worker's REST API, as Pulsar's clients and tools know it. `build_router` is what a server includes.

`components.py` has the verbs of functions, sources and sinks, `workers.py` those of the worker itself; `forms.py`
reads multipart bodies as they come in, `answers.py` turns errors into answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import APIRouter

    from magnetar.worker.worker import Worker


def build_router(worker: Worker) -> APIRouter:
    """All routes, ready to be included in a server's application."""
    from fastapi import APIRouter

    from magnetar.worker.rest.components import add_component_routes
    from magnetar.worker.rest.workers import add_worker_routes

    router = APIRouter()
    add_component_routes(router, worker)
    add_worker_routes(router, worker)
    return router
