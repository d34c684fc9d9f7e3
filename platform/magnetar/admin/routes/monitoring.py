"""/metrics, /status.html: for machines that watch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin.answers import Answer, text
from magnetar.admin.errors import Refused
from magnetar.admin.routing import Guards, Route
from magnetar.metrics.exposition import CONTENT_TYPE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from magnetar.admin.admin import Admin
    from magnetar.admin.call import Call


async def metrics(call: Call) -> Answer:
    """All metrics, as Prometheus reads them. Pulsar redirects to /metrics/; here both answer."""
    return Answer(200, _page(call.admin), CONTENT_TYPE)


async def _page(admin: Admin) -> AsyncGenerator[bytes]:
    async for chunk in admin.metrics.page():
        yield chunk


async def status(call: Call) -> Answer:
    """For load balancers: `OK` while clients are served."""
    if not call.admin.broker.ready:
        raise Refused(503, "the broker is starting or stopping")
    return text("OK")


ROUTES: Final = (
    Route("GET", "/metrics", metrics, Guards.NOTHING),
    Route("GET", "/status.html", status, Guards.NOTHING),
)
