"""Which topics a request means: one, or all partitions of one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from magnetar.admin import bodies
from magnetar.admin.errors import Elsewhere, Refused
from magnetar.broker.errors import TopicNotFound
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.managed_ledger import EARLIEST, LATEST, Position
from magnetar.policies.errors import BadValue, NotFound
from magnetar.protocol.ids import MessageId

if TYPE_CHECKING:
    from magnetar.admin.call import Call
    from magnetar.broker.subscription import Subscription
    from magnetar.broker.topic import Topic
    from magnetar.naming import TopicName

ONE: Final = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION: Final = f"{ONE}/subscription/{{subscription}}"

_LONG_MAX: Final = 2**63 - 1


async def partitions_of(call: Call) -> int | None:
    """How many partitions the topic has; None if it is not partitioned. Raises NotFound (namespace)."""
    await call.admin.resources.require_namespace(call.topic.namespace_name)
    return await call.admin.resources.partitions(call.topic)


async def parts(call: Call) -> list[TopicName]:
    """The topic itself, or its partitions."""
    count = await partitions_of(call)
    return [call.topic] if count is None else [call.topic.partition_name(index) for index in range(count)]


async def loaded_parts(call: Call) -> AsyncIterator[Topic]:
    """The same, loaded one after the other. Raises TopicNotFound, Elsewhere, Refused."""
    for name in await parts(call):
        yield await part(call, name)


async def part(call: Call, name: TopicName) -> Topic:
    """The topic itself, or one of its partitions.

    Raises:
        Elsewhere: another broker serves it.
        Refused: another broker serves this partition, and the request concerns all of them.
    """
    try:
        return await call.admin.topic(name)
    except Elsewhere as elsewhere:
        if name == call.topic:
            raise
        raise Refused(
            503, f"{name} is served by {elsewhere.web_url}: ask for each partition by itself"
        ) from None


async def single(call: Call) -> Topic:
    """A topic that is not partitioned, or a partition.

    Raises:
        Refused: it is partitioned.
    """
    if await partitions_of(call) is not None:
        raise Refused(405, f"{call.topic} is partitioned: name one of its partitions")
    return await call.loaded()


async def stored(call: Call) -> PersistentTopic:
    """A topic whose messages are stored, and which is not partitioned. Raises Refused."""
    require_stored(call)
    topic = await single(call)
    assert isinstance(topic, PersistentTopic)
    return topic


def require_stored(call: Call) -> None:
    """Raises Refused: nothing of this topic is stored."""
    if not call.topic.persistent:
        raise Refused(
            405, f"This is not possible on the non-persistent topic {call.topic}: it stores nothing"
        )


async def stored_parts(call: Call) -> AsyncIterator[PersistentTopic]:
    """A topic whose messages are stored, or its partitions. Raises Refused, TopicNotFound."""
    require_stored(call)
    async for topic in loaded_parts(call):
        assert isinstance(topic, PersistentTopic)
        yield topic


async def subscriptions(call: Call) -> list[Subscription]:
    """The subscription that the path names, of every partition that has it.

    Raises:
        Refused: none has it.
    """
    found = [
        topic.subscriptions[call["subscription"]]
        async for topic in stored_parts(call)
        if call["subscription"] in topic.subscriptions
    ]
    if not found:
        raise no_subscription(call)
    return found


async def subscription(call: Call) -> Subscription:
    """The subscription that the path names, of one topic. Raises Refused."""
    topic = await stored(call)
    if call["subscription"] not in topic.subscriptions:
        raise no_subscription(call)
    return topic.subscriptions[call["subscription"]]


def no_subscription(call: Call) -> Refused:
    return Refused(404, f"Subscription {call['subscription']} not found on {call.topic}")


async def exists(call: Call) -> bool:
    """Whether the topic is there, partitioned or not."""
    if await partitions_of(call) is not None:
        return True
    if call.topic.partition >= 0:
        count = await call.admin.resources.partitions(call.topic.base)
        if count is not None and call.topic.partition < count:
            return True
    return await call.admin.broker.topics.exists(call.topic)


async def require_existing(call: Call) -> None:
    """Raises TopicNotFound."""
    if not await exists(call):
        raise TopicNotFound(f"Topic {call.topic} not found")


class Run(NamedTuple):
    """A ledger's entries, also of the one that is being written."""

    ledger_id: int
    entries: int
    size: int


def runs(topic: PersistentTopic) -> list[Run]:
    """Where a topic's entries lie, oldest first."""
    told = topic.internal_stats()
    found = [Run(each["ledgerId"], each["entries"], each["size"]) for each in told["ledgers"]]
    if found and not found[-1].entries:
        found[-1] = Run(found[-1].ledger_id, told["currentLedgerEntries"], told["currentLedgerSize"])
    return [run for run in found if run.entries]


async def require_partitioned(call: Call) -> int:
    """How many partitions the topic has. Raises NotFound: it is not there, or not partitioned."""
    count = await partitions_of(call)
    if count is None:
        await require_existing(call)
        raise NotFound(f"{call.topic} is not partitioned")
    return count


def message_id_json(message_id: MessageId) -> dict[str, Any]:
    """As Pulsar's clients read it."""
    told = {
        "ledgerId": message_id.ledger_id,
        "entryId": message_id.entry_id,
        "partitionIndex": message_id.partition,
    }
    if message_id.batch_index >= 0:
        told["batchIndex"] = message_id.batch_index
    return told


class Place:
    """Where a request wants a cursor to stand: Pulsar's MessageId and ResetCursorData."""

    def __init__(self, said: Any) -> None:
        """Raises BadValue."""
        if not isinstance(said, dict):
            raise BadValue("Invalid message id: an object with ledgerId and entryId is wanted")
        self.ledger_id = bodies.integer(said.get("ledgerId", -1))
        self.entry_id = bodies.integer(said.get("entryId", -1))
        self.batch_index = bodies.integer(
            said.get("batchIndex", -1) if said.get("batchIndex") is not None else -1
        )
        self.excluded = bodies.truth(said.get("isExcluded", said.get("excluded", False)) or False)
        self.properties = bodies.text_map(said.get("properties") or {})

    @property
    def is_latest(self) -> bool:
        return self.ledger_id == _LONG_MAX

    @property
    def is_earliest(self) -> bool:
        return self.ledger_id < 0

    @property
    def position(self) -> Position:
        """The first entry to be delivered."""
        if self.is_latest:
            return LATEST
        if self.is_earliest:
            return EARLIEST
        whole_entry_excluded = self.excluded and self.batch_index < 0
        return Position(self.ledger_id, self.entry_id + 1 if whole_entry_excluded else self.entry_id)

    @property
    def acknowledged_in_batch(self) -> int:
        """How many messages of the first entry's batch count as acknowledged."""
        if self.batch_index < 0 or self.is_latest or self.is_earliest:
            return 0
        return self.batch_index + 1 if self.excluded else self.batch_index
