"""/admin/v2/bookies"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.routing import Route

if TYPE_CHECKING:
    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/bookies"
AVAILABLE: Final = "/ledgers/available"


async def list_bookies(call: Call) -> dict[str, Any]:
    """The bookies that are there now."""
    names = await call.admin.broker.context.metadata.children(AVAILABLE)
    return {"bookies": [{"bookieId": name} for name in names if name != "readonly"]}


async def racks(call: Call) -> dict[str, Any]:
    """Which bookie stands where: nobody has said, and nothing is placed by it yet."""
    return {}


ROUTES: Final = (
    Route("GET", f"{BASE}/all", list_bookies),
    Route("GET", f"{BASE}/racks-info", racks),
)
