"""/admin/v2/bookies"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.errors import Refused
from magnetar.admin.routing import Route
from magnetar.ledger.errors import LedgerError
from magnetar.policies.storage import BookieInfo

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.ledger.client import LedgerClient

BASE: Final = "/admin/v2/bookies"


def _ledgers(call: Call) -> LedgerClient:
    return call.admin.broker.context.ledgers.ledger_client


async def list_bookies(call: Call) -> dict[str, Any]:
    """The bookies that are there now."""
    try:
        found = await _ledgers(call).surroundings.bookies.readable()
    except LedgerError as error:
        raise Refused(503, str(error)) from error
    return {"bookies": [{"bookieId": name} for name in sorted(found)]}


async def racks(call: Call) -> dict[str, Any]:
    """Which bookie stands in which rack, by group, as it was said."""
    said: dict[str, dict[str, Any]] = {}
    for bookie, place in sorted((await _ledgers(call).racks.places()).items()):
        said.setdefault(place.group, {})[bookie] = {"rack": place.rack, "hostname": None}
    return said


async def rack(call: Call) -> dict[str, Any]:
    """Where one bookie stands, as it was said."""
    place = (await _ledgers(call).racks.places()).get(call["bookie"])
    if place is None:
        raise Refused(404, "Bookie rack placement configuration not found: " + call["bookie"][:200])
    return {"rack": place.rack, "hostname": None}


async def place(call: Call) -> None:
    """Say in which rack and group a bookie stands: new ledgers are placed by it."""
    group = call.query.get("group")
    if not group:
        raise Refused(412, "Bookie 'group' parameters is missing: say which group it belongs to")
    info = BookieInfo.read(call.json)
    try:
        await _ledgers(call).racks.place(call["bookie"], info.rack or "", group)
    except LedgerError as error:
        raise Refused(503, str(error)) from error


async def forget(call: Call) -> None:
    """Say nothing of where a bookie stands any more."""
    try:
        await _ledgers(call).racks.remove(call["bookie"])
    except LedgerError as error:
        raise Refused(503, str(error)) from error


ROUTES: Final = (
    Route("GET", f"{BASE}/all", list_bookies),
    Route("GET", f"{BASE}/racks-info", racks),
    Route("GET", f"{BASE}/racks-info/{{bookie}}", rack),
    Route("POST", f"{BASE}/racks-info/{{bookie}}", place, body=BookieInfo, query=("group",)),
    Route("DELETE", f"{BASE}/racks-info/{{bookie}}", forget),
)
