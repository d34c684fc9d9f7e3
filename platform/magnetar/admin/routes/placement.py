"""Where a namespace lives: its clusters, its bookies, and what it is kept apart from. Of these, bookies are enforced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routes.namespaces import BASE, ONE
from magnetar.admin.routing import Guards, Route
from magnetar.policies.errors import BadValue, PreconditionFailed
from magnetar.policies.namespace import Policies
from magnetar.policies.storage import BookieAffinity
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call


async def get_replication(call: Call) -> list[str]:
    """The clusters a namespace lives on."""
    call.notes.update(enforcement.note("replication"))
    return (await call.policies()).replication_clusters


async def set_replication(call: Call) -> None:
    """Say which clusters a namespace lives on."""
    call.notes.update(enforcement.note("replication"))
    clusters = bodies.texts(call.required("a list of clusters"))
    await call.policies()
    if not clusters or "global" in clusters:
        raise PreconditionFailed("Cannot specify global in the list of replication clusters, nor none at all")
    tenant = await call.admin.resources.tenant(call.namespace.tenant)
    if tenant is not None:
        await call.admin.resources.check_replication(tenant, clusters)
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(replication_clusters=clusters)
    )


async def get_allowed_clusters(call: Call) -> list[str]:
    """The clusters a namespace may live on."""
    call.notes.update(enforcement.note("replication"))
    return (await call.policies()).allowed_clusters


async def set_allowed_clusters(call: Call) -> None:
    """Say which clusters a namespace may live on."""
    call.notes.update(enforcement.note("replication"))
    clusters = bodies.texts(call.required("a list of clusters"))

    def change(said: Policies) -> Policies:
        missing = sorted(set(said.replication_clusters) - set(clusters))
        if clusters and missing:
            raise BadValue(f"Allowed clusters do not contain the replication cluster {missing[0]}")
        return said.changed(allowed_clusters=clusters)

    await call.admin.resources.update_namespace(call.namespace, change)


async def get_anti_affinity(call: Call) -> str | None:
    """The group whose namespaces are kept apart."""
    call.notes.update(enforcement.note("antiAffinity"))
    await call.policies()
    local = await call.admin.resources.local_policies(call.namespace)
    return local.anti_affinity_group if local else None


async def kept_apart(call: Call) -> list[str]:
    """The namespaces of a group that is kept apart, of one tenant or of all."""
    call.notes.update(enforcement.note("antiAffinity"))
    resources = call.admin.resources
    only = call.query.get("tenant")
    found = []
    for tenant in [only] if only else await resources.tenants():
        for namespace in await resources.namespaces(tenant):
            local = await resources.local_policies(namespace)
            if local is not None and local.anti_affinity_group == call["group"]:
                found.append(str(namespace))
    return sorted(found)


async def set_anti_affinity(call: Call) -> None:
    """Put a namespace into a group that is kept apart."""
    call.notes.update(enforcement.note("antiAffinity"))
    group = bodies.bare_text(call.body)
    if not group.strip():
        raise PreconditionFailed("Anti-affinity group can not be empty")
    await call.admin.resources.update_local_policies(
        call.namespace, lambda said: said.changed(anti_affinity_group=group)
    )


async def remove_anti_affinity(call: Call) -> None:
    """Take a namespace out of its group."""
    call.notes.update(enforcement.note("antiAffinity"))
    await call.admin.resources.update_local_policies(
        call.namespace, lambda said: said.changed(anti_affinity_group=None)
    )


async def get_bookie_affinity(call: Call) -> BookieAffinity | None:
    """The groups of bookies a namespace's ledgers are placed on."""
    call.notes.update(enforcement.note("persistence/bookieAffinity"))
    await call.policies()
    local = await call.admin.resources.local_policies(call.namespace)
    return local.bookie_affinity_group if local else None


async def set_bookie_affinity(call: Call) -> None:
    """Say which bookies a namespace's ledgers are placed on."""
    call.notes.update(enforcement.note("persistence/bookieAffinity"))
    affinity = None if call.json is None else BookieAffinity.read(call.json)
    await call.admin.resources.update_local_policies(
        call.namespace, lambda said: said.changed(bookie_affinity_group=affinity)
    )


async def remove_bookie_affinity(call: Call) -> None:
    """Place a namespace's ledgers on any bookies."""
    call.notes.update(enforcement.note("persistence/bookieAffinity"))
    await call.admin.resources.update_local_policies(
        call.namespace, lambda said: said.changed(bookie_affinity_group=None)
    )


async def migrate(call: Call) -> None:
    """Say that a namespace has moved to another cluster."""
    migrated = call.flag("migrated")
    if migrated:
        raise Refused(501, enforcement.REFUSED["migration"])
    await call.admin.resources.update_local_policies(
        call.namespace, lambda said: said.changed(migrated=migrated)
    )


_READ: Final = (Guards.NAMESPACE, Action.READ_POLICY)
_WRITE: Final = (Guards.NAMESPACE, Action.WRITE_POLICY)

ROUTES: Final = (
    Route("GET", f"{ONE}/replication", get_replication, *_READ),
    Route("POST", f"{ONE}/replication", set_replication, *_WRITE),
    Route("GET", f"{ONE}/allowedClusters", get_allowed_clusters, *_READ),
    Route("POST", f"{ONE}/allowedClusters", set_allowed_clusters, *_WRITE),
    Route("GET", f"{BASE}/{{cluster}}/antiAffinity/{{group}}", kept_apart, query=("tenant",)),
    # Where Java's client asks for it.
    Route(
        "GET",
        "/admin/namespaces/{cluster}/antiAffinity/{group}",
        kept_apart,
        query=("tenant",),
        documented=False,
    ),
    Route("GET", f"{ONE}/antiAffinity", get_anti_affinity, *_READ),
    Route("POST", f"{ONE}/antiAffinity", set_anti_affinity, *_WRITE),
    Route("DELETE", f"{ONE}/antiAffinity", remove_anti_affinity, *_WRITE),
    Route("GET", f"{ONE}/persistence/bookieAffinity", get_bookie_affinity),
    Route("POST", f"{ONE}/persistence/bookieAffinity", set_bookie_affinity, body=BookieAffinity),
    Route("DELETE", f"{ONE}/persistence/bookieAffinity", remove_bookie_affinity),
    Route("POST", f"{ONE}/migration", migrate, query=("migrated",)),
)
