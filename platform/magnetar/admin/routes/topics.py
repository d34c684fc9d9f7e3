"""/admin/v2/persistent and /admin/v2/non-persistent: making, listing, deleting and looking at topics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routes.bundles import every
from magnetar.admin.routes.targets import (
    ONE,
    Place,
    exists,
    message_id_json,
    partitions_of,
    parts,
    require_existing,
    require_stored,
    runs,
    stored,
    stored_parts,
)
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import NotAllowed
from magnetar.broker.namespaces.bundles import topic_hash
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.managed_ledger import Position
from magnetar.naming import TopicName
from magnetar.policies.errors import NotFound, PreconditionFailed
from magnetar.policies.namespace import AuthAction, Permissions
from magnetar.protocol.ids import MessageId
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

ALL: Final = "/admin/v2/{domain}/{tenant}/{namespace}"
OWN_PROPERTIES: Final = "magnetar."
"""What the platform itself writes among a topic's properties begins so."""


# Lists.


async def list_topics(call: Call) -> list[str]:
    """The topics of a namespace, partitions one by one."""
    await call.policies()
    mode = "PERSISTENT" if call["domain"] == "persistent" else "NON_PERSISTENT"
    topics = await call.admin.broker.topic_lists.topics(
        call.namespace,
        mode,  # type: ignore[arg-type]  # One of its two values.
        system=call.flag("includeSystemTopic"),
    )
    wanted = call.query.get("bundle")
    if not wanted:
        return topics
    bundles = [
        each
        for each in every(await call.admin.broker.topics.bundles(call.namespace))
        if each.range == wanted.lower()
    ]
    if not bundles:
        raise PreconditionFailed(f"Invalid bundle range {wanted[:80]}")
    return [text for text in topics if bundles[0].holds(topic_hash(TopicName.parse(text)))]


async def list_partitioned(call: Call) -> list[str]:
    """The partitioned topics of a namespace."""
    await call.policies()
    system_too = call.flag("includeSystemTopic")
    names = await call.admin.resources.list_partitioned(call.namespace, call["domain"])
    return sorted(str(name) for name in names if system_too or not name.is_system)


# One topic.


async def create(call: Call) -> None:
    """Make a topic that is not partitioned, or a partition that is missing."""
    properties = bodies.text_map(call.json) if call.json is not None else {}
    await call.policies()
    name = call.topic
    if name.partition >= 0:
        count = await call.admin.resources.partitions(name.base)
        if count is None or name.partition >= count:
            raise PreconditionFailed(
                "Non-partitioned topic names may not end like a partition's, unless that partition is missing"
            )
    missing_partition = name.partition >= 0 and not await call.admin.broker.topics.exists(name)
    if await exists(call) and not missing_partition:
        raise Refused(409, "This topic already exists")
    await call.admin.require_here(name)
    if name in call.admin.creating:
        raise Refused(409, "This topic already exists")
    call.admin.creating.add(name)
    try:
        await call.admin.broker.topics.create(name, properties=properties)
    except NotAllowed as error:
        raise PreconditionFailed(f"Exceed maximum number of topics in namespace: {error}") from None
    finally:
        call.admin.creating.discard(name)


async def delete(call: Call) -> None:
    """Delete a topic; with `force`, under the hands of its clients."""
    if await partitions_of(call) is not None:
        raise Refused(412, f"{call.topic} is partitioned: DELETE {call.topic.local_name}/partitions instead")
    await call.admin.delete_topic(call.topic, force=call.flag("force"))
    if call.topic.partition < 0:
        await forget(call, call.topic)


async def forget(call: Call, name: TopicName) -> None:
    """What is kept of a topic beside its messages goes with it."""
    if call.flag("deleteSchema", default=True):
        await call.admin.broker.schemas.delete(name)
    await call.admin.resources.delete_topic_policies(name)


async def unload(call: Call) -> None:
    """Drop a topic from memory; clients come back by themselves."""
    await require_existing(call)
    for name in await parts(call):
        if name == call.topic:
            await call.admin.require_here(name)
        await call.admin.broker.topics.unload(name)


async def terminate(call: Call) -> dict[str, Any]:
    """End a topic: it takes no more messages. Returns the last one's id."""
    topic = await stored(call)
    return message_id_json(await topic.terminate())


async def terminate_partitions(call: Call) -> dict[str, Any]:
    """End all partitions of a topic."""
    await _require_partitioned(call)
    return {
        str(topic.name.partition): message_id_json(await topic.terminate())
        async for topic in stored_parts(call)
    }


async def truncate(call: Call) -> None:
    """Acknowledge everything, and let go what retention does not keep."""
    async for topic in stored_parts(call):
        for subscription in list(topic.subscriptions.values()):
            await subscription.skip_all()
        await topic.ledger.roll()
        await topic.ledger.trim()


async def get_properties(call: Call) -> dict[str, str]:
    """A topic's own properties."""
    if await partitions_of(call) is not None:
        metadata = await call.admin.resources.partitioned(call.topic)
        return (metadata.properties if metadata else None) or {}
    require_stored(call)
    topic = await stored(call)
    return _users(topic.ledger.properties)


async def set_properties(call: Call) -> None:
    """Add properties."""
    added = bodies.text_map(call.json if call.json is not None else {})
    if any(name.startswith(OWN_PROPERTIES) for name in added):
        raise PreconditionFailed(f"Properties that begin with {OWN_PROPERTIES} are the platform's own")
    await _change_properties(call, lambda before: {**before, **added})


async def delete_property(call: Call) -> None:
    """Forget one property."""
    key = call.query.get("key")
    if not key:
        raise Refused(400, "Name the property: ?key=…")
    if key.startswith(OWN_PROPERTIES):
        raise PreconditionFailed(f"Properties that begin with {OWN_PROPERTIES} are the platform's own")
    await _change_properties(
        call, lambda before: {name: value for name, value in before.items() if name != key}
    )


async def _change_properties(call: Call, change: Any) -> None:
    if await partitions_of(call) is not None:
        await call.admin.resources.change_partitioned_properties(call.topic, change)
        return
    topic = await stored(call)
    await topic.ledger.set_properties(change(dict(topic.ledger.properties)))


def _users(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if not name.startswith(OWN_PROPERTIES)}


# Figures.


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
    return (await call.loaded()).stats(**stats_options(call))


async def internal_stats(call: Call) -> dict[str, Any]:
    """A topic's ledgers and cursors."""
    return (await stored(call)).internal_stats()


async def partitioned_internal_stats(call: Call) -> dict[str, Any]:
    """The ledgers and cursors of all partitions."""
    count = await _require_partitioned(call)
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


# Permissions.


async def get_permissions(call: Call) -> Permissions:
    """What roles may do here, by the namespace's word and by the topic's."""
    call.notes.update(enforcement.note("permissions"))
    auth = (await call.policies()).auth_policies
    merged = {role: list(may) for role, may in auth.namespace_auth.items()}
    for text in dict.fromkeys((str(call.topic.base), str(call.topic))):
        for role, may in auth.destination_auth.get(text, {}).items():
            merged[role] = list(dict.fromkeys((*merged.get(role, ()), *may)))
    return merged


async def grant(call: Call) -> None:
    """Say what a role may do with a topic and all its partitions."""
    call.notes.update(enforcement.note("permissions"))
    actions = bodies.several_of(AuthAction)(call.required("a list of actions"))
    await call.policies()
    names, role = await _named(call), call["role"]

    def change(said: Any) -> Any:
        of_topics = dict(said.auth_policies.destination_auth)
        for name in names:
            of_topics[name] = {**of_topics.get(name, {}), role: actions}
        return said.changed(auth_policies=said.auth_policies.changed(destination_auth=of_topics))

    await call.admin.resources.update_namespace(call.topic.namespace_name, change)


async def revoke(call: Call) -> None:
    """Say nothing of a role any more. 412 where nothing was said of it here."""
    call.notes.update(enforcement.note("permissions"))
    await call.policies()
    names, role = await _named(call), call["role"]

    def change(said: Any) -> Any:
        of_topics = dict(said.auth_policies.destination_auth)
        if role not in of_topics.get(str(call.topic), {}):
            raise PreconditionFailed("Permissions are not set at the topic level")
        for name in names:
            left = {each: may for each, may in of_topics.pop(name, {}).items() if each != role}
            if left:
                of_topics[name] = left
        return said.changed(auth_policies=said.auth_policies.changed(destination_auth=of_topics))

    await call.admin.resources.update_namespace(call.topic.namespace_name, change)


async def _named(call: Call) -> list[str]:
    return list(dict.fromkeys((str(call.topic), *(str(name) for name in await parts(call)))))


async def _require_partitioned(call: Call) -> int:
    count = await partitions_of(call)
    if count is None:
        await require_existing(call)
        raise NotFound(f"{call.topic} is not partitioned")
    return count


_LIST: Final = (Guards.NAMESPACE, Action.READ_POLICY)
_LOOK: Final = (Guards.TOPIC, Action.READ_STATS)
_ADMINISTER: Final = (Guards.TOPIC, Action.ADMINISTER_TOPIC)
_NAMESPACE: Final = (Guards.NAMESPACE, Action.ADMINISTER_NAMESPACE)

ROUTES: Final = (
    Route("GET", ALL, list_topics, *_LIST, query=("bundle", "includeSystemTopic")),
    Route("GET", f"{ALL}/partitioned", list_partitioned, *_LIST, query=("includeSystemTopic",)),
    Route("PUT", ONE, create, *_NAMESPACE),
    Route("DELETE", ONE, delete, *_NAMESPACE, query=("force", "deleteSchema")),
    Route("PUT", f"{ONE}/unload", unload),
    Route("POST", f"{ONE}/terminate", terminate, *_ADMINISTER),
    Route("POST", f"{ONE}/terminate/partitions", terminate_partitions, *_ADMINISTER),
    Route("DELETE", f"{ONE}/truncate", truncate, *_ADMINISTER),
    Route("GET", f"{ONE}/properties", get_properties, *_LOOK),
    Route("PUT", f"{ONE}/properties", set_properties, *_ADMINISTER),
    Route("DELETE", f"{ONE}/properties", delete_property, *_ADMINISTER, query=("key",)),
    Route("GET", f"{ONE}/stats", stats, *_LOOK, query=STATS_QUERY),
    Route("GET", f"{ONE}/internalStats", internal_stats, *_LOOK, query=("metadata",)),
    Route("GET", f"{ONE}/partitioned-internalStats", partitioned_internal_stats, *_LOOK),
    Route("GET", f"{ONE}/internal-info", internal_info, *_LOOK),
    Route("GET", f"{ONE}/lastMessageId", last_message_id, *_LOOK),
    Route("GET", f"{ONE}/messageid/{{timestamp}}", message_id_at, *_LOOK),
    Route("GET", f"{ONE}/backlog", backlog, *_LOOK),
    Route("PUT", f"{ONE}/backlogSize", backlog_size, *_LOOK),
    Route("GET", f"{ONE}/permissions", get_permissions, *_NAMESPACE),
    Route("POST", f"{ONE}/permissions/{{role}}", grant, *_NAMESPACE),
    Route("DELETE", f"{ONE}/permissions/{{role}}", revoke, *_NAMESPACE),
)
