"""/admin/v2/clusters/…/namespaceIsolationPolicies: which brokers namespaces are kept on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routes.brokers import known_brokers
from magnetar.admin.routes.clusters import BASE as CLUSTERS
from magnetar.admin.routes.clusters import get_cluster
from magnetar.admin.routing import Route
from magnetar.policies import paths
from magnetar.policies.checks import check_plain_name
from magnetar.policies.errors import NotFound
from magnetar.policies.isolation import Isolation, Isolations

if TYPE_CHECKING:
    from magnetar.admin.call import Call

ALL: Final = f"{CLUSTERS}/{{cluster}}/namespaceIsolationPolicies"


async def list_isolations(call: Call) -> dict[str, Isolation]:
    """All groups of namespaces that are kept on brokers of their own."""
    call.notes.update(enforcement.note("namespaceIsolationPolicies"))
    return await _stored(call)


async def get_isolation(call: Call) -> Isolation:
    """One of them."""
    found = (await list_isolations(call)).get(call["name"])
    if found is None:
        raise _missing(call)
    return found


async def set_isolation(call: Call) -> None:
    """Keep a group of namespaces on brokers of their own."""
    call.notes.update(enforcement.note("namespaceIsolationPolicies"))
    await get_cluster(call)
    name = check_plain_name("namespace isolation policy", call["name"])
    said = Isolation.read(call.required("an isolation policy"))
    said.check()

    def put(stored: Isolations) -> Isolations:
        return stored.changed(policies={**stored.policies, name: said})

    await call.admin.resources.records.change(_path(call), Isolations, put, missing=None)


async def delete_isolation(call: Call) -> None:
    """Keep that group of namespaces nowhere."""
    if call["name"] not in await _stored(call):
        raise _missing(call)

    def take(stored: Isolations) -> Isolations:
        left = {name: each for name, each in stored.policies.items() if name != call["name"]}
        return stored.changed(policies=left)

    await call.admin.resources.records.change(_path(call), Isolations, take, missing=None)


async def list_brokers(call: Call) -> list[dict[str, Any]]:
    """Every broker, and which namespaces are kept on it."""
    isolations = await _stored(call)
    return [_of_broker(broker, isolations) for broker in known_brokers(call)]


async def get_broker(call: Call) -> dict[str, Any]:
    """One of them."""
    isolations = await _stored(call)
    if call["broker"] not in known_brokers(call):
        raise Refused(404, f"Broker {call['broker'][:200]} is not there")
    return _of_broker(call["broker"], isolations)


def _of_broker(broker: str, isolations: dict[str, Isolation]) -> dict[str, Any]:
    host = broker.rpartition(":")[0]
    told: dict[str, Any] = {"brokerName": broker, "primary": False, "namespaceRegex": []}
    for name, each in isolations.items():
        if each.allows(host) or each.allows(broker):
            told["policyName"] = name
            told["primary"] = each.prefers(host) or each.prefers(broker)
            told["isPrimary"] = told["primary"]
            told["namespaceRegex"] += each.namespaces
    return told


async def _stored(call: Call) -> dict[str, Isolation]:
    await get_cluster(call)
    record = await call.admin.resources.records.get(_path(call), Isolations)
    return {} if record is None else record.policies


def _path(call: Call) -> str:
    return paths.isolation_policies(call["cluster"])


def _missing(call: Call) -> NotFound:
    return NotFound(
        f"NamespaceIsolationPolicies for cluster {call['cluster']} does not exist: {call['name'][:100]}"
    )


ROUTES: Final = (
    Route("GET", ALL, list_isolations),
    Route("GET", f"{ALL}/{{name}}", get_isolation),
    Route("POST", f"{ALL}/{{name}}", set_isolation, body=Isolation),
    Route("DELETE", f"{ALL}/{{name}}", delete_isolation),
    Route("GET", f"{ALL}/brokers", list_brokers),
    Route("GET", f"{ALL}/brokers/{{broker}}", get_broker),
)
