"""A broker of a few lines over the codec: it does what it is told, holds what it is told to hold, and remembers
everything it heard. For what a real broker does only when it fails."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from magnetar.protocol import commands
from magnetar.protocol.frames import Frame, FrameDecoder
from magnetar.protocol.ids import LATEST, MessageId, to_signed
from magnetar.protocol.message import read_metadata, take_message
from magnetar.protocol.pulsar_pb2 import BaseCommand, MessageMetadata

LEDGER = 7


@dataclass
class Topic:
    """The entries of a topic, and where its one subscription stands."""

    entries: list[bytes] = field(default_factory=list)
    last_sequence_ids: dict[str, int] = field(default_factory=dict)


@dataclass
class Subscriber:
    """A consumer as the broker sees it."""

    topic: str
    next_entry: int
    permits: int = 0


class Session(asyncio.Protocol):
    """One connection."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._decoder = FrameDecoder()
        self.producers: dict[int, tuple[str, str]] = {}
        self.subscribers: dict[int, Subscriber] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._broker.sessions.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._broker.sessions.remove(self)

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self._broker.heard.append(frame.command)
            if not self._broker.intercept(self, frame):
                self._broker.answer(self, frame)
            self._broker.changed()

    def write(self, data: bytes) -> None:
        self.transport.write(data)


class FakeBroker:
    """Serves any topic at once. `intercept` may take a command over: return True and it is not answered."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.heard: list[BaseCommand] = []
        self.topics: dict[str, Topic] = {}
        self.partitions: dict[str, int] = {}
        self.deduplicates = False
        self.holds_receipts = False
        self.held_receipts: deque[tuple[Session, bytes]] = deque()
        self.max_message_bytes = 5 * 1024 * 1024
        self.acknowledged: list[tuple[int, list[int], bool]] = []
        self.intercept: Callable[[Session, Frame], bool] = lambda session, frame: False
        self._server: asyncio.Server | None = None
        self._bell = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Session(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and cut every connection."""
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()
            self._server = None

    def cut(self) -> None:
        """Cut every connection."""
        self.held_receipts.clear()
        for session in list(self.sessions):
            session.transport.abort()

    def changed(self) -> None:
        self._bell.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait, at most a few seconds, for something to be true."""
        async with asyncio.timeout(5):
            while not condition():
                self._bell.clear()
                await self._bell.wait()

    def count(self, number: BaseCommand.Type.ValueType) -> int:
        """How many commands of a type were heard."""
        return sum(command.type == number for command in self.heard)

    def last(self, number: BaseCommand.Type.ValueType) -> BaseCommand:
        """The last command of a type."""
        return next(command for command in reversed(self.heard) if command.type == number)

    def topic(self, name: str) -> Topic:
        return self.topics.setdefault(name, Topic())

    def release_receipts(self) -> None:
        """Send what was held, and hold no more."""
        self.holds_receipts = False
        while self.held_receipts:
            session, receipt = self.held_receipts.popleft()
            session.write(receipt)

    def answer(self, session: Session, frame: Frame) -> None:
        """What a broker in good health does."""
        command = frame.command
        match command.type:
            case BaseCommand.CONNECT:
                session.write(
                    commands.connected("Fake", protocol_version=21, max_message_bytes=self.max_message_bytes)
                )
            case BaseCommand.PING:
                session.write(commands.pong())
            case BaseCommand.PARTITIONED_METADATA:
                asked = command.partitionMetadata
                session.write(
                    commands.partitioned_metadata_response(
                        asked.request_id, self.partitions.get(asked.topic, 0)
                    )
                )
            case BaseCommand.LOOKUP:
                session.write(commands.lookup_response(command.lookupTopic.request_id, self.url))
            case BaseCommand.PRODUCER:
                self._on_producer(session, command)
            case BaseCommand.SEND:
                self._on_send(session, frame)
            case BaseCommand.CLOSE_PRODUCER:
                session.producers.pop(command.close_producer.producer_id, None)
                session.write(commands.success(command.close_producer.request_id))
            case BaseCommand.SUBSCRIBE:
                self._on_subscribe(session, command)
            case BaseCommand.FLOW:
                subscriber = session.subscribers[command.flow.consumer_id]
                subscriber.permits += command.flow.messagePermits
                self.deliver()
            case BaseCommand.ACK:
                self._on_ack(session, command)
            case BaseCommand.GET_LAST_MESSAGE_ID:
                self._on_last_message_id(session, command)
            case BaseCommand.CLOSE_CONSUMER:
                session.subscribers.pop(command.close_consumer.consumer_id, None)
                session.write(commands.success(command.close_consumer.request_id))

    def _on_producer(self, session: Session, command: BaseCommand) -> None:
        asked = command.producer
        name = asked.producer_name or "named-by-broker"
        session.producers[asked.producer_id] = asked.topic, name
        last = self.topic(asked.topic).last_sequence_ids.get(name, -1) if self.deduplicates else -1
        session.write(commands.producer_success(asked.request_id, name, last_sequence_id=last))

    def _on_send(self, session: Session, frame: Frame) -> None:
        sent = frame.command.send
        topic_name, name = session.producers[sent.producer_id]
        topic = self.topic(topic_name)
        highest = max(sent.sequence_id, sent.highest_sequence_id)
        entry_id = len(topic.entries)
        if self.deduplicates and sent.sequence_id <= topic.last_sequence_ids.get(name, -1):
            place = (-1, -1)
        else:
            place = (LEDGER, entry_id)
            assert frame.payload is not None
            topic.entries.append(b"".join(take_message(frame.payload)))
            topic.last_sequence_ids[name] = highest
        receipt = commands.send_receipt(
            sent.producer_id, sent.sequence_id, *place, highest_sequence_id=sent.highest_sequence_id
        )
        if self.holds_receipts:
            self.held_receipts.append((session, receipt))
        else:
            session.write(receipt)
        self.deliver()

    def _on_subscribe(self, session: Session, command: BaseCommand) -> None:
        asked = command.subscribe
        start = 0
        if asked.HasField("start_message_id"):
            message_id = MessageId.from_data(asked.start_message_id)
            start = len(self.topic(asked.topic).entries)
            if message_id != LATEST:
                start = max(0, message_id.entry_id)
        session.subscribers[asked.consumer_id] = Subscriber(asked.topic, start)
        session.write(commands.success(asked.request_id))

    def deliver(self) -> None:
        """Send every subscriber what it has permits for."""
        for session in self.sessions:
            for consumer_id, subscriber in session.subscribers.items():
                entries = self.topic(subscriber.topic).entries
                while subscriber.permits > 0 and subscriber.next_entry < len(entries):
                    self.send_entry(session, consumer_id, subscriber.next_entry)
                    subscriber.next_entry += 1

    def send_entry(
        self,
        session: Session,
        consumer_id: int,
        entry_id: int,
        *,
        redelivery_count: int = 0,
        ack_set: tuple[int, ...] = (),
        epoch: int | None = None,
    ) -> None:
        subscriber = session.subscribers[consumer_id]
        entry = self.topic(subscriber.topic).entries[entry_id]
        subscriber.permits -= messages_in(read_metadata(entry))
        head = commands.message(
            consumer_id,
            LEDGER,
            entry_id,
            len(entry),
            redelivery_count=redelivery_count,
            ack_set=ack_set,
            consumer_epoch=epoch,
        )
        session.write(head + entry)

    def _on_ack(self, session: Session, command: BaseCommand) -> None:
        ack = command.ack
        for place in ack.message_id:
            self.acknowledged.append(
                (to_signed(place.entryId), list(place.ack_set), ack.ack_type == ack.Cumulative)
            )
        if ack.HasField("request_id"):
            session.write(commands.ack_response(ack.consumer_id, ack.request_id))

    def _on_last_message_id(self, session: Session, command: BaseCommand) -> None:
        asked = command.getLastMessageId
        subscriber = session.subscribers[asked.consumer_id]
        entries = self.topic(subscriber.topic).entries
        last = MessageId(-1, -1)
        if entries:
            metadata = read_metadata(entries[-1])
            index = metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1
            last = MessageId(LEDGER, len(entries) - 1, -1, index)
        session.write(commands.last_message_id(asked.request_id, last, (LEDGER, subscriber.next_entry - 1)))


def messages_in(metadata: MessageMetadata) -> int:
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 1
