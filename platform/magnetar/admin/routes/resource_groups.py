"""/admin/v2/resourcegroups: limits that namespaces share. Kept, not enforced yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routing import Route
from magnetar.policies import paths
from magnetar.policies.checks import check_plain_name
from magnetar.policies.model import CamelModel, Int32, Int64

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/resourcegroups"


class ResourceGroup(CamelModel):
    """Rates shared by the namespaces of a group."""

    publish_rate_in_msgs: Int32 | None = None
    publish_rate_in_bytes: Int64 | None = None
    dispatch_rate_in_msgs: Int32 | None = None
    dispatch_rate_in_bytes: Int64 | None = None
    replication_dispatch_rate_in_msgs: Int64 | None = None
    replication_dispatch_rate_in_bytes: Int64 | None = None


async def list_groups(call: Call) -> list[str]:
    """The names of all groups."""
    return await call.admin.resources.records.names(paths.RESOURCE_GROUPS)


async def get_group(call: Call) -> ResourceGroup:
    """A group's limits."""
    group = await call.admin.resources.records.get(_path(call), ResourceGroup)
    if group is None:
        raise Refused(404, "ResourceGroup does not exist")
    return group


async def put_group(call: Call) -> None:
    """Make a group, or change its limits."""
    call.notes.update(enforcement.note("resourcegroup"))
    group = ResourceGroup.read(call.json)
    await call.admin.resources.records.change(_path(call), ResourceGroup, lambda _: group, missing=None)


async def delete_group(call: Call) -> None:
    """Delete a group that no namespace is in."""
    resources = call.admin.resources
    await get_group(call)
    for tenant in await resources.tenants():
        for namespace in await resources.namespaces(tenant):
            policies = await resources.namespace_policies(namespace)
            if policies is not None and policies.resource_group_name == call["group"]:
                raise Refused(409, f"ResourceGroup is in use by namespace {namespace}")
    await resources.records.delete(_path(call), "ResourceGroup does not exist")


def _path(call: Call) -> str:
    return f"{paths.RESOURCE_GROUPS}/{check_plain_name('resource group', call['group'])}"


ROUTES: Final = (
    Route("GET", BASE, list_groups),
    Route("GET", f"{BASE}/{{group}}", get_group),
    Route("PUT", f"{BASE}/{{group}}", put_group, body=ResourceGroup),
    Route("DELETE", f"{BASE}/{{group}}", delete_group),
)
