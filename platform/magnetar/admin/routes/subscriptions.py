"""/admin/v2/{domain}/…/subscription: making, deleting and moving subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import bodies, enforcement
from magnetar.admin.errors import Refused
from magnetar.admin.routes.targets import (
    ONE,
    SUBSCRIPTION,
    Place,
    loaded_parts,
    no_subscription,
    require_stored,
    stored_parts,
    subscription,
    subscriptions,
)
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import SubscriptionExists, SubscriptionNotFound
from magnetar.broker.filters import messages_in
from magnetar.broker.persistent_topic import (
    PersistentTopic,
    check_subscription_name,
    check_subscription_properties,
)
from magnetar.protocol import ack_sets
from magnetar.protocol.message import read_metadata
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.broker.subscription import Subscription

_LATEST_ID: Final = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}


async def list_subscriptions(call: Call) -> list[str]:
    """The subscriptions of a topic; of any partition of it."""
    names: dict[str, None] = {}
    async for topic in loaded_parts(call):
        names.update(dict.fromkeys(topic.subscriptions))
    return sorted(names)


async def create(call: Call) -> None:
    """Make a subscription, at the end of the topic or at the message id in the body.

    A topic that is not there is made, if policy lets topics be made by being asked for.
    """
    require_stored(call)
    name = call["subscription"]
    check_subscription_name(name)
    place = Place(_LATEST_ID if call.json is None else call.json)
    if call.flag("replicated"):
        call.notes.update(enforcement.note("replication"))
    await call.admin.resources.require_namespace(call.topic.namespace_name)
    count = await call.admin.broker.topics.partitions(call.topic, create=True)
    names = [call.topic.partition_name(index) for index in range(count)] if count else [call.topic]
    made = 0
    for each in names:
        topic = await call.admin.topic(each, create=True)
        assert isinstance(topic, PersistentTopic)
        try:
            subscription = await topic.create_subscription(name, place.position, properties=place.properties)
        except SubscriptionExists:
            continue
        if place.acknowledged_in_batch:
            await _reset(subscription, place)
        made += 1
    if not made:
        raise Refused(409, f"Subscription already exists for topic: {name}")


async def delete(call: Call) -> None:
    """Delete a subscription; with `force`, under the hands of its consumers."""
    force = call.flag("force")
    deleted = 0
    async for topic in loaded_parts(call):
        try:
            await topic.delete_subscription(call["subscription"], force=force)
        except SubscriptionNotFound:
            continue
        deleted += 1
    if not deleted:
        raise no_subscription(call)


async def get_properties(call: Call) -> dict[str, str]:
    """A subscription's own properties."""
    merged: dict[str, str] = {}
    for each in await subscriptions(call):
        merged.update(each.properties)
    return merged


async def set_properties(call: Call) -> None:
    """Replace a subscription's own properties."""
    properties = bodies.text_map(call.json if call.json is not None else {})
    check_subscription_properties(properties)
    for each in await subscriptions(call):
        await each.cursor.set_cursor_properties(properties)
        each.properties = dict(properties)


async def reset_to_time(call: Call) -> None:
    """Deliver again from the first message on that is not older than a time, in milliseconds since 1970."""
    timestamp_ms = call.path_number("timestamp")
    for each in await subscriptions(call):
        await each.reset_to_time(timestamp_ms)


async def reset(call: Call) -> None:
    """Deliver again from a message on."""
    place = Place(call.required("a message id"))
    await _reset(await subscription(call), place)


async def _reset(subscription: Subscription, place: Place) -> None:
    position, ack_set = place.position, None
    acknowledged = place.acknowledged_in_batch
    if acknowledged:
        entry = await subscription.topic.read_entry(position)
        size = messages_in(read_metadata(entry.data))
        if acknowledged < size:
            ack_set = ack_sets.unacked_from(acknowledged, size)
        else:
            position = position.following
    await subscription.reset(position, ack_set)


async def skip_all(call: Call) -> None:
    """Acknowledge everything there is."""
    for each in await subscriptions(call):
        await each.skip_all()


async def skip(call: Call) -> None:
    """Acknowledge the first so many entries that are not acknowledged yet."""
    number = call.path_number("number")
    if number < 0:
        raise Refused(412, "The number of messages to skip must be 0 or more")
    await (await subscription(call)).skip(number)


async def expire(call: Call) -> None:
    """Acknowledge what is older than so many seconds."""
    seconds = call.path_number("seconds")
    if seconds < 0:
        raise Refused(412, "The age must be 0 seconds or more")
    for each in await subscriptions(call):
        await each.expire(seconds)


async def expire_up_to(call: Call) -> None:
    """Acknowledge everything up to a message."""
    place = Place(call.required("a message id"))
    position = place.position
    await (await subscription(call)).expire_up_to(position)


async def expire_all(call: Call) -> None:
    """Acknowledge what is older than so many seconds, for every subscription."""
    seconds = call.path_number("seconds")
    if seconds < 0:
        raise Refused(412, "The age must be 0 seconds or more")
    async for topic in stored_parts(call):
        for each in list(topic.subscriptions.values()):
            await each.expire(seconds)


async def get_replicated(call: Call) -> dict[str, bool]:
    """Whether a subscription's position is told to other clusters, by topic."""
    return {str(each.topic.name): each.replicated for each in await subscriptions(call)}


async def set_replicated(call: Call) -> None:
    """Say that a subscription's position is to be told to other clusters. Kept while the topic is loaded."""
    call.notes.update(enforcement.note("replication"))
    wanted = bodies.truth(call.required("true or false"))
    for each in await subscriptions(call):
        each.replicated = wanted


_ADMINISTER: Final = (Guards.TOPIC, Action.ADMINISTER_TOPIC)
_CONSUME: Final = (Guards.TOPIC, Action.CONSUME)
_LOOK: Final = (Guards.TOPIC, Action.READ_STATS)

ROUTES: Final = (
    Route("GET", f"{ONE}/subscriptions", list_subscriptions, *_LOOK),
    Route("PUT", SUBSCRIPTION, create, *_CONSUME, query=("replicated",)),
    Route("DELETE", SUBSCRIPTION, delete, *_CONSUME, query=("force",)),
    Route("GET", f"{SUBSCRIPTION}/properties", get_properties, *_LOOK),
    Route("PUT", f"{SUBSCRIPTION}/properties", set_properties, *_CONSUME),
    Route("POST", f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", reset_to_time, *_CONSUME),
    Route("POST", f"{SUBSCRIPTION}/resetcursor", reset, *_CONSUME),
    Route("POST", f"{SUBSCRIPTION}/skip_all", skip_all, *_CONSUME),
    Route("POST", f"{SUBSCRIPTION}/skip/{{number}}", skip, *_CONSUME),
    Route("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", expire, *_CONSUME),
    Route("POST", f"{SUBSCRIPTION}/expireMessages", expire_up_to, *_CONSUME),
    Route("POST", f"{ONE}/all_subscription/expireMessages/{{seconds}}", expire_all, *_ADMINISTER),
    Route("GET", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", get_replicated, *_LOOK),
    Route("POST", f"{SUBSCRIPTION}/replicatedSubscriptionStatus", set_replicated, *_ADMINISTER),
)
