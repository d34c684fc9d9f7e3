"""/admin/v2/persistent/…/analyzeBacklog: what a subscription has still to get, by reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.routes.targets import SUBSCRIPTION, Place, subscription
from magnetar.admin.routing import Guards, Route
from magnetar.broker.backlog_analysis import analyze, not_due
from magnetar.broker.filters import reject_markers
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.managed_ledger import Position


async def analyze_backlog(call: Call) -> dict[str, Any]:
    """Count what a subscription has still to get, from a message id on or from where it stands."""
    found_in = await subscription(call)
    settings, clock = call.admin.settings, found_in.topic.clock
    found = await analyze(
        found_in,
        (reject_markers, not_due(clock.time_ms())),
        clock,
        start=_start(call),
        entries_max=settings.backlog_scan_entries_max,
        seconds_max=settings.backlog_scan_s_max,
    )
    return {
        "entries": found.entries,
        "messages": found.messages,
        "markerMessages": found.marker_messages,
        "filterAcceptedEntries": found.accepted_entries,
        "filterAcceptedMessages": found.accepted_messages,
        "filterRejectedEntries": found.rejected_entries,
        "filterRejectedMessages": found.rejected_messages,
        "filterRescheduledEntries": found.rescheduled_entries,
        "filterRescheduledMessages": found.rescheduled_messages,
        "aborted": found.aborted,
        "firstMessageId": _told(found.first),
        "lastMessageId": _told(found.last),
    }


def _start(call: Call) -> Position | None:
    if call.json is None:
        return None
    place = Place(call.json)
    return None if place.is_latest or place.is_earliest else place.position


def _told(position: Position | None) -> str | None:
    return None if position is None else f"{position.ledger_id}:{position.entry_id}"


ROUTES: Final = (
    Route("POST", f"{SUBSCRIPTION}/analyzeBacklog", analyze_backlog, Guards.TOPIC, Action.READ_STATS),
)
