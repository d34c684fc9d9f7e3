"""/admin/v2/resource-quotas: what a bundle is expected to need. Kept and told: brokers share bundles by what they carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import enforcement
from magnetar.admin.routes.bundles import require_bundle
from magnetar.admin.routing import Guards, Route
from magnetar.policies import paths
from magnetar.policies.model import CamelModel
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/resource-quotas"
BUNDLE: Final = f"{BASE}/{{tenant}}/{{namespace}}/{{bundle}}"


class ResourceQuota(CamelModel):
    """Rates in messages and bytes a second, memory in MB. Source: Pulsar ResourceQuota, with its defaults."""

    msg_rate_in: float = 40.0
    msg_rate_out: float = 120.0
    bandwidth_in: float = 100_000.0
    bandwidth_out: float = 300_000.0
    memory: float = 80.0
    dynamic: bool = True


async def get_default(call: Call) -> ResourceQuota:
    """What a bundle is expected to need where nothing is said of it."""
    call.notes.update(enforcement.note("resourceQuota"))
    return await call.admin.resources.records.get(_default(), ResourceQuota) or ResourceQuota()


async def set_default(call: Call) -> None:
    """Say what a bundle is expected to need where nothing is said of it."""
    call.notes.update(enforcement.note("resourceQuota"))
    quota = ResourceQuota.read(call.required("a resource quota"))
    await call.admin.resources.records.change(_default(), ResourceQuota, lambda _: quota, missing=None)


async def get_quota(call: Call) -> ResourceQuota:
    """What a bundle is expected to need."""
    await require_bundle(call)
    own = await call.admin.resources.records.get(_own(call), ResourceQuota)
    return own or await get_default(call)


async def set_quota(call: Call) -> None:
    """Say what a bundle is expected to need."""
    call.notes.update(enforcement.note("resourceQuota"))
    await require_bundle(call)
    quota = ResourceQuota.read(call.required("a resource quota"))
    await call.admin.resources.records.change(_own(call), ResourceQuota, lambda _: quota, missing=None)


async def remove_quota(call: Call) -> None:
    """Say nothing of what a bundle needs."""
    await require_bundle(call)
    await call.admin.resources.records.delete(_own(call), missing=None)


def _default() -> str:
    return f"{paths.RESOURCE_QUOTAS}/default"


def _own(call: Call) -> str:
    return f"{paths.RESOURCE_QUOTAS}/namespace/{call.namespace}/{call['bundle'].lower()}"


ROUTES: Final = (
    Route("GET", BASE, get_default),
    Route("POST", BASE, set_default, body=ResourceQuota),
    Route("GET", BUNDLE, get_quota, Guards.NAMESPACE, Action.READ_POLICY),
    Route("POST", BUNDLE, set_quota, body=ResourceQuota),
    Route("DELETE", BUNDLE, remove_quota),
)
