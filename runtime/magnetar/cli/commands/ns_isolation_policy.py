"""`magnetar ns-isolation-policy`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.session import api, key_values, show_json, split_list

app = typer.Typer()

Cluster = Annotated[str, typer.Argument(metavar="CLUSTER")]
Policy = Annotated[str, typer.Argument(metavar="POLICY")]


@app.command("list")
def list_policies(cluster: Cluster) -> None:
    """Show the groups of namespaces that are kept on brokers of their own."""
    show_json(api().get(_path(cluster)))


@app.command()
def get(cluster: Cluster, policy: Policy) -> None:
    """Show one of them."""
    show_json(api().get(f"{_path(cluster)}/{segment(policy)}"))


@app.command("set")
def set_policy(
    cluster: Cluster,
    policy: Policy,
    namespaces: Annotated[list[str], typer.Option("--namespaces", help="Expressions, between commas.")],
    primary: Annotated[list[str], typer.Option("--primary", help="Brokers: expressions, between commas.")],
    secondary: Annotated[
        list[str] | None, typer.Option("--secondary", help="Brokers to fall back on.")
    ] = None,
    auto_failover_policy_type: Annotated[str, typer.Option("--auto-failover-policy-type")] = "min_available",
    auto_failover_policy_params: Annotated[
        list[str] | None, typer.Option("--auto-failover-policy-params", help="name=value, between commas.")
    ] = None,
) -> None:
    """Keep a group of namespaces on brokers of their own."""
    said = {
        "namespaces": split_list(namespaces),
        "primary": split_list(primary),
        "secondary": split_list(secondary),
        "auto_failover_policy": {
            "policy_type": auto_failover_policy_type,
            "parameters": key_values(auto_failover_policy_params, "--auto-failover-policy-params"),
        },
    }
    api().post(f"{_path(cluster)}/{segment(policy)}", said)


@app.command()
def delete(cluster: Cluster, policy: Policy) -> None:
    """Keep that group of namespaces nowhere."""
    api().delete(f"{_path(cluster)}/{segment(policy)}")


@app.command()
def brokers(cluster: Cluster) -> None:
    """Show every broker, and which namespaces are kept on it."""
    show_json(api().get(f"{_path(cluster)}/brokers"))


@app.command()
def broker(cluster: Cluster, broker: Annotated[str, typer.Option("--broker", help="host:port")]) -> None:
    """Show one broker, and which namespaces are kept on it."""
    show_json(api().get(f"{_path(cluster)}/brokers/{segment(broker)}"))


def _path(cluster: str) -> str:
    return f"/admin/v2/clusters/{segment(cluster)}/namespaceIsolationPolicies"
