"""The topics this broker serves: loaded when first asked for, once, however many ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from magnetar.broker.errors import (
    BrokerError,
    MetadataFailed,
    NamespaceNotFound,
    NotAllowed,
    ServiceNotReady,
    TopicBusy,
    TopicExists,
    TopicNotFound,
)
from magnetar.broker.namespaces.bundles import Bundle, Bundles
from magnetar.broker.nonpersistent import NonPersistentTopic
from magnetar.broker.persistent_topic import PersistentTopic, ledger_config
from magnetar.broker.transactions.coordinator_topic import (
    COORDINATOR_TOPIC,
    CoordinatorTopic,
    coordinator_log,
)
from magnetar.broker.transactions.record_log import record_config
from magnetar.broker.upkeep.inactivity import is_active
from magnetar.environment.logs import get_logger
from magnetar.policies.errors import Conflict, NotFound

if TYPE_CHECKING:
    from magnetar.broker.context import BrokerContext
    from magnetar.broker.ownership import Ownership
    from magnetar.broker.topic import Topic
    from magnetar.naming import NamespaceName, TopicName
    from magnetar.policies.effective import EffectivePolicies

log = get_logger("magnetar.broker")


class TopicRegistry:
    """Loads, keeps, unloads and deletes topics."""

    def __init__(self, context: BrokerContext, ownership: Callable[[], Ownership]) -> None:
        self._context = context
        self._ownership = ownership
        self._topics: dict[TopicName, Topic] = {}
        self._loading: dict[TopicName, asyncio.Task[Topic]] = {}
        self._closing: dict[TopicName, asyncio.Task[None]] = {}
        self._bundles: dict[TopicName, Bundle] = {}
        """Of the topics in memory: the bundle by which each is ours."""
        self._shutting_down = False
        self.load_failures = 0
        self.loads = 0

    def loaded(self) -> list[Topic]:
        """The topics in memory."""
        return list(self._topics.values())

    def find(self, name: TopicName) -> Topic | None:
        """A topic if it is in memory."""
        return self._topics.get(name)

    async def get(self, name: TopicName, *, create: bool) -> Topic:
        """A topic, loaded, and made if it may be.

        Raises:
            NamespaceNotFound, TopicNotFound: it is not there, and `create` or a policy forbids to make it.
            NotAllowed: the name is a partitioned topic's, which is used through its partitions.
            ServiceNotReady: another broker serves it, or it could not be loaded in time.
        """
        while True:
            if self._shutting_down:
                raise ServiceNotReady("this broker is shutting down: look the topic up again")
            closing = self._closing.get(name)
            if closing is not None:
                await asyncio.shield(closing)
                continue
            topic = self._topics.get(name)
            if topic is not None:
                topic.check_open()
                return topic
            if name not in self._loading:
                await self._check_may_load(name, create)
            if name in self._topics or name in self._closing:
                continue
            # Whoever waited for it may find it closing again: it is only had when the next look finds it open.
            await self._load_once(name)

    async def _load_once(self, name: TopicName) -> Topic:
        while (closing := self._closing.get(name)) is not None:
            await asyncio.shield(closing)
        if self._shutting_down:
            raise ServiceNotReady("this broker is shutting down: look the topic up again")
        loading = self._loading.get(name)
        if loading is None:
            loading = asyncio.get_running_loop().create_task(self._load(name), name=f"load {name}")
            self._loading[name] = loading
            loading.add_done_callback(lambda task: self._loaded(name, task))
        limit = self._context.settings.topic_load_timeout_s
        done, _ = await asyncio.wait((loading,), timeout=limit)
        if not done:  # It goes on; whoever asks again finds it further, or done.
            raise ServiceNotReady(f"topic {name} could not be loaded within {limit:g} s: retry")
        return loading.result()

    def _loaded(self, name: TopicName, loading: asyncio.Task[Topic]) -> None:
        del self._loading[name]
        if not loading.cancelled():
            loading.exception()  # Told to those that wait; all of them may have given up.

    async def _load(self, name: TopicName) -> Topic:
        began = self._context.clock.monotonic()
        owned = await self._ownership().require(await self.bundle(name))
        if not await self._context.lease.until_sure(self._context.settings.lookup_wait_s):
            # Opening it would fence the log of whoever may own it by now.
            raise MetadataFailed(f"it is in doubt whether {name} is served here: retry")
        policies = await self._context.resources.effective(name)
        try:
            topic = await self._open(name, policies)
        except Exception as error:
            self.load_failures += 1
            log.warning("topic.load_failed", topic=str(name), reason=f"{type(error).__name__}: {error}")
            raise
        if not self._ownership().still(owned):  # Had again is not enough: another may have written meanwhile.
            await topic.close()
            raise ServiceNotReady(
                f"bundle {owned.bundle} was lost while {name} was loading: look it up again"
            )
        self._topics[name] = topic
        self._bundles[name] = owned.bundle
        self.loads += 1
        milliseconds = round((self._context.clock.monotonic() - began) * 1000, 1)
        log.info("topic.loaded", topic=str(name), epoch=owned.epoch, milliseconds=milliseconds)
        return topic

    async def _open(self, name: TopicName, policies: EffectivePolicies) -> Topic:
        if not name.persistent:
            passing = NonPersistentTopic(name, self._context, policies)
            await passing.rates.follow()
            return passing
        config = ledger_config(policies, self._context.settings)
        coordinates = name.partition >= 0 and name.base == COORDINATOR_TOPIC
        stored_in = coordinator_log(name.partition) if coordinates else name
        ledger = await self._context.ledgers.open(
            stored_in.managed_ledger_name, record_config(config) if coordinates else config
        )

        def reload() -> None:
            self._context.tasks.start(self._reload(topic), f"load {name} anew")

        kind = CoordinatorTopic if coordinates else PersistentTopic
        topic = kind(name, ledger, self._context, policies, reload=reload)
        try:
            await topic.rates.follow()  # First: subscriptions that come back keep to what holds then.
            await topic.recover()
        except BaseException:
            await ledger.close()
            raise
        ledger.on_fenced(lambda: self._fenced(topic))
        return topic

    def _fenced(self, topic: Topic) -> None:
        """Another owner has the log: nothing we hold of it is true any more."""
        log.warning("topic.fenced", topic=str(topic.name))
        if self._topics.get(topic.name) is topic:
            self._context.tasks.start(self._reload(topic), f"load {topic.name} anew, which was fenced")

    async def _reload(self, topic: Topic) -> None:
        """Unload a topic that cannot go on as it is, and load it again for its clients while it is still ours."""
        name, had_clients = topic.name, topic.has_clients
        bundle = self._bundles.get(name)
        await self._close(topic)
        log.info("topic.unloaded", topic=str(name))
        if had_clients and bundle is not None and self._ownership().holds(bundle) and not self._shutting_down:
            try:
                await self.get(name, create=False)
            except BrokerError as error:  # Whoever asks for it next is told.
                log.warning("topic.not_reloaded", topic=str(name), reason=str(error))

    # What may be.

    async def _check_may_load(self, name: TopicName, create: bool) -> None:
        await self.require_namespace(name.namespace_name)
        if name.persistent and await self._context.ledgers.exists(name.managed_ledger_name):
            return
        resources = self._context.resources
        if name.partition >= 0:
            partitions = await resources.partitions(name.base)
            if partitions is not None and name.partition < partitions:
                return
            if partitions is not None:
                raise TopicNotFound(
                    f"topic {name.base} has {partitions} partitions: there is no {name.partition}"
                )
        elif await resources.partitions(name) is not None:
            raise NotAllowed(f"topic {name} is partitioned: use its partitions, as clients do by themselves")
        if not create:
            raise TopicNotFound(f"topic {name} does not exist: create it first")
        if name.partition >= 0:
            raise TopicNotFound(f"topic {name.base} is not partitioned: create it with partitions first")
        policies = await resources.effective(name)
        if not policies.auto_topic_creation and not name.is_system:
            raise TopicNotFound(
                f"topic {name} does not exist, and may not be made by itself: create it first"
            )
        if policies.auto_topic_partitions and not name.is_system:
            raise TopicNotFound(
                f"topic {name} does not exist; here new topics are partitioned: ask for its partitions"
            )
        await self._check_room(name, policies)

    async def _check_room(self, name: TopicName, policies: EffectivePolicies) -> None:
        limit = policies.max_topics_per_namespace
        if not limit or name.is_system:
            return
        namespace = name.namespace_name
        prefix = f"{namespace.tenant}/{namespace.local}/persistent"
        if len(await self._context.ledgers.list(prefix)) >= limit:
            raise NotAllowed(f"namespace {namespace} has its {limit} topics already: delete one first")

    async def require_namespace(self, namespace: NamespaceName) -> None:
        """
        Raises:
            NamespaceNotFound: it does not exist.
        """
        if await self._context.resources.namespace_policies(namespace) is None:
            raise NamespaceNotFound(f"namespace {namespace} does not exist: create it first")

    async def bundle(self, name: TopicName) -> Bundle:
        """The bundle a topic lies in."""
        return (await self.bundles(name.namespace_name)).find(name)

    async def bundles(self, namespace: NamespaceName) -> Bundles:
        """The bundles of a namespace.

        Raises:
            NamespaceNotFound: it does not exist.
        """
        policies = await self._context.resources.namespace_policies(namespace)
        if policies is None:
            raise NamespaceNotFound(f"namespace {namespace} does not exist: create it first")
        if policies.bundles is None or len(policies.bundles.boundaries) < 2:
            return Bundles.even(namespace, 4)
        try:
            return Bundles.parse(namespace, policies.bundles.boundaries)
        except ValueError as error:
            raise MetadataFailed(str(error)) from error

    async def partitions(self, name: TopicName, *, create: bool) -> int:
        """How many partitions a topic has, 0 for a plain one. With `create`, policy may make it partitioned.

        Raises:
            NamespaceNotFound, TopicNotFound
        """
        await self.require_namespace(name.namespace_name)
        if name.partition >= 0:
            return 0
        resources = self._context.resources
        partitions = await resources.partitions(name)
        if partitions is not None:
            return partitions
        if await self.exists(name):
            return 0
        policies = await resources.effective(name)
        if not create or not (policies.auto_topic_creation or name.is_system):
            raise TopicNotFound(f"topic {name} does not exist: create it first")
        if not policies.auto_topic_partitions or name.is_system:
            return 0
        try:
            await resources.create_partitioned(name, policies.auto_topic_partitions, {})
        except Conflict:  # Another client was faster.
            return await resources.partitions(name) or 0
        log.info("topic.made_partitioned", topic=str(name), partitions=policies.auto_topic_partitions)
        return policies.auto_topic_partitions

    async def exists(self, name: TopicName) -> bool:
        """Whether a topic that is not partitioned, or a partition, is there."""
        if name in self._topics:
            return True
        return name.persistent and await self._context.ledgers.exists(name.managed_ledger_name)

    # By hand.

    async def create(self, name: TopicName, *, properties: dict[str, str] | None = None) -> Topic:
        """Make a topic, or the partition of a partitioned one, whatever policy says of topics that make themselves.

        Raises:
            TopicExists
        """
        await self.require_namespace(name.namespace_name)
        if await self.exists(name):
            raise TopicExists("This topic already exists")
        if name.partition < 0 and await self._context.resources.partitions(name) is not None:
            raise TopicExists("This topic already exists, and is partitioned")
        await self._check_room(name, await self._context.resources.effective(name))
        topic = await self._load_once(name)
        if properties and isinstance(topic, PersistentTopic):
            await topic.ledger.set_properties({**topic.ledger.properties, **properties})
        return topic

    async def delete(self, name: TopicName, *, force: bool = False) -> None:
        """Delete a topic and everything in it.

        Raises:
            TopicNotFound
            TopicBusy: it has producers or consumers, and `force` is not set.
        """
        try:
            topic = await self.get(name, create=False)
        except TopicNotFound:
            if name.persistent:  # An earlier try may have been cut short by the end of its process.
                await self._context.ledgers.finish_deletion(name.managed_ledger_name)
            raise
        consumers = sum(len(each.consumers) for each in topic.subscriptions.values())
        if not force and (topic.producers or consumers):
            raise TopicBusy(
                f"Topic has active producers/subscriptions: {len(topic.producers)} producers and {consumers} consumers"
            )
        await self._close(topic, self._delete_closed)
        log.info("topic.deleted", topic=str(name))

    async def delete_unused(self, topic: PersistentTopic) -> bool:
        """Delete a topic that was found unused, unless somebody has come since."""
        if self._topics.get(topic.name) is not topic or topic.closing or topic.name in self._closing:
            return False
        if not topic.ours or is_active(topic):
            return False
        topic.closing = True  # At once: nobody is let in between the look and the end.
        await self._close(topic, self._delete_unused_closed)
        if topic.name.partition >= 0 and self._context.settings.delete_inactive_partitioned_metadata:
            await self._forget_if_gone(topic.name.base)
        return True

    async def _forget_if_gone(self, name: TopicName) -> None:
        partitions = await self._context.resources.partitions(name) or 0
        for number in range(partitions):
            if await self.exists(name.partition_name(number)):
                return
        if partitions:
            await self._context.resources.delete_partitioned(name)

    async def _delete_unused_closed(self, topic: Topic) -> None:
        await self._delete_closed(topic)
        if topic.name.partition < 0:  # Before anybody makes it anew, and says something of it.
            await self._context.resources.delete_topic_policies(topic.name)

    async def _delete_closed(self, topic: Topic) -> None:
        if isinstance(topic, PersistentTopic):
            if not topic.ours:  # Whoever serves it by now has stored, and receipted, what would go, too.
                raise ServiceNotReady(f"topic {topic.name} was lost while it was closing: look it up again")
            for log_name in topic.pending_ack_logs:
                await self._context.ledgers.delete(log_name)
            await self._context.ledgers.delete(topic.ledger.name)

    async def unload(self, name: TopicName) -> None:
        """Drop a topic from memory. Its clients look it up anew, and whoever asks first loads it again."""
        topic = self._topics.get(name)
        if topic is not None:
            await self._close(topic)
            log.info("topic.unloaded", topic=str(name))

    async def unload_bundle(self, bundle: Bundle, successor_url: str = "") -> int:
        """Drop all topics of a bundle. Clients are sent to `successor_url`, if given. Returns how many there were."""
        names = self._in_bundle(bundle)
        for name in names:
            self._topics[name].successor_url = successor_url
        await asyncio.gather(*(self.unload(name) for name in names))
        return len(names)

    def lose_bundle(self, bundle: Bundle) -> None:
        """A bundle is, or may be, another broker's: from this call on nothing of its topics is delivered or receipted."""
        for name in self._in_bundle(bundle):
            self._topics[name].lost = True

    def with_bundles(self) -> list[tuple[Topic, Bundle]]:
        """The topics in memory, each with the bundle it lies in."""
        return [(topic, self._bundles[name]) for name, topic in self._topics.items()]

    def _in_bundle(self, bundle: Bundle) -> list[TopicName]:
        return [name for name, its in self._bundles.items() if its == bundle]

    async def close_all(self) -> None:
        """Drop everything, and load nothing more."""
        self._shutting_down = True
        for loading in list(self._loading.values()):
            await asyncio.wait((loading,))
        await asyncio.gather(*(self.unload(topic.name) for topic in self.loaded()))

    async def _close(self, topic: Topic, then: Callable[[Topic], Awaitable[None]] | None = None) -> None:
        """Close a topic once; those who want it meanwhile wait, then load it anew."""
        name = topic.name
        closing = self._closing.get(name)
        if closing is None:
            closing = self._context.tasks.start(self._close_now(topic, then), f"close {name}")
            self._closing[name] = closing
        await asyncio.shield(closing)

    async def _close_now(self, topic: Topic, then: Callable[[Topic], Awaitable[None]] | None) -> None:
        try:
            await topic.close()
            topic.rates.close()
            if then is not None:
                await then(topic)
        finally:
            if self._topics.get(topic.name) is topic:
                del self._topics[topic.name]
                del self._bundles[topic.name]
            self._closing.pop(topic.name, None)

    # Keeping up.

    def policies_changed(self, subject: TopicName | NamespaceName | None) -> None:
        """Policies of a topic, a namespace or everything have changed: let what is loaded follow."""
        for topic in self.loaded():
            if subject is None or subject in (topic.name, topic.name.base, topic.name.namespace_name):
                self._context.tasks.start(
                    self._follow_policies(topic), f"follow the policies of {topic.name}"
                )

    async def _follow_policies(self, topic: Topic) -> None:
        try:
            policies = await self._context.resources.effective(topic.name)
        except NotFound:
            return  # The namespace is being deleted, and this topic with it.
        if policies != topic.policies and not topic.closing:
            await topic.apply_policies(policies)
            log.info("topic.policies_applied", topic=str(topic.name))
