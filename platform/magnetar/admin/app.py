"""Putting the web side together.

site = build_site(broker, resources, authorizer)
site.mount(lambda: worker.router, "/admin/v3/functions", "/admin/v3/sources", "/admin/v3/sinks")
server = WebServer(site)          # magnetar.admin.server
port = await server.start("127.0.0.1", 8080)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from magnetar.admin.admin import Admin, Identify, anonymous
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Table
from magnetar.admin.settings import AdminSettings
from magnetar.admin.site import Site
from magnetar.metrics.process import process_samples
from magnetar.metrics.registry import MetricsRegistry

if TYPE_CHECKING:
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
    shutdown: Callable[[], None] | None = None,
) -> Site:
    """The web side of a broker, as an ASGI application.

    Args:
        identify: tells from a request's headers who sends it.
        metrics: what `/metrics` shows; if None, the broker's samples and the process's.
        runtime_configuration: what `brokers/configuration/runtime` shows beside the broker's settings.
        shutdown: lets the process end in good order, for POST brokers/shutdown.
    """
    admin = Admin(
        broker=broker,
        resources=resources,
        authorizer=authorizer,
        settings=settings or AdminSettings(),
        identify=identify,
        metrics=metrics or _own_metrics(broker),
        runtime_configuration=runtime_configuration or {},
        shutdown=shutdown,
    )
    return Site(admin, Table(all_routes()))


def _own_metrics(broker: Broker) -> MetricsRegistry:
    metrics = MetricsRegistry()
    metrics.add(broker.metric_samples)
    metrics.add(process_samples)
    return metrics
