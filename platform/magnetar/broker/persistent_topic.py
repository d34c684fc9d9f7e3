"""A topic whose messages are stored: a managed ledger, its producers, its subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from magnetar.broker import stats
from magnetar.broker.dedup_cursor import DEDUPLICATION_CURSOR, DeduplicationCursor
from magnetar.broker.deduplication import Sequences, Verdict
from magnetar.broker.errors import (
    BrokerError,
    ChecksumFailed,
    InvalidSubscription,
    MessageNotFound,
    NotAllowed,
    PersistenceFailed,
    SubscriptionBusy,
    SubscriptionExists,
    SubscriptionNotFound,
    TopicTerminated,
)
from magnetar.broker.filters import messages_in
from magnetar.broker.latency import LatencyBuckets
from magnetar.broker.producer import Publish
from magnetar.broker.sequence_ids import told_range, untold_sequences
from magnetar.broker.subscription import Subscription
from magnetar.broker.topic import Topic
from magnetar.environment.logs import get_logger
from magnetar.managed_ledger import EARLIEST, LATEST, Position
from magnetar.managed_ledger.config import ManagedLedgerConfig
from magnetar.managed_ledger.errors import ManagedLedgerError, ManagedLedgerTerminated
from magnetar.protocol.batch import cut_batch
from magnetar.protocol.checksum import crc32c
from magnetar.protocol.errors import BatchUnopenable, ChecksumMismatch, ProtocolError
from magnetar.protocol.ids import MessageId
from magnetar.protocol.message import MESSAGE_MAGIC, SplitMessage, read_metadata, split_message, take_message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from magnetar.broker.context import BrokerContext
    from magnetar.broker.membership import SubscriptionBase
    from magnetar.broker.producer import Producer
    from magnetar.managed_ledger import Cursor, Entry, ManagedLedger
    from magnetar.naming import TopicName
    from magnetar.policies.effective import EffectivePolicies
    from magnetar.protocol.pulsar_pb2 import CommandSend

log = get_logger("magnetar.broker")

EPOCH_PROPERTY: Final = "magnetar.topic-epoch"
RESERVED_CURSORS: Final = ("pulsar.dedup", "pulsar.repl", "__compaction")
REPLICATED_PROPERTY: Final = "pulsar.replicated.subscription"

_DRAIN_S = 10.0
_DESERTED_S = 60.0


class PersistentTopic(Topic):
    """Stores what producers send, and lets subscriptions deliver it."""

    subscriptions: dict[str, Subscription]

    def __init__(
        self, name: TopicName, ledger: ManagedLedger, context: BrokerContext, policies: EffectivePolicies
    ) -> None:
        super().__init__(name, context, policies)
        self.ledger = ledger
        self.subscriptions = {}
        self.deduplication = DeduplicationCursor(ledger, context)
        self.write_latency = LatencyBuckets()
        self._subscribing = asyncio.Lock()
        self._applying = asyncio.Lock()
        self._temporary_cursors = 0
        self._in_flight = 0
        self._drained: asyncio.Event = asyncio.Event()
        self._drained.set()
        self._last_message: tuple[Position, MessageId] | None = None

    async def recover(self) -> None:
        """Bring back what the topic was. Nobody may use it before this is done."""
        epoch = self.ledger.properties.get(EPOCH_PROPERTY)
        if epoch is not None:
            self.exclusivity.epoch = int(epoch)
        self.terminated = self.ledger.terminated
        if self.policies.deduplication_enabled:
            await self.deduplication.enable()
        for name, cursor in list(self.ledger.cursors.items()):
            if not name.startswith(RESERVED_CURSORS):
                self._attach(name, cursor, durable=True, properties=cursor.cursor_properties)
        self.ledger.on_append(self._appended)

    # Publishing.

    def publish(self, producer: Producer, command: CommandSend, payload: memoryview) -> None:
        if self.closing:
            return  # Its producer is told so when what came before is stored, and sends it again.
        publish = Publish(
            producer,
            command.sequence_id,
            command.highest_sequence_id,
            1,
            len(payload),
            self.clock.monotonic(),
        )
        producer.pending.append(publish)
        producer.peer.publish_started(publish.size)
        try:
            parts = self._accept(publish, command, payload)
        except BrokerError as error:
            publish.error = error
            producer.answer(publish)
            return
        if parts is None:
            producer.answer(publish)
            return
        self._in_flight += 1
        self._drained.clear()
        self.ledger.append(parts, publish.messages, publish.stored)

    def _accept(self, publish: Publish, command: CommandSend, payload: memoryview) -> list[bytes] | None:
        """Check a message. Returns the bytes to store, or None if they are stored already."""
        if self.terminated:
            raise TopicTerminated(f"topic {self.name} is terminated: it takes no more messages")
        try:
            head, covered = take_message(payload)
        except ChecksumMismatch as error:
            raise ChecksumFailed(str(error)) from None
        message = split_message(covered, verify=False)
        self.check_message(command, message)
        publish.messages = messages_in(message.metadata)
        _check_count(message, publish.messages)
        if not head:  # Some consumers require a checksum, though producers may leave it out.
            head = MESSAGE_MAGIC + crc32c(covered).to_bytes(4, "big")
        parts = [head, covered]
        if (
            self.deduplication.tracking
            and not command.marker
            and not message.metadata.HasField("marker_type")
        ):
            return self._deduplicate(publish, command, message, parts)
        return parts

    def _deduplicate(
        self, publish: Publish, command: CommandSend, message: SplitMessage, parts: list[bytes]
    ) -> list[bytes] | None:
        marks = self.deduplication.marks
        name = publish.producer.name
        metadata = message.metadata
        sequence_id = command.sequence_id
        chunks = metadata.num_chunks_from_msg
        if chunks > 1 and metadata.chunk_id < chunks - 1:
            verdict = marks.judge_chunk(name, sequence_id)
            if verdict is Verdict.NEW or not self.deduplication.enabled:
                return parts  # Its message counts as stored when the last chunk is.
            sequences = Sequences(sequence_id, sequence_id)
        else:
            told = told_range(sequence_id, command.highest_sequence_id)
            if told is not None:
                sequences = told
            elif publish.messages > 1:
                sequences = untold_sequences(message)
            else:
                sequences = Sequences(sequence_id, sequence_id)
            verdict = marks.judge(name, sequences) if self.deduplication.enabled else Verdict.NEW
        match verdict:
            case Verdict.DUPLICATE:
                self.deduplication.duplicates += 1
                return None
            case Verdict.UNKNOWN:
                raise PersistenceFailed(
                    "an earlier write of the same message is under way: reconnect, send again"
                )
            case Verdict.UNTELLABLE:
                raise NotAllowed(
                    f"batch from sequence id {sequence_id} on may repeat stored messages, and as it is encrypted "
                    f"or corrupt nobody here can tell which: send them one by one, or in the batches of before"
                )
            case Verdict.STRADDLES:
                parts = [self._cut(publish, marks.last_sequence_id(name), parts)]
        publish.push = marks.push(name, sequences, self.clock.monotonic())
        return parts

    def _cut(self, publish: Publish, mark: int, parts: Sequence[bytes]) -> bytes:
        """Leave of a batch what is not stored yet. Its receipt is the same: all of it is stored then."""
        try:
            entry = cut_batch(b"".join(parts), lambda _, sequence_id: sequence_id > mark)
        except BatchUnopenable as error:
            raise NotAllowed(
                f"batch repeats messages up to sequence id {mark}, and cannot be cut to its new ones: {error}; "
                f"send them one by one, or in the batches of before"
            ) from None
        publish.messages = messages_in(read_metadata(entry))
        self.deduplication.cuts += 1
        return entry

    def published(self, publish: Publish, position: Position | None, error: Exception | None) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._drained.set()
        producer = publish.producer
        deduplication = self.deduplication
        if position is None:
            assert error is not None
            if publish.push is not None:
                deduplication.marks.failed(publish.push)
            publish.error = self._write_failed(error)
            producer.answer(publish)
            return
        publish.position = (position.ledger_id, position.entry_id)
        self.write_latency.add(self.clock.monotonic() - publish.began)
        self.last_publish_ms = self.clock.time_ms()
        self.flow_in.add(publish.messages, publish.size)
        producer.flow.add(publish.messages, publish.size)
        if publish.push is not None:
            deduplication.marks.stored(publish.push)
        if deduplication.enabled:
            deduplication.stored(position)
        producer.answer(publish)

    def _write_failed(self, error: Exception) -> BrokerError:
        log.warning("message.not_stored", topic=str(self.name), reason=str(error))
        if isinstance(error, ManagedLedgerTerminated):
            return TopicTerminated(f"topic {self.name} is terminated: it takes no more messages")
        return PersistenceFailed(f"message could not be stored: {error}")

    def _appended(self) -> None:
        """Entries were appended, however many: wake every subscription once."""
        for subscription in self.subscriptions.values():
            subscription.wake()

    def last_sequence_id(self, producer_name: str) -> int:
        return self.deduplication.marks.last_sequence_id(producer_name) if self.deduplication.enabled else -1

    async def store_epoch(self, epoch: int) -> None:
        await self.ledger.set_properties({**self.ledger.properties, EPOCH_PROPERTY: str(epoch)})

    # Subscriptions.

    async def subscription(
        self,
        name: str,
        *,
        durable: bool,
        initial: Literal["earliest", "latest"] = "latest",
        start: Position | None = None,
        properties: Mapping[str, str] | None = None,
        create: bool = True,
    ) -> Subscription:
        """The subscription of that name, made if need be.

        `start` is the first entry that a non-durable one delivers; `initial` where there is none.

        Raises:
            SubscriptionNotFound: it is not there and `create` is not set.
            NotAllowed: it is there, but durable where this is not, or the other way round.
        """
        check_subscription_name(name)
        async with self._subscribing:
            self.check_open()
            existing = self.subscriptions.get(name)
            if existing is not None and not existing.closed:
                if existing.durable is not durable:
                    raise NotAllowed(
                        f"subscription {name!r} exists and is {'' if existing.durable else 'not '}durable: "
                        f"use another name"
                    )
                return existing
            if durable and not create:
                raise SubscriptionNotFound(
                    f"subscription {name!r} does not exist on {self.name}: create it first"
                )
            limit = self.policies.max_subscriptions_per_topic
            if durable and limit and sum(each.durable for each in self.subscriptions.values()) >= limit:
                raise NotAllowed(f"topic {self.name} has its {limit} subscriptions already: delete one first")
            cursor = await self.ledger.open_cursor(
                name,
                initial=initial,
                properties=properties if durable else None,
                durable=durable,
                start=start,
            )
            return self._attach(name, cursor, durable=durable, properties=properties)

    def _attach(
        self, name: str, cursor: Cursor, *, durable: bool, properties: Mapping[str, str] | None
    ) -> Subscription:
        subscription = Subscription(self, name, cursor, durable=durable, properties=properties)
        self.subscriptions[name] = subscription
        return subscription

    async def create_subscription(
        self, name: str, position: Position = LATEST, *, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """Make a durable subscription whose first message is the one at `position`.

        Raises:
            SubscriptionExists: there is one.
        """
        if name in self.subscriptions:
            raise SubscriptionExists(f"subscription {name!r} exists on {self.name}")
        initial: Literal["earliest", "latest"] = "earliest" if position == EARLIEST else "latest"
        made = await self.subscription(name, durable=True, initial=initial, properties=properties)
        if position not in (EARLIEST, LATEST):
            await made.reset(position)
        return made

    async def delete_subscription(self, name: str, *, force: bool = False) -> None:
        async with self._subscribing:
            subscription = self.subscriptions.get(name)
            if subscription is None:
                raise SubscriptionNotFound(f"subscription {name!r} does not exist on {self.name}")
            if subscription.consumers and not force:
                raise SubscriptionBusy(
                    f"subscription {name!r} has {len(subscription.consumers)} consumers: close them, or force it"
                )
            await self._forget(subscription)

    async def _forget(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.name, None)
        await subscription.close()
        if subscription.durable:
            await self.ledger.delete_cursor(subscription.name)

    def consumer_left(self, subscription: SubscriptionBase) -> None:
        """A subscription that is not durable ends with its last consumer."""
        if not subscription.durable and not subscription.consumers and not subscription.closed:
            assert isinstance(subscription, Subscription)
            self.context.tasks.start(
                self._end(subscription), f"end subscription {subscription.name} of {self.name}"
            )

    async def _end(self, subscription: Subscription) -> None:
        async with self._subscribing:
            if not subscription.consumers and not subscription.resetting and not subscription.closed:
                await self._forget(subscription)

    @asynccontextmanager
    async def temporary_cursor(self, start: Position) -> AsyncIterator[Cursor]:
        """A reader of the ledger from `start` on, for a moment."""
        self._temporary_cursors += 1
        cursor = await self.ledger.open_cursor(
            f"__temporary-{self._temporary_cursors}", durable=False, start=start
        )
        try:
            yield cursor
        finally:
            await cursor.close()

    # Reading by position.

    async def read_entry(self, position: Position) -> Entry:
        """
        Raises:
            MessageNotFound: there is no entry at `position`.
        """
        try:
            return await self.ledger.read_entry(position)
        except ManagedLedgerError as error:
            raise MessageNotFound(
                f"no message at {position.ledger_id}:{position.entry_id}: {error}"
            ) from error

    @property
    def untouched(self) -> bool:
        consumers = any(each.consumers for each in self.subscriptions.values())
        return not self.producers and not consumers and not self.ledger.number_of_entries

    async def last_message_id(self) -> MessageId:
        position = self.ledger.last_confirmed
        if self._last_message is not None and self._last_message[0] == position:
            return self._last_message[1]
        found = await self._last_deliverable(position)
        self._last_message = (position, found)
        return found

    async def _last_deliverable(self, position: Position) -> MessageId:
        """Markers are passed over, backwards; they are few."""
        while position.entry_id >= 0 and self.ledger.number_of_entries:
            try:
                metadata = read_metadata((await self.ledger.read_entry(position)).data)
            except (ManagedLedgerError, ProtocolError):
                break
            if not metadata.HasField("marker_type"):
                is_batch = metadata.HasField("num_messages_in_batch")
                index = metadata.num_messages_in_batch - 1 if is_batch else -1
                return MessageId(position.ledger_id, position.entry_id, self.partition, index)
            position = Position(position.ledger_id, position.entry_id - 1)
        return MessageId(-1, -1, self.partition)

    # Ending.

    async def terminate(self) -> MessageId:
        """Take no more messages, for ever. Returns the id of the last."""
        self.closing = True
        try:
            await self._drain()
            last = await self.ledger.terminate()
            self.terminated = True
        finally:
            self.closing = False
        self.disconnect_producers()
        for subscription in self.subscriptions.values():
            if subscription.caught_up:
                subscription.tell_end()
        log.info("topic.terminated", topic=str(self.name), last=f"{last.ledger_id}:{last.entry_id}")
        return MessageId(last.ledger_id, last.entry_id, self.partition)

    def check_publishable(self) -> None:
        """
        Raises:
            TopicTerminated: the topic takes no more messages.
        """
        if self.terminated:
            raise TopicTerminated(f"topic {self.name} is terminated: it takes no more messages")

    async def add_producer(self, producer: Producer, topic_epoch: int | None = None) -> bool:
        self.check_publishable()
        return await super().add_producer(producer, topic_epoch)

    async def _drain(self) -> None:
        """Wait until what was taken is stored and answered, but not for ever."""
        try:
            async with asyncio.timeout(_DRAIN_S):
                await self._drained.wait()
        except TimeoutError:
            log.warning("topic.not_drained", topic=str(self.name), writes_under_way=self._in_flight)

    async def close(self) -> None:
        self.closing = True
        await self._drain()
        self.disconnect_producers()
        async with self._subscribing:
            for subscription in list(self.subscriptions.values()):
                await subscription.close()
        await self.deduplication.close()
        await self.ledger.close()

    async def delete_all_subscriptions(self) -> None:
        """Before the topic itself is deleted."""
        for name in list(self.subscriptions):
            await self.delete_subscription(name, force=True)

    # Policies and figures.

    async def apply_policies(self, policies: EffectivePolicies) -> None:
        async with self._applying:
            await super().apply_policies(policies)
            if self.closing:
                return
            self.ledger.set_config(ledger_config(policies))
            wanted = policies.deduplication_enabled
            if wanted and not self.deduplication.enabled:
                await self.deduplication.enable()
            elif not wanted and self.deduplication.enabled:
                await self.deduplication.disable()

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        self.deduplication.tick(self.producers)
        now = self.clock.monotonic()
        for subscription in list(self.subscriptions.values()):
            subscription.notice_mark_delete()
            deserted_at = subscription.deserted_at
            if deserted_at is not None and now - deserted_at > _DESERTED_S:
                self.consumer_left(
                    subscription
                )  # A reader that let go of its cursor to seek, and never came back.

    def stats(self, **options: bool) -> stats.Json:
        told = super().stats(**options)
        told["storageSize"] = self.ledger.total_size
        told["backlogSize"] = max(
            (each.cursor.backlog_bytes for each in self.subscriptions.values()), default=0
        )
        told["deduplicationStatus"] = self.deduplication.status
        return told

    def internal_stats(self) -> dict[str, Any]:
        return {
            **self.ledger.internal_stats(),
            "schemaLedgers": [],
            "compactedLedger": {
                "ledgerId": -1,
                "entries": -1,
                "size": -1,
                "offloaded": False,
                "underReplicated": False,
            },
        }


def ledger_config(policies: EffectivePolicies) -> ManagedLedgerConfig:
    """How a topic's log is kept, by its policies."""
    return ManagedLedgerConfig(
        ensemble_size=policies.ensemble_size,
        write_quorum=policies.write_quorum,
        ack_quorum=policies.ack_quorum,
        retention_time_s=policies.retention_time_s,
        retention_size_bytes=policies.retention_size_bytes,
        mark_delete_rate_per_s=policies.mark_delete_rate or 1.0,
    )


def check_subscription_name(name: str) -> None:
    """
    Raises:
        InvalidSubscription: it is empty, or kept for the broker's own cursors.
    """
    if not name:
        raise InvalidSubscription("Empty subscription name: give one")
    if name.startswith(RESERVED_CURSORS) or name == DEDUPLICATION_CURSOR:
        raise InvalidSubscription(
            f"subscription name {name!r} is reserved: choose one without that beginning"
        )


def _check_count(message: SplitMessage, messages: int) -> None:
    """The count becomes part of the topic's message index, so that it must at least be possible."""
    room = max(len(message.payload), message.metadata.uncompressed_size)
    if messages > 1 and messages * 4 > room:
        raise NotAllowed(f"batch announces {messages} messages in {room} bytes: that cannot be")
