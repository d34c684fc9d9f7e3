"""`magnetar namespaces`."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.admin_api import segment
from magnetar.cli.commands.policies import BACKLOG_QUOTA, NAMESPACE_POLICIES, add_policies
from magnetar.cli.commands.session import api, checked, key_values, namespace_path, show, split_list
from magnetar.cli.units import seconds, size_bytes

app = typer.Typer()

Namespace = Annotated[str, typer.Argument(metavar="TENANT/NAMESPACE")]
Bundle = Annotated[str | None, typer.Option("--bundle", "-b", help="One bundle, 0x..._0x... (default: all).")]
Subscription = Annotated[str | None, typer.Option("--sub", "-s", help="One subscription (default: all).")]
Role = Annotated[str, typer.Option("--role", "-r")]
QuotaType = Annotated[str, typer.Option("--type", "-t", help="destination_storage or message_age.")]


@app.command("list")
def list_namespaces(tenant: Annotated[str, typer.Argument(metavar="TENANT")]) -> None:
    """Name a tenant's namespaces."""
    show(api().get(f"/admin/v2/namespaces/{segment(tenant)}"))


@app.command()
def create(
    namespace: Namespace,
    bundles: Annotated[int, typer.Option("--bundles", "-b", help="0: the default number.")] = 0,
    clusters: Annotated[
        list[str] | None, typer.Option("--clusters", "-c", help="Clusters it lives on.")
    ] = None,
) -> None:
    """Create a namespace."""
    policies: dict[str, object] = {}
    if bundles:
        policies["bundles"] = {"numBundles": bundles}
    if clusters:
        policies["replication_clusters"] = split_list(clusters)
    api().put(namespace_path(namespace), policies)


@app.command()
def delete(
    namespace: Namespace,
    force: Annotated[bool, typer.Option("--force", "-f", help="With all its topics.")] = False,
) -> None:
    """Delete a namespace."""
    api().delete(namespace_path(namespace), force=force or None)


@app.command()
def policies(namespace: Namespace) -> None:
    """Show all policies of a namespace."""
    show(api().get(namespace_path(namespace)))


@app.command()
def topics(
    namespace: Namespace,
    mode: Annotated[
        str, typer.Option("--mode", "-m", help="PERSISTENT, NON_PERSISTENT or ALL.")
    ] = "PERSISTENT",
    include_system_topic: Annotated[bool, typer.Option("--include-system-topic", "-ist")] = False,
) -> None:
    """Name a namespace's topics, partitions one by one."""
    system = include_system_topic or None
    show(api().get(f"{namespace_path(namespace)}/topics", mode=mode, includeSystemTopic=system))


@app.command()
def bundles(namespace: Namespace) -> None:
    """Show into which bundles a namespace is cut."""
    show(api().get(f"{namespace_path(namespace)}/bundles"))


@app.command()
def unload(namespace: Namespace, bundle: Bundle = None) -> None:
    """Let the broker give a namespace's topics away; clients come back by themselves."""
    middle = f"/{bundle}" if bundle else ""
    api().put(f"{namespace_path(namespace)}{middle}/unload")


@app.command("split-bundle")
def split_bundle(
    namespace: Namespace,
    bundle: Annotated[str, typer.Option("--bundle", "-b", help="0x..._0x..., or LARGEST.")],
    unload: Annotated[bool, typer.Option("--unload", "-u", help="Unload the halves at once.")] = False,
    algorithm: Annotated[str | None, typer.Option("--split-algorithm-name", "-san")] = None,
) -> None:
    """Cut a bundle in two."""
    path = f"{namespace_path(namespace)}/{bundle}/split"
    api().put(path, unload=unload, splitAlgorithmName=algorithm)


@app.command()
def permissions(namespace: Namespace) -> None:
    """Show who may do what."""
    show(api().get(f"{namespace_path(namespace)}/permissions"))


@app.command("grant-permission")
def grant_permission(
    namespace: Namespace, role: Role, actions: Annotated[list[str], typer.Option("--actions", "-a")]
) -> None:
    """Allow a role what the actions name (produce, consume, functions, ...)."""
    api().post(f"{namespace_path(namespace)}/permissions/{segment(role)}", split_list(actions))


@app.command("revoke-permission")
def revoke_permission(namespace: Namespace, role: Role) -> None:
    """Allow a role nothing any more."""
    api().delete(f"{namespace_path(namespace)}/permissions/{segment(role)}")


@app.command("get-backlog-quotas")
def get_backlog_quotas(namespace: Namespace) -> None:
    """Show how much may wait for slow subscriptions."""
    show(api().get(f"{namespace_path(namespace)}/backlogQuotaMap"))


@app.command("set-backlog-quota")
def set_backlog_quota(
    namespace: Namespace,
    policy: Annotated[str, typer.Option("--policy", "-p", help=BACKLOG_QUOTA[2].help)],
    limit: Annotated[str, typer.Option("--limit", "-l", help="10M, 2G; -1: no limit")] = "-1",
    limit_time: Annotated[str, typer.Option("--limitTime", "--limit-time", "-lt")] = "-1",
    type_: QuotaType = "destination_storage",
) -> None:
    """Limit how much may wait for slow subscriptions."""
    quota = {
        "limitSize": checked(size_bytes, limit, "--limit"),
        "limitTime": checked(seconds, limit_time, "--limit-time"),
        "policy": policy,
    }
    api().request(
        "POST", f"{namespace_path(namespace)}/backlogQuota", body=quota, query={"backlogQuotaType": type_}
    )


@app.command("remove-backlog-quota")
def remove_backlog_quota(namespace: Namespace, type_: QuotaType = "destination_storage") -> None:
    """Let the default limit hold again."""
    api().delete(f"{namespace_path(namespace)}/backlogQuota", backlogQuotaType=type_)


@app.command("clear-backlog")
def clear_backlog(namespace: Namespace, sub: Subscription = None, bundle: Bundle = None) -> None:
    """Acknowledge all that waits."""
    middle = f"/{bundle}" if bundle else ""
    end = f"/{segment(sub)}" if sub else ""
    api().post(f"{namespace_path(namespace)}{middle}/clearBacklog{end}")


@app.command()
def unsubscribe(
    namespace: Namespace, sub: Annotated[str, typer.Option("--sub", "-s")], bundle: Bundle = None
) -> None:
    """Delete a subscription from all topics of a namespace."""
    middle = f"/{bundle}" if bundle else ""
    api().post(f"{namespace_path(namespace)}{middle}/unsubscribe/{segment(sub)}")


@app.command("get-properties")
def get_properties(namespace: Namespace) -> None:
    """Show a namespace's properties."""
    show(api().get(f"{namespace_path(namespace)}/properties"))


@app.command("set-properties")
def set_properties(
    namespace: Namespace, properties: Annotated[list[str], typer.Option("--properties", "-p")]
) -> None:
    """Add properties, key=value."""
    api().put(f"{namespace_path(namespace)}/properties", key_values(properties, "--properties"))


@app.command("clear-properties")
def clear_properties(namespace: Namespace) -> None:
    """Take all properties away."""
    api().delete(f"{namespace_path(namespace)}/properties")


add_policies(app, NAMESPACE_POLICIES, "TENANT/NAMESPACE", namespace_path)
