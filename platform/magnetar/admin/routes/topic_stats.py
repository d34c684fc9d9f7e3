"""/admin/v2/{domain}/…: how a topic fares, and where its messages are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from magnetar.admin.routes.targets import (
    ONE,
    Place,
    message_id_json,
    partitions_of,
    require_partitioned,
    require_stored,
    runs,
    stored,
    stored_parts,
)
from magnetar.admin.routing import Guards, Route
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.managed_ledger import Position
from magnetar.policies.errors import NotFound
from magnetar.protocol.ids import MessageId
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call


def stats_options(call: Call) -> dict[str, bool]:
    """What the query wants in statistics."""
    return {
        "exclude_publishers": call.flag("excludePublishers"),
        "exclude_consumers": call.flag("excludeConsumers"),
        "precise_backlog": call.flag("getPreciseBacklog"),
        "subscription_backlog_size": call.flag("subscriptionBacklogSize", default=True),
        "earliest_time_in_backlog": call.flag("getEarliestTimeInBacklog"),
    }


STATS_QUERY: Final = (
    "getPreciseBacklog",
    "subscriptionBacklogSize",
    "getEarliestTimeInBacklog",
    "excludePublishers",
    "excludeConsumers",
)


async def stats(call: Call) -> dict[str, Any]:
    """How a topic fares: rates, backlogs, who is connected."""
    if await partitions_of(call) is not None:
        raise NotFound(f"{call.topic} is partitioned: ask for its partitioned-stats, or name a partition")
    topic = await call.loaded()
    if call.flag("getEarliestTimeInBacklog") and isinstance(topic, PersistentTopic):
        await topic.backlog.look()
    return topic.stats(**stats_options(call))


async def internal_stats(call: Call) -> dict[str, Any]:
    """A topic's ledgers and cursors."""
    return (await stored(call)).internal_stats()


async def partitioned_internal_stats(call: Call) -> dict[str, Any]:
    """The ledgers and cursors of all partitions."""
    count = await require_partitioned(call)
    told = {str(topic.name): topic.internal_stats() async for topic in stored_parts(call)}
    return {"metadata": {"partitions": count, "deleted": False}, "partitions": told}


async def internal_info(call: Call) -> dict[str, Any]:
    """Which ledgers a topic lies in, and how far its cursors are, as it is written down."""
    require_stored(call)
    if await partitions_of(call) is not None:
        return {
            "version": 0,
            "partitions": {str(topic.name): _info(topic) async for topic in stored_parts(call)},
        }
    return _info(await stored(call))


def _info(topic: PersistentTopic) -> dict[str, Any]:
    told = topic.internal_stats()
    cursors = {
        name: {
            "version": 0,
            "cursorsLedgerId": cursor.get("cursorLedger", -1),
            "markDelete": _position_json(cursor["markDeletePosition"]),
        }
        for name, cursor in told.get("cursors", {}).items()
    }
    ledgers = [
        {"ledgerId": run.ledger_id, "entries": run.entries, "size": run.size, "isOffloaded": False}
        for run in runs(topic)
    ]
    info: dict[str, Any] = {"version": 0, "ledgers": ledgers, "cursors": cursors}
    if topic.terminated:
        last = topic.ledger.last_confirmed
        info["terminatedPosition"] = {"ledgerId": last.ledger_id, "entryId": last.entry_id}
    return info


def _position_json(text: str) -> dict[str, int]:
    ledger_id, _, entry_id = text.partition(":")
    return {"ledgerId": int(ledger_id), "entryId": int(entry_id)}


async def last_message_id(call: Call) -> dict[str, Any]:
    """The id of the last message a consumer can get."""
    return message_id_json(await (await stored(call)).last_message_id())


async def message_id_at(call: Call) -> dict[str, Any]:
    """The id of the first message that is not older than a time, in milliseconds since 1970."""
    timestamp_ms = call.path_number("timestamp")
    topic = await stored(call)
    found = await topic.ledger.position_at_time(timestamp_ms)
    if found is None:  # Younger than everything: what will be published next.
        last = topic.ledger.last_confirmed
        found = Position(last.ledger_id, last.entry_id + 1)
    return message_id_json(MessageId(found.ledger_id, found.entry_id, topic.partition))


async def backlog(call: Call) -> dict[str, Any]:
    """How much a topic holds, and how much of it is not acknowledged."""
    topic = await stored(call)
    subscriptions = list(topic.subscriptions.items())
    return {
        "topicName": str(topic.name),
        "brokerName": call.admin.broker.ownership.address.broker_id,
        "storageSize": topic.ledger.total_size,
        "totalMessages": topic.ledger.number_of_entries,
        "messageBacklog": sum(each.cursor.backlog for _, each in subscriptions),
        "dataLedgerDetails": [run._asdict() for run in runs(topic)],
        "cursorDetails": {
            name: {"cursorBacklog": each.cursor.backlog, "cursorLedgerId": -1} for name, each in subscriptions
        },
    }


async def backlog_size(call: Call) -> int:
    """How many bytes lie behind a message id, that message included; by whole entries of average size."""
    place = Place(call.required("a message id"))
    topic = await stored(call)
    size = 0.0
    for run in runs(topic):
        if place.is_earliest or run.ledger_id > place.ledger_id:
            size += run.size
        elif run.ledger_id == place.ledger_id:
            size += run.size * max(0, run.entries - max(0, place.entry_id)) / run.entries
    return round(size)


_LOOK: Final = (Guards.TOPIC, Action.READ_STATS)

ROUTES: Final = (
    Route("GET", f"{ONE}/stats", stats, *_LOOK, query=STATS_QUERY),
    Route("GET", f"{ONE}/internalStats", internal_stats, *_LOOK, query=("metadata",)),
    Route("GET", f"{ONE}/partitioned-internalStats", partitioned_internal_stats, *_LOOK),
    Route("GET", f"{ONE}/internal-info", internal_info, *_LOOK),
    Route("GET", f"{ONE}/lastMessageId", last_message_id, *_LOOK),
    Route("GET", f"{ONE}/messageid/{{timestamp}}", message_id_at, *_LOOK),
    Route("GET", f"{ONE}/backlog", backlog, *_LOOK),
    Route("PUT", f"{ONE}/backlogSize", backlog_size, *_LOOK),
)
