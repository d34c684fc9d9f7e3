"""/admin/v2/namespaces/…: bundles, unloading, and what is done to every topic of a namespace or bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from magnetar.admin import bodies
from magnetar.admin.errors import Elsewhere, Refused
from magnetar.admin.routes.namespaces import ONE
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import SubscriptionNotFound, TopicNotFound
from magnetar.broker.namespaces.bundles import topic_hash
from magnetar.broker.subscription import Subscription
from magnetar.naming import TopicName
from magnetar.policies.errors import PreconditionFailed
from magnetar.policies.namespace import BundlesData
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from magnetar.admin.call import Call
    from magnetar.broker.namespaces.bundles import Bundle, Bundles
    from magnetar.broker.topic import Topic
    from magnetar.policies.namespace import LocalPolicies


async def get_bundles(call: Call) -> BundlesData:
    """How a namespace's topics are divided among brokers."""
    await call.policies()
    bundles = await call.admin.broker.topics.bundles(call.namespace)
    return BundlesData(boundaries=bundles.texts(), num_bundles=len(bundles))


async def unload_namespace(call: Call) -> None:
    """Give all bundles back, so that brokers take them anew."""
    for bundle in every(await _all_bundles(call)):
        await _unload(call, bundle)


async def unload_bundle(call: Call) -> None:
    """Give a bundle back, so that a broker takes it anew: `destinationBroker`, where one is named."""
    bundle = await require_bundle(call)
    broker = call.admin.broker
    destination = call.query.get("destinationBroker")
    stays = destination == broker.ownership.address.broker_id
    to = broker.neighbourhood.members.find(destination) if destination else None
    if destination and not stays and to is None:
        raise PreconditionFailed(f"Broker {destination[:200]} is not there: it cannot take {bundle}")
    await _require_here(call, bundle)
    await broker.unload_bundle(bundle, to)
    if stays:
        await broker.ownership.require(bundle)


async def delete_bundle(call: Call) -> None:
    """Give back a bundle without topics. It stays part of its namespace; with `force`, its topics are deleted."""
    bundle = await require_bundle(call)
    await _require_here(call, bundle)
    if call.flag("force") and not call.admin.settings.force_delete_allowed:
        raise Refused(405, "Broker doesn't allow forced deletion of namespaces")
    found = [
        name
        for text in await call.admin.broker.topic_lists.topics(call.namespace, "ALL")
        if bundle.holds(topic_hash(name := TopicName.parse(text)))
    ]
    if found and not call.flag("force"):
        raise Refused(409, f"Cannot delete non empty bundle: {found[0]} is in it")
    for name in found:
        await call.admin.delete_topic(name, force=True)
    await _unload(call, bundle)


async def split_bundle(call: Call) -> None:
    """Divide a bundle at its middle, or at the boundaries in the body. `LARGEST` is the one of most topics."""
    algorithm = call.query.get("splitAlgorithmName") or "range_equally_divide"
    if algorithm not in ("range_equally_divide", "specified_positions_divide"):
        raise PreconditionFailed(f"Unsupported bundle split algorithm {algorithm[:80]}")
    bundle = await _bundle_to_split(call)
    await _require_here(call, bundle)
    if algorithm == "specified_positions_divide":
        positions = [bodies.integer(each) for each in call.required("a list of positions")]
        if not positions or not all(bundle.lower < each < bundle.upper for each in positions):
            raise PreconditionFailed(f"Positions to split at must lie within {bundle.range}")
    else:
        positions = [(bundle.lower + bundle.upper + 1) // 2]
    if bundle.upper - bundle.lower < 2:
        raise PreconditionFailed(f"Bundle {bundle.range} cannot be divided any more")
    bundles = await call.admin.broker.topics.bundles(call.namespace)
    boundaries = sorted({*bundles.boundaries, *positions})

    def divided(said: LocalPolicies) -> LocalPolicies:
        return said.changed(
            bundles=BundlesData(
                boundaries=[f"0x{each:08x}" for each in boundaries], num_bundles=len(boundaries) - 1
            )
        )

    # The old bundle is given back on both sides of the change: topics that load in between load in it.
    await _unload(call, bundle)
    await call.admin.resources.update_local_policies(call.namespace, divided)
    await _unload(call, bundle)


async def hash_positions(call: Call) -> dict[str, object]:
    """Where topics lie in their bundle."""
    bundle = await require_bundle(call)
    asked = {each for each in call.query.get("topics", "").split(",") if each}
    positions = {}
    for text in await call.admin.broker.topic_lists.topics(call.namespace, "ALL"):
        name = TopicName.parse(text)
        if bundle.holds(topic_hash(name)) and (not asked or text in asked or name.local_name in asked):
            positions[text] = topic_hash(name)
    return {"namespace": str(call.namespace), "bundle": bundle.range, "hashPositions": positions}


async def clear_backlog(call: Call) -> None:
    """Acknowledge everything, for one subscription or for all, in all topics."""
    only = call.parameters.get("subscription")
    async for topic in _topics(call):
        for name, subscription in list(topic.subscriptions.items()):
            if isinstance(subscription, Subscription) and only in (None, name):
                await subscription.skip_all()


async def unsubscribe(call: Call) -> None:
    """Delete a subscription of all topics."""
    async for topic in _topics(call):
        try:
            await topic.delete_subscription(call["subscription"])
        except SubscriptionNotFound:
            continue


async def _topics(call: Call) -> AsyncIterator[Topic]:
    """The persistent topics of a namespace, or of a bundle of it, one after the other."""
    bundle = await require_bundle(call) if "bundle" in call.parameters else None
    await call.policies()
    for text in await call.admin.broker.topic_lists.topics(call.namespace, "PERSISTENT"):
        name = TopicName.parse(text)
        if bundle is not None and not bundle.holds(topic_hash(name)):
            continue
        try:
            yield await call.admin.topic(name)
        except TopicNotFound:
            continue


def every(bundles: Bundles) -> list[Bundle]:
    """All bundles of a namespace, in the order of their ranges."""
    return [bundles[index] for index in range(len(bundles))]


async def _all_bundles(call: Call) -> Bundles:
    await call.policies()
    return await call.admin.broker.topics.bundles(call.namespace)


async def require_bundle(call: Call) -> Bundle:
    """The bundle that the path names. Raises PreconditionFailed: there is none such; NotFound."""
    for bundle in every(await _all_bundles(call)):
        if bundle.range == call["bundle"].lower():
            return bundle
    raise PreconditionFailed(
        f"Invalid bundle range {call['bundle'][:80]}: {call.namespace} has no such bundle"
    )


async def _bundle_to_split(call: Call) -> Bundle:
    if call["bundle"] not in ("LARGEST", "HOT"):
        return await require_bundle(call)
    bundles = await _all_bundles(call)
    weights = dict.fromkeys(every(bundles), 0.0)
    for topic in call.admin.broker.topics.loaded():
        if topic.name.namespace_name == call.namespace:
            traffic = topic.flow_in.bytes.rate + topic.flow_out.bytes.rate
            weights[bundles.find(topic.name)] += 1 if call["bundle"] == "LARGEST" else traffic
    heaviest = max(weights, key=lambda bundle: weights[bundle])
    if not weights[heaviest]:
        raise Refused(412, f"No bundle of {call.namespace} has topics on this broker")
    return heaviest


async def _require_here(call: Call, bundle: Bundle) -> None:
    """Only its owner can unload a bundle, or divide it: it alone knows what is loaded of it."""
    owner = await call.admin.broker.ownership.owner(bundle)
    if owner != call.admin.broker.ownership.address:
        raise Elsewhere(owner.web_url)


async def _unload(call: Call, bundle: Bundle) -> None:
    await call.admin.broker.unload_bundle(bundle)


_READ: Final = (Guards.NAMESPACE, Action.READ_POLICY)
_ADMINISTER: Final = (Guards.NAMESPACE, Action.ADMINISTER_NAMESPACE)

ROUTES: Final = (
    Route("GET", f"{ONE}/bundles", get_bundles, *_READ),
    Route("PUT", f"{ONE}/unload", unload_namespace),
    Route("DELETE", f"{ONE}/{{bundle}}", delete_bundle, query=("force",)),
    Route("PUT", f"{ONE}/{{bundle}}/unload", unload_bundle, query=("destinationBroker",)),
    Route("PUT", f"{ONE}/{{bundle}}/split", split_bundle, query=("unload", "splitAlgorithmName")),
    Route("GET", f"{ONE}/{{bundle}}/topicHashPositions", hash_positions, *_READ, query=("topics",)),
    Route("POST", f"{ONE}/clearBacklog", clear_backlog, *_ADMINISTER),
    Route("POST", f"{ONE}/clearBacklog/{{subscription}}", clear_backlog, *_ADMINISTER),
    Route("POST", f"{ONE}/{{bundle}}/clearBacklog", clear_backlog, *_ADMINISTER),
    Route("POST", f"{ONE}/{{bundle}}/clearBacklog/{{subscription}}", clear_backlog, *_ADMINISTER),
    Route("POST", f"{ONE}/unsubscribe/{{subscription}}", unsubscribe, *_ADMINISTER),
    Route("POST", f"{ONE}/{{bundle}}/unsubscribe/{{subscription}}", unsubscribe, *_ADMINISTER),
)
