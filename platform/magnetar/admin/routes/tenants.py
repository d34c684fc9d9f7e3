"""/admin/v2/tenants"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin.errors import Refused
from magnetar.admin.routes.namespaces import remove_namespace
from magnetar.admin.routing import Guards, Route
from magnetar.policies.errors import NotFound
from magnetar.policies.tenant import TenantInfo
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/tenants"


async def list_tenants(call: Call) -> list[str]:
    """The names of all tenants."""
    return await call.admin.resources.tenants()


async def get_tenant(call: Call) -> TenantInfo:
    """Who administers a tenant, and where it may live."""
    info = await call.admin.resources.tenant(call["tenant"])
    if info is None:
        raise NotFound("Tenant does not exist")
    return info


async def create_tenant(call: Call) -> None:
    """Make a tenant."""
    await call.admin.resources.create_tenant(call["tenant"], TenantInfo.read(call.json))


async def update_tenant(call: Call) -> None:
    """Replace what is said of a tenant."""
    await call.admin.resources.update_tenant(call["tenant"], TenantInfo.read(call.json))


async def delete_tenant(call: Call) -> None:
    """Delete a tenant; with `force`, its namespaces and their topics too."""
    if call.flag("force"):
        if not call.admin.settings.force_delete_allowed:
            raise Refused(405, "Broker doesn't allow forced deletion of tenants")
        await get_tenant(call)
        for namespace in await call.admin.resources.namespaces(call["tenant"]):
            await remove_namespace(call.admin, namespace, force=True)
    await call.admin.resources.delete_tenant(call["tenant"])


ROUTES: Final = (
    Route("GET", BASE, list_tenants),
    Route("GET", f"{BASE}/{{tenant}}", get_tenant, Guards.TENANT, Action.ADMINISTER_TENANT),
    Route("PUT", f"{BASE}/{{tenant}}", create_tenant, body=TenantInfo),
    Route("POST", f"{BASE}/{{tenant}}", update_tenant, body=TenantInfo),
    Route("DELETE", f"{BASE}/{{tenant}}", delete_tenant, query=("force",)),
)
