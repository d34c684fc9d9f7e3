"""`magnetar tenants`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, show, split_list

app = typer.Typer()

_PATH = "/admin/v2/tenants"
Tenant = Annotated[str, typer.Argument(metavar="TENANT")]
Roles = Annotated[
    list[str] | None, typer.Option("--admin-roles", "-r", help="Roles that administer it, between commas.")
]
Clusters = Annotated[
    list[str] | None, typer.Option("--allowed-clusters", "-c", help="Clusters it may use (default: all).")
]


@app.command("list")
def list_tenants() -> None:
    """Name all tenants."""
    show(api().get(_PATH))


@app.command()
def get(tenant: Tenant) -> None:
    """Show a tenant."""
    show(api().get(f"{_PATH}/{segment(tenant)}"))


@app.command()
def create(tenant: Tenant, admin_roles: Roles = None, allowed_clusters: Clusters = None) -> None:
    """Create a tenant."""
    platform = api()
    clusters = split_list(allowed_clusters) or platform.get("/admin/v2/clusters")
    info = {"adminRoles": split_list(admin_roles), "allowedClusters": clusters}
    platform.put(f"{_PATH}/{segment(tenant)}", info)


@app.command()
def update(tenant: Tenant, admin_roles: Roles = None, allowed_clusters: Clusters = None) -> None:
    """Change a tenant; what is not given stays."""
    platform = api()
    info = platform.get(f"{_PATH}/{segment(tenant)}") or {}
    if admin_roles is not None:
        info["adminRoles"] = split_list(admin_roles)
    if allowed_clusters is not None:
        info["allowedClusters"] = split_list(allowed_clusters)
    platform.post(f"{_PATH}/{segment(tenant)}", info)


@app.command()
def delete(
    tenant: Tenant, force: Annotated[bool, typer.Option("--force", "-f", help="With all it holds.")] = False
) -> None:
    """Delete a tenant."""
    api().delete(f"{_PATH}/{segment(tenant)}", force=force or None)
