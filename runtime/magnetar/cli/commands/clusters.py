"""`magnetar clusters`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show, split_list

app = typer.Typer()

_PATH = "/admin/v2/clusters"
Cluster = Annotated[str, typer.Argument(metavar="CLUSTER")]
Url = Annotated[str | None, typer.Option("--url", help="Its REST API, http://...")]
UrlTls = Annotated[str | None, typer.Option("--url-secure", help="The same over TLS.")]
BrokerUrl = Annotated[str | None, typer.Option("--broker-url", help="Its binary protocol, pulsar://...")]
BrokerUrlTls = Annotated[str | None, typer.Option("--broker-url-secure", help="The same over TLS.")]


@app.command("list")
def list_clusters() -> None:
    """Name all clusters."""
    show(api().get(_PATH))


@app.command()
def get(cluster: Cluster) -> None:
    """Show a cluster."""
    show(api().get(f"{_PATH}/{segment(cluster)}"))


@app.command()
def create(
    cluster: Cluster,
    url: Url = None,
    url_secure: UrlTls = None,
    broker_url: BrokerUrl = None,
    broker_url_secure: BrokerUrlTls = None,
) -> None:
    """Make a cluster known."""
    api().put(f"{_PATH}/{segment(cluster)}", _data(url, url_secure, broker_url, broker_url_secure))


@app.command()
def update(
    cluster: Cluster,
    url: Url = None,
    url_secure: UrlTls = None,
    broker_url: BrokerUrl = None,
    broker_url_secure: BrokerUrlTls = None,
) -> None:
    """Change a cluster's addresses; what is not given stays."""
    platform = api()
    known = platform.get(f"{_PATH}/{segment(cluster)}") or {}
    given = _data(url, url_secure, broker_url, broker_url_secure)
    platform.post(f"{_PATH}/{segment(cluster)}", {**known, **given})


@app.command()
def delete(cluster: Cluster) -> None:
    """Forget a cluster that has no namespaces."""
    api().delete(f"{_PATH}/{segment(cluster)}")


@app.command("get-peer-clusters")
def get_peer_clusters(cluster: Cluster) -> None:
    """Name a cluster's peers."""
    show(api().get(f"{_PATH}/{segment(cluster)}/peers"))


@app.command("update-peer-clusters")
def update_peer_clusters(
    cluster: Cluster, peer_clusters: Annotated[list[str], typer.Option("--peer-clusters")]
) -> None:
    """Set a cluster's peers."""
    api().post(f"{_PATH}/{segment(cluster)}/peers", split_list(peer_clusters))


def _data(
    url: str | None, url_secure: str | None, broker_url: str | None, broker_url_secure: str | None
) -> dict[str, str]:
    fields = {
        "serviceUrl": url,
        "serviceUrlTls": url_secure,
        "brokerServiceUrl": broker_url,
        "brokerServiceUrlTls": broker_url_secure,
    }
    return {name: value for name, value in fields.items() if value is not None}
