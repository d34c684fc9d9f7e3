"""Random lives of a subscription: a real broker beside the reference model.

Publishers, consumers, acknowledgements of every kind, redelivery, seeks, unloads and crashes, at any moment. Every
message is judged when it is sent; at rest nobody may want what there is; in the end everything must have arrived.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.dispatcher import Dispatcher
from magnetar.broker.membership import Join, SubscriptionType
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.subscription import Subscription
from magnetar.managed_ledger.position import Position
from magnetar.naming import TopicName
from magnetar.protocol import ack_sets, commands
from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.ids import to_signed
from magnetar.protocol.message import build_message, read_metadata
from magnetar.protocol.pulsar_pb2 import (
    AUTO_SPLIT,
    STICKY,
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    MessageIdData,
    MessageMetadata,
)
from tests.simulation.broker.broker_house import House, Line
from tests.simulation.broker.stories import Step, steps_of
from tests.simulation.broker.subscription_reference import (
    ModelConsumer,
    Reference,
    StoredEntry,
    Violation,
    require,
    slot_of,
)

KEYS = ("a", "b", "c", "d", "e", "f")
OPENING = ("publish", "subscribe", "subscribe", "flow", "publish", "flow")
QUARTERS = ((0, 16383), (16384, 32767), (32768, 49151), (49152, 65535))
WEIGHTS = {
    "publish": 12.0,
    "subscribe": 4.0,
    "flow": 9.0,
    "acknowledge": 7.0,
    "acknowledge_parts": 3.0,
    "acknowledge_strangely": 1.0,
    "cumulative": 2.0,
    "give_back": 4.0,
    "leave": 1.5,
    "cut": 0.7,
    "writable": 1.5,
    "seek": 0.7,
    "seek_time": 0.3,
    "expire": 0.4,
    "unload": 0.4,
    "crash": 0.4,
    "mark": 1.0,
    "wait": 4.0,
    "rest": 2.0,
}
REST_S = 6.0
ROUNDS = 60


class Client:
    """A consumer's client: what it asked for, and what it has got."""

    def __init__(self, life: SubscriptionLife, consumer: ModelConsumer, kind: Join) -> None:
        self.life = life
        self.model = consumer
        self.has: dict[int, set[int]] = {}
        self.joined = False
        self.gone = False
        self.refused = ""
        self.line = life.house.line(self.heard)
        self.line.lost = lambda: self.forget("is cut off by the broker")
        fields: dict[str, Any] = {}
        if kind.type is SubscriptionType.KEY_SHARED:
            fields["keySharedMeta"] = KeySharedMeta(
                keySharedMode=STICKY if kind.sticky else AUTO_SPLIT,
                hashRanges=[IntRange(start=first, end=last) for first, last in consumer.ranges],
                allowOutOfOrderDelivery=kind.out_of_order,
            )
        if consumer.epoch is not None:
            fields["consumer_epoch"] = consumer.epoch
        self.line.command(
            "subscribe",
            topic=str(life.name),
            subscription="s",
            subType=int(kind.type),
            consumer_id=1,
            request_id=next(life.house.request_ids),
            consumer_name=consumer.name,
            priority_level=consumer.priority,
            initialPosition=CommandSubscribe.Earliest,
            **fields,
        )

    @property
    def live(self) -> bool:
        return self.joined and not self.gone

    def heard(self, line: Line, command: BaseCommand, payload: bytes | None) -> None:
        """Whatever is wrong is kept for the story: the broker would survive it."""
        try:
            self._heard(command, payload)
        except Violation as violation:
            self.life.violations.append(violation)

    def _heard(self, command: BaseCommand, payload: bytes | None) -> None:
        life = self.life
        match command.type:
            case BaseCommand.SUCCESS if not self.joined:
                self.joined = True
                life.note(f"{self.model.name} has joined{life.tell_consumer(self.model)}")
                life.reference.joined(self.model, life.house.loop.now)
            case BaseCommand.SUCCESS:
                life.succeeded(command.success.request_id)
            case BaseCommand.ERROR:
                if not self.joined:
                    self.refused = command.error.message
                    self.gone = True
                life.failed(command.error.request_id, command.error.message)
            case BaseCommand.CLOSE_CONSUMER:
                self.forget("is let go by the broker")
            case BaseCommand.ACK_RESPONSE:
                life.receipt(command.ackResponse.request_id, command.ackResponse.HasField("error"))
            case BaseCommand.MESSAGE:
                assert payload is not None
                self._got(command.message, payload)

    def _got(self, message: Any, payload: bytes) -> None:
        life = self.life
        serial = read_metadata(payload).sequence_id
        position = Position(message.message_id.ledgerId, message.message_id.entryId)
        life.locate(serial, position)
        members = ack_sets.indexes(message.ack_set) if message.ack_set else None
        life.note(
            f"    {self.model.name} gets #{serial}"
            + (f" members {members}" if members is not None else "")
            + (f", redelivery {message.redelivery_count}" if message.redelivery_count else "")
        )
        require(not self.gone, f"{self.model.name} is gone and got #{serial}")
        life.reference.delivered(
            self.model,
            serial,
            members,
            count=message.redelivery_count,
            epoch=message.consumer_epoch if message.HasField("consumer_epoch") else None,
            now=life.house.loop.now,
            now_ms=life.house.clock.time_ms(),
        )
        self.has[serial] = (
            set(range(life.reference.entries[serial].size)) if members is None else set(members)
        )

    def forget(self, how: str) -> None:
        if self.live:
            self.life.note(f"{self.model.name} {how}")
            self.gone = True
            self.life.reference.left(self.model, self.life.house.loop.now)
        self.gone = True


class SubscriptionLife:
    """One life. Everything about it comes from its seed and its steps."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.dice = dice
        type_ = list(SubscriptionType)[seed % 4]
        keyed = type_ is SubscriptionType.KEY_SHARED
        self.kind = Join(
            type_,
            sticky=keyed and dice.random() < 0.3,
            out_of_order=keyed and dice.random() < 0.25,
        )
        self.house = House(dice)
        self.handover_s = dice.choice((0.0, 0.0, 1.0))
        self.max_unacked = dice.choice((0, 0, 0, 12))
        self.max_unacked_consumer = dice.choice((0, 0, 0, 6))
        self.broker_limit = dice.choice((0, 0, 0, 10))
        self.look_ahead = dice.choice((2000, 2000, 20))
        self.house.settings = self.house.settings.model_copy(
            update={
                "failover_delay_s": self.handover_s,
                "dispatch_entries": dice.choice((1, 3, 100)),
                "replay_look_ahead": self.look_ahead,
                "ledger_max_entries": dice.choice((5, 50_000)),
                "delayed_entries_max": 1000,
                "max_unacked_messages_per_broker": self.broker_limit,
                "max_unacked_share_when_blocked": 0.5,
            }
        )
        self.house.defaults = replace(
            self.house.defaults,
            retention_time_s=-1,
            retention_size_bytes=-1,
            max_unacked_messages_per_consumer=self.max_unacked_consumer,
            max_unacked_messages_per_subscription=self.max_unacked,
        )
        self.keys = KEYS[: dice.choice((1, 3, 6))]
        self.name = TopicName.parse(dice.choice(("t", "t", "t-partition-1")))
        order = f"{' sticky' if self.kind.sticky else ''}{' out of order' if self.kind.out_of_order else ''}"
        reads = f"{self.house.settings.dispatch_entries} entries a read"
        limits = f"limits {self.max_unacked_consumer}/{self.max_unacked}/{self.broker_limit}, handover {self.handover_s} s"
        self.lines = [f"{type_.text}{order} on {self.name}, {reads}, {limits}"]
        self.reference = Reference(
            self.kind,
            partition=self.name.partition,
            max_unacked=self.max_unacked,
            broker_limit=self.broker_limit,
            handover_s=self.handover_s,
        )
        self.violations: list[Violation] = []
        self.clients: list[Client] = []
        self.positions: dict[int, Position] = {}
        self.marks: list[tuple[int, int]] = []
        """Times, each with the first serial stored after it."""
        self.durable: dict[int, set[int]] = {}
        """Of each entry, what may come again after a crash."""
        self._serials = 0
        self._names = 0
        self._messages = 0
        self._producer: Line | None = None
        self._ready = False
        self._receipts: dict[int, dict[int, set[int]]] = {}
        self._seeks: dict[int, Callable[[], None]] = {}

    def note(self, line: str) -> None:
        self.lines.append(line)

    def tell_consumer(self, consumer: ModelConsumer) -> str:
        told = f", priority {consumer.priority}" if consumer.priority else ""
        return told + (f", ranges {list(consumer.ranges)}" if consumer.ranges else "")

    def draw(self) -> list[Step]:
        opening = [(name, self.dice.getrandbits(48)) for name in OPENING]
        return opening + steps_of(self.dice, WEIGHTS, self.dice.choice((15, 30, 60)))

    def live(self, steps: Sequence[Step]) -> None:
        self.house.run(self._live(steps))

    async def _live(self, steps: Sequence[Step]) -> None:
        broker = await self.house.start()
        if self.name.partition >= 0:
            await broker.context.resources.create_partitioned(self.name.base, 2)
        topic = await self.house.broker.topics.get(self.name, create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.subscription("s", durable=True, initial="earliest")
        for operation, seed in steps:
            self.dice = random.Random(seed)
            await getattr(self, f"do_{operation}")()
            await self._breathe()
            self.check()
        self.note("-- the end: everything must arrive --")
        await self.finish()

    async def _breathe(self) -> None:
        for _ in range(self.dice.choice((0, 0, 1, 2, 3, 5, 8))):
            await asyncio.sleep(0)
        if self.dice.random() < 0.25:
            await asyncio.sleep(self.dice.choice((0.001, 0.01, 0.1)))

    # What must hold between steps.

    @property
    def subscription(self) -> Subscription | None:
        topic = self.house.broker.topics.find(self.name)
        found = topic.subscriptions.get("s") if topic is not None else None
        return found if isinstance(found, Subscription) else None

    @property
    def dispatcher(self) -> Dispatcher | None:
        return self.subscription.dispatcher if self.subscription is not None else None

    def check(self) -> None:
        if self.violations:
            raise self.violations[0]
        for client in self.live_clients:
            consumer = client.line.consumers.get(1)
            require(isinstance(consumer, Consumer), f"{client.model.name} is not known to its connection")
            assert isinstance(consumer, Consumer)
            name, model = client.model.name, client.model
            require(
                consumer.permits == model.permits, f"{name}: {consumer.permits} permits, not {model.permits}"
            )
            if self.reference.individual:
                require(
                    consumer.unacked == model.unacked,
                    f"{name}: {consumer.unacked} unacknowledged, not {model.unacked}",
                )
        if self.reference.individual and self.dispatcher is not None:
            told, known = self.dispatcher.unacked, self.reference.unacked
            require(told == known, f"{told} unacknowledged in all, not {known}")

    # Clients.

    @property
    def live_clients(self) -> list[Client]:
        return [client for client in self.clients if client.live]

    def someone(self) -> Client | None:
        live = self.live_clients
        return self.dice.choice(live) if live else None

    def locate(self, serial: int, position: Position) -> None:
        known = self.positions.setdefault(serial, position)
        require(known == position, f"#{serial} is at {position}, and was at {known}")

    async def do_publish(self) -> None:
        if self._producer is None or not self._producer.producers:
            self._producer = self.house.line(self._heard_by_producer)
            self._ready = False
            self._producer.say(commands.producer(str(self.name), 1, next(self.house.request_ids)))
            await self.until(lambda: self._ready)
        for _ in range(self.dice.choice((1, 1, 2, 4))):
            if self.dice.random() < 0.08:
                self._publish_chunks()
            else:
                self._publish_one()

    def _publish_one(self) -> None:
        dice = self.dice
        size = dice.choice((1, 1, 2, 5))
        key = dice.choice(self.keys)
        due_ms = 0
        if self.reference.individual and size == 1 and dice.random() < 0.1:
            due_ms = self.house.clock.time_ms() + dice.choice((5, 500, 3000))
        entry = StoredEntry(self._next_serial(), size, slot_of(key), due_ms)
        metadata = MessageMetadata(
            producer_name="p", sequence_id=entry.serial, publish_time=1, partition_key=key
        )
        if due_ms:
            metadata.deliver_at_time = due_ms
        payload = b"x"
        if size > 1:
            builder = BatchBuilder()
            for _ in range(size):
                builder.add(b"x", entry.serial)
            payload = builder.payload()
            metadata.num_messages_in_batch = size
        self._send(entry, metadata, payload, f"{size} of key {key}" + (f", due {due_ms}" if due_ms else ""))

    def _publish_chunks(self) -> None:
        dice = self.dice
        count, key, uuid = dice.choice((2, 3)), dice.choice(self.keys), f"u{self._serials}"
        for number in range(count):
            entry = StoredEntry(
                self._next_serial(), 1, slot_of(key), chunk_of=uuid, chunk_last=number == count - 1
            )
            metadata = MessageMetadata(
                producer_name="p",
                sequence_id=entry.serial,
                publish_time=1,
                partition_key=key,
                uuid=uuid,
                chunk_id=number,
                num_chunks_from_msg=count,
                total_chunk_msg_size=count,
            )
            self._send(entry, metadata, b"x", f"chunk {number} of {uuid}, key {key}")

    def _next_serial(self) -> int:
        self._serials += 1
        return self._serials

    def _send(self, entry: StoredEntry, metadata: MessageMetadata, payload: bytes, what: str) -> None:
        assert self._producer is not None
        self.note(f"publishes #{entry.serial}: {what}")
        self.reference.stored(entry)
        self.durable[entry.serial] = set(range(entry.size))
        message = build_message(metadata, payload)
        head = commands.send(1, entry.serial, len(message), num_messages=entry.size)
        self._producer.say(head + message)

    def _heard_by_producer(self, line: Line, command: BaseCommand, payload: bytes | None) -> None:
        if command.type == BaseCommand.PRODUCER_SUCCESS:
            self._ready = True
        elif command.type == BaseCommand.SEND_RECEIPT:
            receipt = command.send_receipt
            position = Position(to_signed(receipt.message_id.ledgerId), to_signed(receipt.message_id.entryId))
            try:
                self.locate(receipt.sequence_id, position)
            except Violation as violation:
                self.violations.append(violation)

    async def do_subscribe(self) -> None:
        dice = self.dice
        ranges: tuple[tuple[int, int], ...] = ()
        if self.kind.sticky:
            ranges = tuple(quarter for quarter in QUARTERS if dice.random() < 0.4) or (dice.choice(QUARTERS),)
        self._subscribe(f"c{dice.randrange(3)}", dice.choice((0, 0, 1)), ranges)

    def _subscribe(self, name: str, priority: int, ranges: tuple[tuple[int, int], ...]) -> Client:
        self._names += 1
        epoch = 0 if not self.reference.individual and self.dice.random() < 0.3 else None
        consumer = ModelConsumer(
            f"{name}-{self._names}" if self.dice.random() < 0.5 else name,
            priority,
            ranges,
            epoch,
            max_unacked=self.max_unacked_consumer if self.reference.individual else 0,
        )
        client = Client(self, consumer, self.kind)
        self.clients.append(client)
        return client

    async def do_flow(self) -> None:
        client = self.someone()
        if client is not None:
            permits = self.dice.choice((1, 3, 10, 30))
            self.note(f"{client.model.name} can take {permits} more")
            self.reference.flow(client.model, permits)
            client.line.say(commands.flow(1, permits))

    async def do_acknowledge(self) -> None:
        client = self.someone()
        if client is not None and client.has:
            self._acknowledge(client, [each for each in client.has if self.dice.random() < 0.5], part=False)

    async def do_acknowledge_parts(self) -> None:
        client = self.someone()
        if client is not None and client.has:
            self._acknowledge(client, [each for each in client.has if self.dice.random() < 0.5], part=True)

    async def do_acknowledge_strangely(self) -> None:
        """What others have, what is acknowledged, what is not there."""
        client = self.someone()
        if client is not None and self.positions:
            serials = self.dice.sample(sorted(self.positions), min(2, len(self.positions)))
            self._acknowledge(client, serials, part=False, strange=True)

    def _acknowledge(
        self, client: Client, serials: Sequence[int], *, part: bool, strange: bool = False
    ) -> None:
        ids: list[MessageIdData] = []
        if strange:
            ids += [MessageIdData(ledgerId=999, entryId=5), MessageIdData(ledgerId=1, entryId=2**64 - 1)]
        for serial in self._whole_chunks(client, serials):
            position = self.positions[serial]
            data = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
            size = self.reference.entries[serial].size
            kept: set[int] = set()
            if part and size > 1:
                kept = {index for index in range(size) if self.dice.random() < 0.5}
                data.ack_set.extend(ack_sets.from_bits(sum(1 << index for index in kept)))
            ids.append(data)
            self.reference.acknowledged(serial, kept)
            if not self.reference.entries[serial].left:
                for each in self.clients:
                    each.has.pop(serial, None)
            self.note(
                f"{client.model.name} acknowledges #{serial}" + (f", keeping {sorted(kept)}" if kept else "")
            )
        self._say_ack(client, CommandAck.Individual, ids)

    def _whole_chunks(self, client: Client, serials: Sequence[int]) -> list[int]:
        """Clients have a chunked message, not its chunks: they speak of all that they got."""
        chosen = dict.fromkeys(serials)
        for serial in serials:
            uuid = self.reference.entries[serial].chunk_of
            if uuid is not None:
                chosen |= dict.fromkeys(
                    each for each in client.has if self.reference.entries[each].chunk_of == uuid
                )
        return list(chosen)

    def _say_ack(self, client: Client, kind: int, ids: Sequence[MessageIdData]) -> None:
        fields: dict[str, Any] = {}
        if self.dice.random() < 0.4:
            request_id = next(self.house.request_ids)
            fields["request_id"] = request_id
            self._receipts[request_id] = self._left()
        client.line.command("ack", consumer_id=1, ack_type=kind, message_id=ids, **fields)

    def _left(self) -> dict[int, set[int]]:
        return {serial: set(entry.left) for serial, entry in self.reference.entries.items()}

    def receipt(self, request_id: int, refused: bool) -> None:
        left = self._receipts.pop(request_id, {})
        if not refused:
            for serial, members in left.items():
                self.durable[serial] &= members

    async def do_cumulative(self) -> None:
        client = self.someone()
        if client is None or not client.has:
            return
        serial = self.dice.choice(sorted(client.has))
        size = self.reference.entries[serial].size
        position = self.positions[serial]
        data = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
        kept: set[int] = set()
        if size > 1 and self.dice.random() < 0.5:
            kept = set(range(self.dice.randrange(1, size), size))
            data.ack_set.extend(ack_sets.from_bits(sum(1 << index for index in kept)))
        if not self.reference.individual:
            self.note(f"{client.model.name} acknowledges up to #{serial}, keeping {sorted(kept)}")
            self.reference.acknowledged_up_to(serial, kept)
            self._drop_acknowledged()
        self._say_ack(client, CommandAck.Cumulative, [data])

    def _drop_acknowledged(self) -> None:
        for client in self.clients:
            client.has = {each: has for each, has in client.has.items() if self.reference.entries[each].left}

    async def do_give_back(self) -> None:
        client = self.someone()
        if client is None:
            return
        some = [each for each in client.has if self.dice.random() < 0.5]
        serials = self._whole_chunks(client, some) if self.dice.random() < 0.7 and client.has else []
        told = [serial for serial in serials if serial in self.positions]
        epoch = None
        if client.model.epoch is not None:
            epoch = client.model.epoch + self.dice.choice((0, 1))
        self.note(f"{client.model.name} gives back {[f'#{each}' for each in told] if told else 'all'}")
        self.reference.gave_back(client.model, told or None, epoch)
        for serial in told or list(client.has):
            client.has.pop(serial, None)
        fields = {} if epoch is None else {"consumer_epoch": epoch}
        ids = [
            MessageIdData(ledgerId=self.positions[each].ledger_id, entryId=self.positions[each].entry_id)
            for each in told
        ]
        client.line.command("redeliverUnacknowledgedMessages", consumer_id=1, message_ids=ids, **fields)

    async def do_leave(self) -> None:
        client = self.someone()
        if client is not None:
            client.forget("leaves")
            client.line.say(commands.close_consumer(1, next(self.house.request_ids)))

    async def do_cut(self) -> None:
        client = self.someone()
        if client is not None:
            client.forget("loses its connection")
            client.line.cut()

    async def do_writable(self) -> None:
        client = self.someone()
        if client is not None:
            client.model.writable = not client.model.writable
            self.note(f"{client.model.name} {'reads again' if client.model.writable else 'stops reading'}")
            if client.model.writable:
                client.line.resume_writing()
            else:
                client.line.pause_writing()

    # Moving the cursor.

    async def do_mark(self) -> None:
        await self.receipts()
        await asyncio.sleep(0.01)
        self.marks.append((self.house.clock.time_ms(), self._serials + 1))
        await asyncio.sleep(0.01)

    async def do_seek(self) -> None:
        await self.receipts()
        client = self.someone()
        if client is None or not self._serials:
            return
        serial, kept = self.dice.choice(sorted(self.positions)), None
        data = MessageIdData(
            ledgerId=self.positions[serial].ledger_id, entryId=self.positions[serial].entry_id
        )
        size = self.reference.entries[serial].size
        where = self.dice.choice(("there", "there", "within", "first", "last"))
        if where == "within" and size > 1:
            kept = set(range(self.dice.randrange(1, size), size))
            data.ack_set.extend(ack_sets.from_bits(sum(1 << index for index in kept)))
        elif where == "first":
            serial, data = 0, MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
        elif where == "last":
            serial, data = self._serials + 1, MessageIdData(ledgerId=2**63 - 1, entryId=2**63 - 1)
        self.note(f"{client.model.name} seeks #{serial}" + (f" from member {min(kept)} on" if kept else ""))
        await self._seek(client, serial, kept, message_id=data)

    async def do_seek_time(self) -> None:
        await self.receipts()
        client = self.someone()
        if client is not None and self.marks:
            time_ms, serial = self.dice.choice(self.marks)
            self.note(f"{client.model.name} seeks the time before #{serial}")
            await self._seek(client, serial, None, message_publish_time=time_ms)

    async def _seek(self, client: Client, serial: int, kept: set[int] | None, **where: Any) -> None:
        request_id = next(self.house.request_ids)

        def stands() -> None:
            self.note(f"  the cursor stands at #{serial}")
            self.reference.sought(serial, kept)
            self.durable = self._left()
            self._receipts.clear()
            for each in self.clients:
                each.has.clear()

        self._seeks[request_id] = stands
        client.line.command("seek", consumer_id=1, request_id=request_id, **where)
        if self.dice.random() < 0.5:  # Somebody subscribes while the cursor is being moved.
            for _ in range(self.dice.randrange(4)):
                await asyncio.sleep(0)
            await self.do_subscribe()
        await self.until(lambda: request_id not in self._seeks)

    def succeeded(self, request_id: int) -> None:
        stands = self._seeks.pop(request_id, None)
        if stands is not None:
            stands()

    def failed(self, request_id: int, why: str) -> None:
        if self._seeks.pop(request_id, None) is not None:
            self.note(f"  refused: {why}")

    async def do_expire(self) -> None:
        await self.receipts()
        subscription = self.subscription
        if subscription is None or subscription.closed or not self.positions:
            return
        serial = self.dice.choice(sorted(self.positions))
        self.note(f"an administrator has everything up to #{serial} expire")
        self.reference.acknowledged_up_to(serial)
        self._drop_acknowledged()
        left = self._left()
        await subscription.expire_up_to(self.positions[serial])
        for each, members in left.items():
            self.durable[each] &= members

    # Brokers come and go.

    async def do_unload(self) -> None:
        await self.receipts()
        self.note("the topic is unloaded")
        await self.house.unload(self.name)
        require(not self.live_clients, "everyone is let go before a topic is")
        await self._load(exactly=True)

    async def do_crash(self) -> None:
        await self.receipts()
        self.note("the broker dies")
        for client in self.clients:
            client.forget("lost its broker")
        self._producer = None
        self._receipts.clear()
        await self.house.crash()
        await self._load(exactly=False)

    async def _load(self, *, exactly: bool) -> None:
        """What the cursor remembers: all of it after an unload, what was receipted at least after a crash."""
        topic = await self.house.broker.topics.get(self.name, create=True)
        assert isinstance(topic, PersistentTopic)
        cursor = topic.subscriptions["s"].cursor
        for serial, position in self.positions.items():
            entry = self.reference.entries[serial]
            found: set[int] = set()
            if not cursor.is_acknowledged(position):
                bits = cursor.ack_set(position)
                found = set(range(entry.size)) if bits is None else set(ack_sets.indexes(bits))
            told = f"#{serial}: {sorted(found)} left after loading, {sorted(entry.left)} before"
            require(found >= entry.left, f"{told}: more is acknowledged than anybody did")
            require(
                found <= self.durable[serial] and (not exactly or found == entry.left), f"{told}: forgotten"
            )
            entry.left = found
            if exactly:
                self.durable[serial] = set(found)

    # Time.

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(2000):
            if condition():
                return
            await asyncio.sleep(0.01)
        raise Violation("what was asked for never happened")

    async def receipts(self) -> None:
        """Wait until everything published is answered."""
        await self.until(lambda: len(self.positions) == self._serials)

    async def do_wait(self) -> None:
        await asyncio.sleep(self.dice.choice((0.001, 0.05, 0.6, 1.5)))

    async def do_rest(self) -> None:
        """Nobody does anything for a while: then nobody may be left wanting what there is."""
        self.note("-- rest --")
        await asyncio.sleep(REST_S)
        self.check()
        if self.look_ahead < 100 and self.kind.type is SubscriptionType.KEY_SHARED:
            return  # A key's entries may lie beyond what is looked at.
        overdue = self.reference.overdue(self.house.loop.now, self.house.clock.time_ms())
        require(not overdue, f"stuck: {overdue[:3]} could go out, and nothing moves")

    async def finish(self) -> None:
        """With consumers, permits and acknowledgements, everything arrives."""
        await self.receipts()
        await asyncio.sleep(REST_S)  # Who still waits to join has joined, or was refused.
        for client in self.clients:  # Also those that wait for the place of another.
            client.forget("leaves")
            client.line.cut()
        await asyncio.sleep(1.0)
        client = self._subscribe("last", 0, QUARTERS if self.kind.sticky else ())
        await self.until(lambda: client.joined or client.gone)
        require(client.live, f"nobody can subscribe: {client.refused}")
        for _ in range(ROUNDS):
            self.reference.flow(client.model, 20)
            client.line.say(commands.flow(1, 20))
            await asyncio.sleep(0.5)
            self.check()
            if client.has:
                self._acknowledge(client, list(client.has), part=False)
            if not any(entry.left for entry in self.reference.entries.values()):
                break
        lost = [f"#{each.serial}" for each in self.reference.entries.values() if each.left]
        require(not lost, f"{lost} never arrived")
        subscription = self.subscription
        assert subscription is not None
        backlog = subscription.cursor.backlog
        require(backlog == 0, f"a backlog of {backlog} is left where everything is acknowledged")
