"""/admin/v2/clusters"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin.answers import Answer, done
from magnetar.admin.bodies import texts
from magnetar.admin.enforcement import HEADER, NOT_ENFORCED
from magnetar.admin.routing import Guards, Route
from magnetar.policies import paths
from magnetar.policies.checks import check_plain_name
from magnetar.policies.cluster import ClusterData, ClusterPolicies, ClusterUrl, FailureDomain
from magnetar.policies.errors import Conflict, NotFound, PreconditionFailed

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/clusters"


async def list_clusters(call: Call) -> list[str]:
    """The names of all clusters."""
    return [name for name in await call.admin.resources.clusters() if name != "global"]


async def get_cluster(call: Call) -> ClusterData:
    """How a cluster is reached."""
    data = await call.admin.resources.cluster(call["cluster"])
    if data is None:
        raise NotFound("Cluster does not exist")
    return data


async def create_cluster(call: Call) -> Answer:
    """Make a cluster known."""
    await call.admin.resources.create_cluster(call["cluster"], ClusterData.read(call.json))
    return done()


async def update_cluster(call: Call) -> Answer:
    """Replace what is known of a cluster."""
    data = ClusterData.read(call.json)
    await call.admin.resources.update_cluster(call["cluster"], lambda _: data)
    return done()


async def delete_cluster(call: Call) -> None:
    """Forget a cluster that no namespace lives on."""
    await call.admin.resources.delete_cluster(call["cluster"])


async def get_migration(call: Call) -> ClusterPolicies:
    """Whether a cluster has moved, and where to."""
    data = await get_cluster(call)
    return ClusterPolicies(migrated=data.migrated, migrated_cluster_url=data.migrated_cluster_url)


async def migrate(call: Call) -> Answer:
    """Say that a cluster has moved."""
    url = ClusterUrl.read(call.json)
    migrated = call.flag("migrated")
    await call.admin.resources.update_cluster(
        call["cluster"], lambda data: data.changed(migrated=migrated, migrated_cluster_url=url)
    )
    call.notes[HEADER] = NOT_ENFORCED
    return done()


async def get_peers(call: Call) -> list[str]:
    """Clusters whose namespaces may not replicate to this one as well."""
    return (await get_cluster(call)).peer_cluster_names or []


async def set_peers(call: Call) -> None:
    """Replace a cluster's peers."""
    peers = texts(call.json if call.json is not None else [])
    known = await call.admin.resources.clusters()
    for peer in peers:
        if peer == call["cluster"]:
            raise PreconditionFailed(f"{peer} itself can't be part of peer-list")
        if peer not in known:
            raise PreconditionFailed(f"Peer cluster {peer} does not exist")
    await call.admin.resources.update_cluster(
        call["cluster"], lambda data: data.changed(peer_cluster_names=peers)
    )


async def list_domains(call: Call) -> dict[str, FailureDomain]:
    """Brokers that fail together."""
    await get_cluster(call)
    records = call.admin.resources.records
    base = paths.failure_domains(call["cluster"])
    found = {name: await records.get(f"{base}/{name}", FailureDomain) for name in await records.names(base)}
    return {name: domain for name, domain in found.items() if domain is not None}


async def get_domain(call: Call) -> FailureDomain:
    """The brokers of one failure domain."""
    domains = await list_domains(call)
    if call["name"] not in domains:
        raise NotFound(f"Domain {call['name']} doesn't exist")
    return domains[call["name"]]


async def set_domain(call: Call) -> None:
    """Say which brokers fail together."""
    domain = FailureDomain.read(call.json)
    for name, other in (await list_domains(call)).items():
        taken = sorted(set(domain.brokers) & set(other.brokers))
        if name != call["name"] and taken:
            raise Conflict(f"{taken[0]} already exists in domain {name}")
    await call.admin.resources.records.change(
        _domain_path(call), FailureDomain, lambda _: domain, missing=None
    )
    call.notes[HEADER] = NOT_ENFORCED


async def delete_domain(call: Call) -> None:
    """Forget a failure domain."""
    await get_cluster(call)
    await call.admin.resources.records.delete(_domain_path(call), f"Domain {call['name']} doesn't exist")


def _domain_path(call: Call) -> str:
    return f"{paths.failure_domains(call['cluster'])}/{check_plain_name('domain', call['name'])}"


ROUTES: Final = (
    Route("GET", BASE, list_clusters, Guards.NOTHING),
    Route("GET", f"{BASE}/{{cluster}}", get_cluster),
    Route("PUT", f"{BASE}/{{cluster}}", create_cluster, body=ClusterData),
    Route("POST", f"{BASE}/{{cluster}}", update_cluster, body=ClusterData),
    Route("DELETE", f"{BASE}/{{cluster}}", delete_cluster),
    Route("GET", f"{BASE}/{{cluster}}/migrate", get_migration),
    Route("POST", f"{BASE}/{{cluster}}/migrate", migrate, body=ClusterUrl, query=("migrated",)),
    Route("GET", f"{BASE}/{{cluster}}/peers", get_peers),
    Route("POST", f"{BASE}/{{cluster}}/peers", set_peers),
    Route("GET", f"{BASE}/{{cluster}}/failureDomains", list_domains),
    Route("GET", f"{BASE}/{{cluster}}/failureDomains/{{name}}", get_domain),
    Route("POST", f"{BASE}/{{cluster}}/failureDomains/{{name}}", set_domain, body=FailureDomain),
    Route("DELETE", f"{BASE}/{{cluster}}/failureDomains/{{name}}", delete_domain),
)
