"""/admin/v2/persistent and /admin/v2/non-persistent: making, listing, ending and deleting topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import bodies
from magnetar.admin.errors import Refused
from magnetar.admin.routes.bundles import every
from magnetar.admin.routes.targets import (
    ONE,
    exists,
    message_id_json,
    partitions_of,
    parts,
    require_existing,
    require_partitioned,
    require_stored,
    stored,
    stored_parts,
)
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import NotAllowed
from magnetar.broker.namespaces.bundles import topic_hash
from magnetar.naming import TopicName
from magnetar.policies.errors import PreconditionFailed
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call

ALL: Final = "/admin/v2/{domain}/{tenant}/{namespace}"
BUNDLE: Final = re.compile("0x[0-9a-f]{8}_0x[0-9a-f]{8}")
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


async def list_in_bundle(call: Call) -> list[str]:
    """The loaded topics of a bundle, which stands where a topic's name does elsewhere."""
    await call.policies()
    wanted = call["topic"].lower()
    if not BUNDLE.fullmatch(wanted):
        raise Refused(405, f"Ask for what of {call['topic'][:200]}: its stats, partitions, subscriptions?")
    return [
        str(topic.name)
        for topic in call.admin.broker.topics.loaded()
        if topic.name.namespace_name == call.namespace
        and topic.name.domain == call["domain"]
        and (await call.admin.broker.topics.bundle(topic.name)).range == wanted
    ]


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
    await require_partitioned(call)
    return {
        str(topic.name.partition): message_id_json(await topic.terminate())
        async for topic in stored_parts(call)
    }


async def trim(call: Call) -> None:
    """Delete ledgers that nobody needs any more now, not when it is next looked."""
    async for topic in stored_parts(call):
        await topic.ledger.trim()


async def truncate(call: Call) -> None:
    """Acknowledge everything, and let go what retention does not keep."""
    async for topic in stored_parts(call):
        for subscription in list(topic.subscriptions.values()):
            await subscription.skip_all()
        await topic.compaction.let_go()
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


_LIST: Final = (Guards.NAMESPACE, Action.READ_POLICY)
_LOOK: Final = (Guards.TOPIC, Action.READ_STATS)
_ADMINISTER: Final = (Guards.TOPIC, Action.ADMINISTER_TOPIC)
_NAMESPACE: Final = (Guards.NAMESPACE, Action.ADMINISTER_NAMESPACE)

ROUTES: Final = (
    Route("GET", ALL, list_topics, *_LIST, query=("bundle", "includeSystemTopic")),
    Route("GET", f"{ALL}/partitioned", list_partitioned, *_LIST, query=("includeSystemTopic",)),
    Route("GET", ONE, list_in_bundle, *_LIST),
    Route("PUT", ONE, create, *_NAMESPACE),
    Route("DELETE", ONE, delete, *_NAMESPACE, query=("force", "deleteSchema")),
    Route("PUT", f"{ONE}/unload", unload),
    Route("POST", f"{ONE}/terminate", terminate, *_ADMINISTER),
    Route("POST", f"{ONE}/terminate/partitions", terminate_partitions, *_ADMINISTER),
    Route("DELETE", f"{ONE}/truncate", truncate, *_ADMINISTER),
    Route("POST", f"{ONE}/trim", trim, *_ADMINISTER),
    Route("GET", f"{ONE}/properties", get_properties, *_LOOK),
    Route("PUT", f"{ONE}/properties", set_properties, *_ADMINISTER),
    Route("DELETE", f"{ONE}/properties", delete_property, *_ADMINISTER, query=("key",)),
)
