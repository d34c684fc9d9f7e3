"""`magnetar metadata`: making a cluster, and telling which one a store belongs to."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from magnetar.cli.cluster_identity import ClusterIdentity, check_name, make_identity
from magnetar.cli.errors import CommandError
from magnetar.cli.operator.store import JsonOption, StoreOption, run_command, show_json, with_cluster
from magnetar.environment.clock import SystemClock
from magnetar.metadata.opening import open_store

app = typer.Typer()


@app.command("init")
def init(
    cluster: Annotated[str, typer.Option("--cluster", metavar="NAME", help="Name of the cluster.")],
    metadata_store: StoreOption = "",
    bookie_metadata_store: Annotated[
        str, typer.Option(metavar="URL", help="Where ledgers and bookies are recorded, if elsewhere.")
    ] = "",
    web_service_url: Annotated[
        str, typer.Option(metavar="URL", help="What other clusters call its REST API: http://...")
    ] = "",
    broker_service_url: Annotated[
        str, typer.Option(metavar="URL", help="What clients of other clusters connect to: pulsar://...")
    ] = "",
    json: JsonOption = False,
) -> None:
    """Make a cluster in an empty metadata store. Done again for the same cluster, it changes nothing."""
    if not metadata_store:
        raise CommandError("where is the metadata store? Say --metadata-store zk:host:2181")
    check_name(cluster)
    identity, made = run_command(
        lambda: _init(cluster, metadata_store, bookie_metadata_store, web_service_url, broker_service_url)
    )
    if json:
        show_json({**_as_json(identity), "created": made})
    elif made:
        print(f"cluster {identity.cluster!r} is made ({identity.instance_id})")
    else:
        print(f"cluster {identity.cluster!r} was made already ({identity.instance_id})")


async def _init(
    cluster: str, url: str, bookies_url: str, web_url: str, broker_url: str
) -> tuple[ClusterIdentity, bool]:
    from magnetar.policies.effective import PolicyDefaults
    from magnetar.policies.resources import Resources

    now_ms = SystemClock().time_ms()
    store = await open_store(url)
    try:
        identity, made = await make_identity(store, cluster, now_ms)
        if bookies_url not in ("", url):
            bookies = await open_store(bookies_url)
            try:
                await make_identity(bookies, cluster, identity.created_ms, instance_id=identity.instance_id)
            finally:
                await bookies.close()
        resources = Resources(store, PolicyDefaults(cluster=cluster))
        try:
            await resources.bootstrap(cluster, web_url, broker_url, overwrite=False)
        finally:
            resources.close()
    finally:
        await store.close()
    return identity, made


@app.command("info")
def info(metadata_store: StoreOption = "", json: JsonOption = False) -> None:
    """Tell which cluster a metadata store belongs to."""

    async def ask(cluster: Any) -> ClusterIdentity:
        found: ClusterIdentity = cluster.identity
        return found

    identity = with_cluster(metadata_store, ask)
    if json:
        show_json(_as_json(identity))
    else:
        print(f"cluster {identity.cluster!r} ({identity.instance_id})")


def _as_json(identity: ClusterIdentity) -> dict[str, Any]:
    return {
        "cluster": identity.cluster,
        "instanceId": identity.instance_id,
        "createdMs": identity.created_ms,
    }
