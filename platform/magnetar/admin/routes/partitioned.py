"""/admin/v2/{domain}/…/partitions: topics of many partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from magnetar.admin import bodies
from magnetar.admin.answers import Answer, encode
from magnetar.admin.errors import Refused
from magnetar.admin.routes.targets import ONE, part, partitions_of, require_existing
from magnetar.admin.routes.topic_stats import STATS_QUERY, stats_options
from magnetar.admin.routes.topics import forget
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import TopicBusy, TopicNotFound
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.transactions.coordinator_topic import COORDINATOR_TOPIC
from magnetar.managed_ledger import EARLIEST
from magnetar.policies.checks import check_partition_count, check_partitioned_name
from magnetar.policies.errors import NotFound, PreconditionFailed
from magnetar.policies.topic import PartitionedTopicMetadata
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.naming import TopicName

_SUMMED: Final = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "bytesInCounter",
    "msgInCounter",
    "bytesOutCounter",
    "msgOutCounter",
    "storageSize",
    "backlogSize",
    "publishRateLimitedTimes",
    "offloadedStorageSize",
    "ongoingTxnCount",
    "abortedTxnCount",
    "committedTxnCount",
    "delayedMessageIndexSizeInBytes",
    "waitingPublishers",
    "nonContiguousDeletedMessagesRanges",
    "nonContiguousDeletedMessagesRangesSerializedSize",
    "msgRateRedeliver",
    "messageAckRate",
    "chunkedMessageRate",
    "msgBacklog",
    "msgBacklogNoDelayed",
    "msgDelayed",
    "unackedMessages",
    "msgRateExpired",
    "totalMsgExpired",
    "msgDropRate",
    "filterProcessedMsgCount",
    "filterAcceptedMsgCount",
    "filterRejectedMsgCount",
    "filterRescheduledMsgCount",
)
_LATEST: Final = frozenset(
    {"lastExpireTimestamp", "lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp",
     "lastMarkDeleteAdvancedTimestamp", "lastPublishTimeStamp"}
)  # fmt: skip


async def create(call: Call) -> None:
    """Make a partitioned topic. Its partitions come into being as they are used, and are listed at once."""
    partitions, properties = _asked(call)
    policies = await call.policies()
    check_partitioned_name(call.topic)
    defaults = await call.admin.resources.defaults()
    check_partition_count(partitions, defaults.max_partitions_per_topic)
    if await call.admin.broker.topics.exists(call.topic):
        raise Refused(409, "This topic already exists")
    limit = policies.max_topics_per_namespace or defaults.max_topics_per_namespace
    if limit and not call.topic.is_system:
        there = await call.admin.broker.topic_lists.topics(call.namespace, "ALL")
        if len(there) + partitions > limit:
            raise PreconditionFailed(f"Exceed maximum number of topics in namespace: {limit}")
    await call.admin.resources.create_partitioned(call.topic, partitions, properties)


def _asked(call: Call) -> tuple[int, dict[str, str]]:
    """The body is a number, or an object: the media type does not matter."""
    said = call.required("the number of partitions")
    if isinstance(said, dict):
        metadata = PartitionedTopicMetadata.read(said)
        return metadata.partitions, metadata.properties or {}
    return bodies.integer(said), {}


async def update(call: Call) -> None:
    """Let a topic have more partitions. New ones get the subscriptions that the others have."""
    partitions, _ = _asked(call)
    if await partitions_of(call) is None:
        await require_existing(call)
        raise Refused(409, f"Topic {call.topic} is not partitioned topic")
    had = await call.admin.resources.update_partitions(call.topic, partitions)
    if call.flag("updateLocalTopicOnly") or not call.topic.persistent:
        return
    names: dict[str, None] = {}
    for index in range(had):
        topic = call.admin.broker.topics.find(call.topic.partition_name(index))
        if isinstance(topic, PersistentTopic):
            names.update(dict.fromkeys(name for name, each in topic.subscriptions.items() if each.durable))
    if not names and had:
        first = await part(call, call.topic.partition_name(0))
        assert isinstance(first, PersistentTopic)
        names.update(dict.fromkeys(name for name, each in first.subscriptions.items() if each.durable))
    for index in range(had, partitions) if names else ():
        added = await part(call, call.topic.partition_name(index))
        assert isinstance(added, PersistentTopic)
        for name in names:
            if name not in added.subscriptions:
                await added.create_subscription(name, EARLIEST)


async def get(call: Call) -> dict[str, Any]:
    """How many partitions a topic has, 0 if it is not partitioned."""
    create_too = call.flag("checkAllowAutoCreation")
    await call.admin.resources.require_namespace(call.topic.namespace_name)
    transactions = call.admin.broker.transactions
    if create_too and call.topic == COORDINATOR_TOPIC and transactions.enabled:
        await transactions.ensure_coordinators()  # So clients find them that look up over HTTP.
    count = await call.admin.broker.topics.partitions(call.topic, create=create_too)
    metadata = await call.admin.resources.partitioned(call.topic) if count else None
    if metadata is None:
        return {"partitions": count, "deleted": False}
    return metadata.to_json()


async def delete(call: Call) -> None:
    """Delete a topic with all its partitions; with `force`, under the hands of their clients."""
    count = await partitions_of(call)
    if count is None:
        raise NotFound(f"Partitioned Topic not found: {call.topic} has zero partitions")
    force = call.flag("force")
    topics = call.admin.broker.topics
    names = [call.topic.partition_name(index) for index in range(count)]
    if not force:
        for name in names:
            loaded = topics.find(name)
            if loaded is not None and (
                loaded.producers or any(each.consumers for each in loaded.subscriptions.values())
            ):
                raise TopicBusy(f"Topic has active producers/subscriptions: {name}")
    await _delete_all(call, names, force=force)
    await call.admin.resources.delete_partitioned(call.topic)
    await _delete_all(call, names, force=True)  # What clients have made again meanwhile.
    await forget(call, call.topic)


async def _delete_all(call: Call, names: list[TopicName], *, force: bool) -> None:
    topics = call.admin.broker.topics
    for name in names:
        try:
            if await topics.exists(name):
                await call.admin.delete_topic(name, force=force)
        except TopicNotFound:
            continue


async def create_missed(call: Call) -> None:
    """Make all partitions, whether they are used or not."""
    count = await partitions_of(call)
    if count is None:
        raise NotFound(f"{call.topic} is not partitioned")
    for index in range(count):
        await part(call, call.topic.partition_name(index))


async def stats(call: Call) -> Answer:
    """How a partitioned topic fares: the sums, and each partition."""
    count = await partitions_of(call)
    if count is None:
        await require_existing(call)
        raise NotFound(f"{call.topic} is not partitioned: ask for its stats")
    per_partition = call.flag("perPartition", default=True)
    options = stats_options(call)
    sums: dict[str, Any] = {}
    told: list[bytes] = []
    for index in range(count):
        name = call.topic.partition_name(index)
        each = await _partition_stats(call, name, options)
        if each is not None:
            add_stats(sums, each)
            if per_partition:
                told.append(encode(str(name)) + b":" + encode(each))
        await asyncio.sleep(0)  # Others have a turn, however many partitions there are.
    sums["metadata"] = {"partitions": count, "deleted": False}
    return Answer(200, _pieces(encode(sums), told))


async def _partition_stats(call: Call, name: TopicName, options: dict[str, bool]) -> dict[str, Any] | None:
    """None for a partition that nobody has ever used."""
    if not await call.admin.broker.topics.exists(name):
        return None
    return (await part(call, name)).stats(**options)


async def _pieces(sums: bytes, partitions: list[bytes]) -> AsyncGenerator[bytes]:
    yield sums[:-1] + b',"partitions":{'
    for number, partition in enumerate(partitions):
        yield (b"," if number else b"") + partition
    yield b"}}"


def add_stats(sums: dict[str, Any], told: dict[str, Any]) -> None:
    """Add a partition's figures, its publishers by their place in the list, its subscriptions by name."""
    for key, value in told.items():
        if key == "subscriptions":
            ours = sums.setdefault(key, {})
            for name, subscription in value.items():
                add_stats(ours.setdefault(name, {}), subscription)
        elif key in ("publishers", "consumers"):
            _add_lists(sums.setdefault(key, []), value)
        elif key in _SUMMED:
            sums[key] = sums.get(key, 0) + value
        elif key in _LATEST:
            sums[key] = max(sums.get(key, 0), value)
        elif key == "averageMsgSize":
            # Weighted by what is there already: the rates are summed before or after, so take the larger.
            sums[key] = max(sums.get(key, 0.0), value)
        else:
            sums.setdefault(key, value)


def _add_lists(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for place, told in enumerate(theirs):
        if place == len(ours):
            ours.append({})
        add_stats(ours[place], told)


_ADMINISTER: Final = (Guards.TOPIC, Action.ADMINISTER_TOPIC)
_LOOK: Final = (Guards.TOPIC, Action.READ_STATS)
_NAMESPACE: Final = (Guards.NAMESPACE, Action.ADMINISTER_NAMESPACE)

ROUTES: Final = (
    Route(
        "PUT",
        f"{ONE}/partitions",
        create,
        *_NAMESPACE,
        body=PartitionedTopicMetadata,
        query=("createLocalTopicOnly",),
    ),
    Route("POST", f"{ONE}/partitions", update, *_NAMESPACE, query=("updateLocalTopicOnly", "force")),
    Route("GET", f"{ONE}/partitions", get, Guards.TOPIC, Action.LOOKUP, query=("checkAllowAutoCreation",)),
    Route("DELETE", f"{ONE}/partitions", delete, *_NAMESPACE, query=("force", "deleteSchema")),
    Route("POST", f"{ONE}/createMissedPartitions", create_missed, *_NAMESPACE),
    Route("GET", f"{ONE}/partitioned-stats", stats, *_LOOK, query=("perPartition", *STATS_QUERY)),
)
