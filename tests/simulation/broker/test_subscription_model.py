"""Random lives of a subscription, beside a model small enough to be believed.

The real subscription, with its cursor, reader, filters and dispatcher, is driven by random operations that
interleave with its reads. Every message is checked at the very moment it is sent: may this consumer have it,
now, in this order, with this count? In the end everything must have arrived: no subscription gets stuck.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from magnetar.broker.broker import Broker
from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.key_shared import KeySharedDispatcher
from magnetar.broker.dispatch.member import Member
from magnetar.broker.dispatch.shared import SharedDispatcher
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.membership import Join, SubscriptionType
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.settings import BrokerSettings
from magnetar.broker.subscription import Subscription
from magnetar.environment.clock import SystemClock
from magnetar.managed_ledger.position import Position
from magnetar.metadata.opening import open_store
from magnetar.naming import TopicName
from magnetar.policies.resources import Resources
from magnetar.protocol import ack_sets
from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.frames import FrameDecoder
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandAck, MessageIdData, MessageMetadata
from magnetar.security.authorizer import AllowAll
from tests.unit.broker.memory_log import MemoryCursor, MemoryLog, MemoryLogs

NAME = TopicName.parse("t")
KEYS = ("a", "b", "c", "d")


class Client:
    """A consumer's connection: hears frames at once, and hands them to the model."""

    address = "/model"
    client_version = "Pulsar-Java-model"
    protocol_version = 21
    role = None
    wants_entry_metadata = False
    bears_end_of_topic = True

    def __init__(self, heard: Callable[[Client, Any, bytes], None]) -> None:
        self.writable = True
        self._heard = heard
        self._decoder = FrameDecoder()

    def send(self, frame: bytes) -> None:
        for each in self._decoder.feed(frame):
            self._heard(self, each.command, b"")

    def send_claim(self, frame: bytes) -> None:
        self.send(frame)

    def send_parts(self, parts: Sequence[Any]) -> None:
        for each in self._decoder.feed(b"".join(parts)):
            assert each.payload is not None
            self._heard(self, each.command, bytes(each.payload))

    async def is_alive(self) -> bool:
        return True

    def abort(self, reason: str) -> None:
        raise AssertionError(reason)

    def publish_started(self, size: int) -> None: ...

    def publish_finished(self, size: int) -> None: ...

    def forget_producer(self, producer: Any) -> None: ...

    def forget_consumer(self, consumer: Any) -> None: ...


class Held:
    """What the model knows of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.permits = 0
        self.pending: dict[Position, set[int]] = {}


class World:
    """A topic, one subscription, its consumers, and the model of all three."""

    def __init__(self, seed: int, kind: SubscriptionType) -> None:
        self.dice = random.Random(seed)
        self.kind = kind
        self.individual = kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)
        self.logs = MemoryLogs(entries_per_ledger=7)
        self.held: dict[Client, Held] = {}
        self.unacked: dict[Position, set[int]] = {}
        self.sizes: dict[Position, int] = {}
        self.keys: dict[Position, str] = {}
        self.counts: dict[Position, int] = {}
        self.delivered_upto: Position | None = None
        self.active = -1
        self.names = 0
        self.published = 0
        self.deliveries = 0
        self.story: list[str] = []
        self.failures: list[AssertionError] = []

    async def open(self) -> None:
        self.store = await open_store("memory:")
        self.resources = Resources(self.store)
        self.broker = Broker(
            BrokerSettings(
                failover_delay_s=0.0, dispatch_entries=self.dice.choice((1, 3, 100)), replay_look_ahead=20
            ),
            metadata=self.store,
            ledgers=self.logs,  # type: ignore[arg-type]  # It does what the contract says.
            resources=self.resources,
            authorizer=AllowAll(),
            clock=SystemClock(),
            random=self.dice,
        )
        await self.resources.bootstrap("standalone", "http://127.0.0.1:8080", "pulsar://127.0.0.1:6650")
        await self.load()

    async def load(self) -> None:
        topic = await self.broker.topics.get(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        self.topic = topic
        self.subscription: Subscription = await topic.subscription("s", durable=True, initial="earliest")

    @property
    def log(self) -> MemoryLog:
        return self.logs.logs[NAME.managed_ledger_name]

    async def close(self) -> None:
        await self.broker.topics.close_all()
        await self.broker.context.tasks.drain()
        self.resources.close()
        await self.store.close()

    # What clients do.

    def publish(self) -> None:
        size = self.dice.choice((1, 1, 2, 5))
        key = self.dice.choice(KEYS)
        builder = BatchBuilder()
        for _ in range(size):
            builder.add(b"x", self.published)
            self.published += 1
        metadata = MessageMetadata(
            producer_name="p", sequence_id=self.published, publish_time=1, partition_key=key
        )
        if size > 1:
            metadata.num_messages_in_batch = size
        data = build_message(metadata, builder.payload())

        def stored(position: Position | None, index: int, error: Exception | None) -> None:
            assert position is not None
            self.unacked[position] = set(range(size))
            self.sizes[position] = size
            self.keys[position] = key

        self.log.append([data], size, stored)

    async def subscribe(self) -> None:
        if self.kind is SubscriptionType.EXCLUSIVE and self.held:
            return
        client = Client(self.heard)
        self.names += 1
        consumer = Consumer(
            client, self.names, f"c{self.dice.randrange(3)}", priority=self.dice.choice((0, 0, 1))
        )
        if not self.held:
            self.delivered_upto = None
        self.held[client] = Held(consumer)
        await self.subscription.join(consumer, Join(self.kind), lambda: None)

    def flow(self, permits: int | None = None) -> None:
        for held in self.some():
            granted = permits if permits is not None else self.dice.choice((1, 2, 10))
            held.permits += granted
            self.subscription.flow_permits(held.consumer, granted)

    def acknowledge(self, *, everything: bool = False) -> None:
        for held in self.some(everything=everything):
            command = CommandAck(consumer_id=held.consumer.identifier, ack_type=CommandAck.Individual)
            for position in list(held.pending):
                if everything or self.dice.random() < 0.5:
                    self.acknowledge_one(held, position, command, everything=everything)
            self.subscription.acknowledge(held.consumer, command)

    def acknowledge_one(
        self, held: Held, position: Position, command: CommandAck, *, everything: bool
    ) -> None:
        data = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
        size = self.sizes[position]
        if size > 1 and not everything and self.dice.random() < 0.5:
            kept = {index for index in range(size) if self.dice.random() < 0.5}
            if kept:
                data.ack_set.extend(ack_sets.from_bits(sum(1 << index for index in kept)))
                self.unacked[position] &= kept
                held.pending[position] &= kept
            else:
                self.unacked[position] = set()
        else:
            self.unacked[position] = set()
        if not self.unacked[position]:
            held.pending.pop(position, None)
            self.counts.pop(position, None)
        command.message_id.append(data)

    def acknowledge_cumulative(self) -> None:
        for held in self.some():
            if self.individual or not held.pending:
                return
            position = self.dice.choice(sorted(held.pending))
            command = CommandAck(consumer_id=held.consumer.identifier, ack_type=CommandAck.Cumulative)
            command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
            for each in self.unacked:
                if each <= position:
                    self.unacked[each] = set()
                    held.pending.pop(each, None)
            self.subscription.acknowledge(held.consumer, command)

    def give_back(self) -> None:
        for held in self.some():
            positions = [each for each in held.pending if self.dice.random() < 0.5] or None
            if self.individual:
                for position in positions or list(held.pending):
                    held.pending.pop(position)
                    self.counts[position] = self.counts.get(position, 0) + 1
            elif held.consumer is self.subscription.active_consumer:
                held.pending.clear()
                self.delivered_upto = None
            self.subscription.redeliver(held.consumer, positions, None)

    def leave(self) -> None:
        for held in self.some():
            self.forget(held)
            if held.consumer is self.subscription.active_consumer:
                self.delivered_upto = None
            self.subscription.leave(held.consumer)

    def forget(self, held: Held) -> None:
        self.held = {client: each for client, each in self.held.items() if each is not held}
        if not self.held:
            self.counts.clear()

    def stop_or_go(self) -> None:
        for held in self.some():
            client = next(client for client, each in self.held.items() if each is held)
            client.writable = not client.writable
            held.consumer.connection_writable(client.writable)

    async def seek(self) -> None:
        if not self.sizes:
            return
        position = self.dice.choice(sorted(self.sizes))
        resetting = asyncio.create_task(self.subscription.reset(position))
        await asyncio.sleep(0)
        assert not self.held, "everyone is let go before the cursor moves"
        self.delivered_upto = None
        for each, size in self.sizes.items():
            self.unacked[each] = set(range(size)) if each >= position else set()
        await resetting

    async def unload(self) -> None:
        await self.broker.topics.unload(NAME)
        assert not self.held, "everyone is let go before a topic is"
        self.delivered_upto = None
        await self.load()

    def some(self, *, everything: bool = False) -> list[Held]:
        if everything:
            return list(self.held.values())
        return [self.dice.choice(list(self.held.values()))] if self.held else []

    # What they hear.

    def heard(self, client: Client, command: BaseCommand, data: bytes) -> None:
        """Whatever is wrong is kept for the test: the broker would survive it."""
        try:
            self.check(client, command)
        except AssertionError as failure:
            self.failures.append(failure)

    def check(self, client: Client, command: BaseCommand) -> None:
        if command.type == BaseCommand.CLOSE_CONSUMER and client in self.held:
            self.forget(self.held[client])
        if command.type == BaseCommand.ACTIVE_CONSUMER_CHANGE:
            change = command.active_consumer_change
            if change.is_active and change.consumer_id != self.active:
                self.active = change.consumer_id
                self.delivered_upto = None
        if command.type != BaseCommand.MESSAGE:
            return
        message = command.message
        held = self.held.get(client)
        assert held is not None, "a consumer that is gone got a message"
        position = Position(message.message_id.ledgerId, message.message_id.entryId)
        left = self.unacked[position]
        assert left, f"{position} is acknowledged and came again"
        got = set(ack_sets.indexes(message.ack_set)) if message.ack_set else set(range(self.sizes[position]))
        assert got == left, f"{position}: {sorted(got)} came, {sorted(left)} are not acknowledged"
        assert held.permits > 0, "more came than was asked for"
        assert client.writable, "a full connection was written to"
        held.permits -= len(got)
        if self.individual:
            self.check_shared(held, position, message.redelivery_count)
        else:
            self.check_order(held, position)
        held.pending[position] = set(got)
        self.deliveries += 1

    def check_shared(self, held: Held, position: Position, count: int) -> None:
        holders = [each for each in self.held.values() if position in each.pending]
        assert not holders, f"{position} is with a consumer already"
        assert count == self.counts.get(position, 0)
        if self.kind is SubscriptionType.KEY_SHARED:
            key = self.keys[position]
            others = [
                each
                for each in self.held.values()
                if each is not held and any(self.keys[pending] == key for pending in each.pending)
            ]
            assert not others, f"key {key} is with two consumers"
            earlier = {
                each
                for each in self.unacked
                if each < position and self.keys[each] == key and self.unacked[each]
            }
            assert earlier <= set(held.pending), (
                f"{position} came before {sorted(earlier - set(held.pending))}"
            )

    def check_order(self, held: Held, position: Position) -> None:
        assert held.consumer is self.subscription.active_consumer
        after = self.delivered_upto
        expected = min(
            each for each in self.unacked if self.unacked[each] and (after is None or each > after)
        )
        assert position == expected, f"{position} came where {expected} was due"
        self.delivered_upto = position

    # Running.

    async def step(self) -> None:
        operation = self.dice.choices(
            (
                "publish",
                "subscribe",
                "flow",
                "acknowledge",
                "cumulative",
                "give_back",
                "leave",
                "writable",
                "seek",
                "unload",
                "rest",
            ),
            (12, 3, 8, 8, 2, 3, 2, 2, 0.6, 0.4, 3),
        )[0]
        self.story.append(operation)
        match operation:
            case "publish":
                self.publish()
            case "subscribe":
                await self.subscribe()
            case "flow":
                self.flow()
            case "acknowledge":
                self.acknowledge()
            case "cumulative":
                self.acknowledge_cumulative()
            case "give_back":
                self.give_back()
            case "leave":
                self.leave()
            case "writable":
                self.stop_or_go()
            case "seek":
                await self.seek()
            case "unload":
                await self.unload()
            case "rest":
                await self.rest()
        for _ in range(self.dice.choice((0, 0, 1, 3, 20))):
            await asyncio.sleep(0)
        for failure in self.failures:
            raise failure
        for held in self.held.values():
            assert held.permits == held.consumer.permits

    async def rest(self) -> None:
        """Nobody does anything for a while: then nobody may be left wanting what there is."""
        for _ in range(60):
            await asyncio.sleep(0)
        wanting = [held for client, held in self.held.items() if held.permits > 0 and client.writable]
        with_someone = {position for held in self.held.values() for position in held.pending}
        if self.kind is SubscriptionType.SHARED:
            idle = [each for each in self.unacked if self.unacked[each] and each not in with_someone]
        else:
            wanting = [held for held in wanting if held.consumer is self.subscription.active_consumer]
            after = self.delivered_upto
            idle = [each for each in self.unacked if self.unacked[each] and (after is None or each > after)]
        if self.kind is not SubscriptionType.KEY_SHARED:
            assert not (wanting and idle), f"stuck: {idle} with permits left"

    async def finish(self) -> None:
        """With consumers, permits and acknowledgements, everything arrives."""
        while not self.held:
            await self.subscribe()
        for client, held in self.held.items():
            client.writable = True
            held.consumer.connection_writable(True)
        for _ in range(len(self.sizes) * 3 + 10):
            for held in list(self.held.values()):
                held.permits += 10
                self.subscription.flow_permits(held.consumer, 10)
            for _ in range(12):
                await asyncio.sleep(0)
            self.acknowledge(everything=True)
            for failure in self.failures:
                raise failure
        assert not any(self.unacked.values()), sorted(each for each, left in self.unacked.items() if left)
        assert self.subscription.cursor.backlog == 0
        if self.subscription.dispatcher is not None:
            assert self.subscription.dispatcher.unacked == 0


async def live(seed: int, kind: SubscriptionType) -> int:
    """One life. Returns how much was delivered; what goes wrong names the seed, and tells the story."""
    world = World(seed, kind)
    await world.open()
    try:
        for _ in range(80):
            await world.step()
        await world.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error!s:.300}; after {' '.join(world.story)}") from error
    finally:
        await world.close()
    return world.deliveries


@pytest.mark.parametrize("kind", list(SubscriptionType), ids=lambda kind: kind.text)
@pytest.mark.parametrize("block", range(5))
async def test_random_lives(kind: SubscriptionType, block: int) -> None:
    deliveries = [await live(seed, kind) for seed in range(block * 20, block * 20 + 20)]
    assert sum(deliveries) > 100, "the model was not tried at all"


def forgets_to_rewind(self: SingleActiveDispatcher, member: Member, positions: object) -> bool:
    return False


def counts_a_departure(self: SharedDispatcher, member: Member) -> None:
    self.redeliver(member, None)
    REMOVE(self, member)


def takes_a_part_for_the_whole(
    self: MemoryCursor, positions: Iterable[tuple[Position, Sequence[int] | None]]
) -> list[Position]:
    return ACKNOWLEDGE(self, ((position, None) for position, _ in positions))


def replaces_instead_of_merging(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return list(second)


def gives_keys_to_anyone(self: KeySharedDispatcher, slot: int) -> Member | None:
    return self._selector.select(slot)


def sends_without_permits(self: Member) -> bool:
    return self.writable


def loses_what_was_given_back(self: SharedDispatcher, position: Position, key_hash: int) -> None:
    return None


async def naps_before_it_stops(self: Subscription) -> None:
    more = True
    while more:
        more = await self._read_once()
        await asyncio.sleep(0)
    self._reading = None


REMOVE = SharedDispatcher.remove
ACKNOWLEDGE = MemoryCursor.acknowledge


@pytest.mark.parametrize(
    ("owner", "name", "fault", "kind"),
    [
        (SingleActiveDispatcher, "redeliver", forgets_to_rewind, SubscriptionType.EXCLUSIVE),
        (SharedDispatcher, "remove", counts_a_departure, SubscriptionType.SHARED),
        (MemoryCursor, "acknowledge", takes_a_part_for_the_whole, SubscriptionType.SHARED),
        (ack_sets, "and_", replaces_instead_of_merging, SubscriptionType.SHARED),
        (KeySharedDispatcher, "_owner", gives_keys_to_anyone, SubscriptionType.KEY_SHARED),
        (Member, "ready", property(sends_without_permits), SubscriptionType.SHARED),
        (SharedDispatcher, "_replay_later", loses_what_was_given_back, SubscriptionType.SHARED),
        (Subscription, "_read", naps_before_it_stops, SubscriptionType.EXCLUSIVE),
    ],
    ids=lambda value: value.__name__ if callable(value) and not isinstance(value, type) else None,
)
async def test_deliberate_faults_are_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, fault: object, kind: SubscriptionType
) -> None:
    """A model that finds nothing proves nothing."""
    monkeypatch.setattr(owner, name, fault)

    async def live_on() -> None:
        for seed in range(100):
            await live(seed, kind)

    with pytest.raises(AssertionError):
        await live_on()
