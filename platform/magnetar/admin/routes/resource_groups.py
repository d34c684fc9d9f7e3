"""/admin/v2/resourcegroups: limits that namespaces share, on each broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routes.namespaces import ONE
from magnetar.admin.routing import Guards, Route
from magnetar.policies import paths
from magnetar.policies.checks import check_plain_name
from magnetar.policies.errors import PreconditionFailed
from magnetar.policies.resource_groups import ResourceGroup
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/resourcegroups"


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


async def get_group_of_namespace(call: Call) -> str | None:
    """The group whose limits a namespace shares."""
    call.notes.update(enforcement.note("resourcegroup"))
    return (await call.policies()).resource_group_name


async def join_group(call: Call) -> None:
    """Let a namespace share a group's limits."""
    call.notes.update(enforcement.note("resourcegroup"))
    group = call["group"]
    if group not in await call.admin.resources.records.names(paths.RESOURCE_GROUPS):
        raise PreconditionFailed(f"ResourceGroup {group[:100]} does not exist")
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(resource_group_name=group)
    )


async def leave_group(call: Call) -> None:
    """Let a namespace share no limits."""
    call.notes.update(enforcement.note("resourcegroup"))
    await call.admin.resources.update_namespace(
        call.namespace, lambda said: said.changed(resource_group_name=None)
    )


def _path(call: Call) -> str:
    return f"{paths.RESOURCE_GROUPS}/{check_plain_name('resource group', call['group'])}"


ROUTES: Final = (
    Route("GET", BASE, list_groups),
    Route("GET", f"{BASE}/{{group}}", get_group),
    Route("PUT", f"{BASE}/{{group}}", put_group, body=ResourceGroup),
    Route("DELETE", f"{BASE}/{{group}}", delete_group),
    Route("GET", f"{ONE}/resourcegroup", get_group_of_namespace, Guards.NAMESPACE, Action.READ_POLICY),
    Route("POST", f"{ONE}/resourcegroup/{{group}}", join_group, Guards.NAMESPACE, Action.WRITE_POLICY),
    Route("DELETE", f"{ONE}/resourcegroup", leave_group, Guards.NAMESPACE, Action.WRITE_POLICY),
)
