"""Random lives of producers on a topic with deduplication: each message is stored once, in order, whatever happens.

Producers number their messages with gaps, send them alone, in batches as Java and as C++ number them, or in chunks; they
lose connections, start again and group anew what they are not sure of. Brokers die, topics are unloaded, bookies fail.
The model is the list of what each application wanted to send.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.managed_ledger.position import EARLIEST
from magnetar.naming import TopicName
from magnetar.protocol import commands
from magnetar.protocol.batch import BatchBuilder, iterate_batch
from magnetar.protocol.compression import compress, compression_type
from magnetar.protocol.message import build_message, split_message
from magnetar.protocol.pulsar_pb2 import BaseCommand, MessageMetadata
from tests.simulation.broker.broker_house import House, Line
from tests.simulation.broker.stories import Step, steps_of
from tests.simulation.broker.subscription_reference import Violation, require

WEIGHTS = {
    "send": 14.0,
    "cut": 2.0,
    "start_again": 2.0,
    "reconnect": 3.0,
    "unload": 0.7,
    "crash": 1.0,
    "bookie_fails": 0.5,
    "tick": 2.0,
    "wait": 4.0,
}
NAME = TopicName.parse("t")


@dataclass(frozen=True, slots=True)
class Group:
    """What is sent at once: a message, a batch, or the chunks of one message."""

    ids: tuple[int, ...]
    form: str
    chunks: int = 1

    @property
    def told(self) -> tuple[int, int]:
        """The ids its SEND tells."""
        return self.ids[0], self.ids[-1] if self.form == "java" else 0


class Sender:
    """One application, and the client it sends through."""

    def __init__(self, life: DeduplicationLife, name: str, mode: int) -> None:
        self.life = life
        self.name = name
        self.mode = mode
        self.wanted: list[int] = []
        """All ids it ever sent, in order."""
        self.sure = -1
        """The highest id it knows to be stored."""
        self.pending: deque[tuple[Group, int]] = deque()
        """What it has sent and not been answered, with how many receipts are due."""
        self.line: Line | None = None
        self.ready = False
        self.epoch = 0
        self.last_sequence_id = -1
        self.runs = 0

    def heard(self, line: Line, command: BaseCommand, payload: bytes | None) -> None:
        if line is not self.line:
            return
        try:
            self._heard(command)
        except Violation as violation:
            self.life.violations.append(violation)

    def _heard(self, command: BaseCommand) -> None:
        match command.type:
            case BaseCommand.PRODUCER_SUCCESS:
                self.ready = True
                self.last_sequence_id = command.producer_success.last_sequence_id
                told = f"{self.name} is told that {self.last_sequence_id} is stored"
                self.life.note(told)
                require(self.last_sequence_id >= self.sure, f"{told}, and had a receipt for {self.sure}")
                highest = self.wanted[-1] if self.wanted else -1
                require(self.last_sequence_id <= highest, f"{told}, and never sent that")
            case BaseCommand.SEND_RECEIPT:
                receipt = command.send_receipt
                require(bool(self.pending), f"{self.name} got a receipt nobody waits for")
                group, due = self.pending.popleft()
                ids = (receipt.sequence_id, receipt.highest_sequence_id)
                require(ids == group.told, f"{self.name} got a receipt for {ids}, {group.told} is next")
                if due > 1:
                    self.pending.appendleft((group, due - 1))
                else:
                    self.sure = max(self.sure, group.ids[-1])
                    self.life.note(f"    {self.name} has a receipt for {group.ids}")
            case BaseCommand.SEND_ERROR:
                self.life.note(f"    {self.name} is told: {command.send_error.message[:60]}")
                self.drop()
            case BaseCommand.CLOSE_PRODUCER | BaseCommand.ERROR:
                self.drop()

    def drop(self) -> None:
        """Give the connection up, as clients in C++ do for any error."""
        line, self.line, self.ready = self.line, None, False
        if line is not None:
            asyncio.get_running_loop().call_soon(line.cut)

    async def connect(self, *, start_again: bool) -> None:
        """Come back and send again what is not answered, grouped as before or, after a new start, anew."""
        self.epoch += 1
        line = self.line = self.life.house.line(self.heard)
        line.lost = self.drop
        line.command(
            "producer",
            topic=str(NAME),
            producer_id=1,
            request_id=next(self.life.house.request_ids),
            producer_name=self.name,
            epoch=self.epoch,
            producer_access_mode=self.mode,
        )
        for _ in range(400):
            if self.ready or self.line is not line:
                break
            await asyncio.sleep(0.01)
        if not self.ready:
            self.drop()
            return
        groups = [group for group, _ in self.pending]
        self.pending.clear()
        if start_again:
            self.runs += 1
            self.sure = max(self.sure, self.last_sequence_id)
            begin = self.sure - self.life.dice.choice((0, 0, 3, 20))  # By its own, perhaps older, checkpoint.
            groups = list(self.life.grouped([each for each in self.wanted if each > begin]))
        for group in groups:
            self.send(group)

    def send(self, group: Group) -> None:
        line = self.line
        if line is None:
            return
        self.life.note(
            f"{self.name} sends {group.ids} {group.form}" + (f" in {group.chunks}" * (group.chunks > 1))
        )
        self.pending.append((group, group.chunks))
        sequence_id, highest = group.told
        for message in self._messages(group):
            head = commands.send(
                1,
                sequence_id,
                len(message),
                num_messages=len(group.ids),
                highest_sequence_id=highest or None,
                is_chunk=group.chunks > 1,
            )
            line.say(head + message)

    def _messages(self, group: Group) -> Iterator[bytes]:
        metadata = MessageMetadata(producer_name=self.name, sequence_id=group.ids[0], publish_time=1)
        if group.form == "single":
            yield build_message(metadata, b"%d" % group.ids[0])
        elif group.form == "chunks":
            for number in range(group.chunks):
                metadata.uuid = f"{self.name}-{self.runs}-{group.ids[0]}"
                metadata.chunk_id, metadata.num_chunks_from_msg = number, group.chunks
                metadata.total_chunk_msg_size = group.chunks
                yield build_message(metadata, b"%d" % group.ids[0])
        else:
            builder = BatchBuilder()
            for each in group.ids:
                builder.add(b"%d" % each, each)
            kind = compression_type(self.life.dice.choice(("none", "zlib")))
            metadata.num_messages_in_batch = len(group.ids)
            metadata.compression = kind
            metadata.uncompressed_size = len(builder.payload())
            if group.form == "java":
                metadata.highest_sequence_id = group.ids[-1]
            yield build_message(metadata, compress(kind, builder.payload()))


class DeduplicationLife:
    """One life. Everything about it comes from its seed and its steps."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)
        self.dice = dice
        self.house = House(dice)
        entries, interval_s = dice.choice((1, 2, 5, 1000)), dice.choice((1, 5, 120))
        self.house.settings = self.house.settings.model_copy(
            update={
                "deduplication_snapshot_entries": entries,
                "ledger_max_entries": dice.choice((3, 50_000)),
                "dispatch_entries": dice.choice((2, 100)),
            }
        )
        self.house.defaults = replace(
            self.house.defaults,
            deduplication_enabled=True,
            deduplication_snapshot_interval_s=interval_s,
            retention_time_s=-1,
            retention_size_bytes=-1,
        )
        number, mode = dice.choice(((1, 0), (2, 0), (3, 0), (1, 1), (1, 3)))
        self.senders = [Sender(self, f"p{each}", mode) for each in range(number)]
        self.violations: list[Violation] = []
        self.lines = [
            f"{number} producers, access mode {mode}, a snapshot every {entries} entries or {interval_s} s"
        ]

    def note(self, line: str) -> None:
        self.lines.append(line)

    def draw(self) -> list[Step]:
        return [("reconnect", 1), *steps_of(self.dice, WEIGHTS, self.dice.choice((15, 30, 60)))]

    def live(self, steps: Sequence[Step]) -> None:
        self.house.run(self._live(steps))

    async def _live(self, steps: Sequence[Step]) -> None:
        await self.house.start()
        for operation, seed in steps:
            self.dice = random.Random(seed)
            await getattr(self, f"do_{operation}")()
            for _ in range(self.dice.choice((0, 0, 1, 3, 8))):
                await asyncio.sleep(0)
            if self.violations:
                raise self.violations[0]
        self.note("-- the end: everything must be stored --")
        await self.finish()

    def grouped(self, ids: Sequence[int]) -> Iterator[Group]:
        rest = deque(ids)
        while rest:
            form = self.dice.choice(("single", "single", "java", "cpp", "chunks"))
            size = 1 if form in ("single", "chunks") else min(len(rest), self.dice.randrange(1, 6))
            chunks = self.dice.choice((2, 3)) if form == "chunks" else 1
            yield Group(tuple(rest.popleft() for _ in range(size)), form, chunks)

    # Steps.

    async def do_send(self) -> None:
        sender = self.dice.choice(self.senders)
        if not sender.ready:
            return
        ids = []
        last = sender.wanted[-1] if sender.wanted else self.dice.choice((-1, 3))
        for _ in range(self.dice.choice((1, 2, 6))):
            last += self.dice.choice((1, 1, 1, 3))
            ids.append(last)
        sender.wanted.extend(ids)
        for group in self.grouped(ids):
            if sender.line is not None:
                sender.send(group)

    async def do_cut(self) -> None:
        sender = self.dice.choice(self.senders)
        if sender.line is not None:
            self.note(f"{sender.name} loses its connection")
            sender.drop()

    async def do_reconnect(self) -> None:
        for sender in self.senders:
            if sender.line is None:
                await sender.connect(start_again=self._forgot(sender))

    async def do_start_again(self) -> None:
        sender = self.dice.choice(self.senders)
        self.note(f"{sender.name} starts again")
        sender.drop()
        await asyncio.sleep(0)
        await sender.connect(start_again=True)

    def _forgot(self, sender: Sender) -> bool:
        """Whether the client no longer holds all that is not stored: then the application must begin anew."""
        held = {each for group, _ in sender.pending for each in group.ids}
        return any(each > sender.sure and each not in held for each in sender.wanted)

    async def do_unload(self) -> None:
        self.note("the topic is unloaded")
        await self.house.unload(NAME)

    async def do_crash(self) -> None:
        self.note("the broker dies")
        for sender in self.senders:
            sender.line, sender.ready = None, False
        await self.house.crash()

    async def do_bookie_fails(self) -> None:
        self.note("the bookie fails for a while")
        bookie = self.house.bookies["b0"]
        bookie.crash()
        await asyncio.sleep(self.dice.choice((0.01, 2.0)))
        bookie.restart()
        await asyncio.sleep(self.dice.choice((0.0, 3.0)))

    async def do_tick(self) -> None:
        self.house.broker.tick()

    async def do_wait(self) -> None:
        await asyncio.sleep(self.dice.choice((0.001, 0.01, 0.2, 2.0)))

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(300):
            if condition():
                return
            await asyncio.sleep(0.01)

    # The end.

    async def finish(self) -> None:
        for _ in range(60):
            await self.do_reconnect()
            await self.until(lambda: all(not each.pending or each.line is None for each in self.senders))
            if self.violations:
                raise self.violations[0]
            if all(each.ready and not each.pending and not self._forgot(each) for each in self.senders):
                break
            for sender in self.senders:
                if sender.ready and not sender.pending and self._forgot(sender):
                    sender.drop()
            await asyncio.sleep(0.5)
        else:
            raise Violation(f"never stored: {[(each.name, list(each.pending)[:2]) for each in self.senders]}")
        found = await self._read_back()
        for sender in self.senders:
            self._compare(sender, found.get(sender.name, []))

    async def _read_back(self) -> dict[str, list[Any]]:
        topic = await self.house.broker.topics.get(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        found: dict[str, list[Any]] = {}
        async with topic.temporary_cursor(EARLIEST) as cursor:
            while cursor.has_more():
                for entry in await cursor.read(100, 1 << 20):
                    message = split_message(entry.data)
                    metadata = message.metadata
                    mine = found.setdefault(metadata.producer_name, [])
                    if metadata.num_chunks_from_msg > 1:
                        mine.append(
                            (int(bytes(message.payload)), metadata.chunk_id, metadata.num_chunks_from_msg)
                        )
                    elif metadata.HasField("num_messages_in_batch"):
                        mine += [int(bytes(data)) for _, data in iterate_batch(metadata, message.payload)]
                    else:
                        mine.append(int(bytes(message.payload)))
        return found

    def _compare(self, sender: Sender, found: list[Any]) -> None:
        """Each id once and in order; a chunked one is there when its last chunk is, after all others of it."""
        stored: list[int] = []
        chunks: dict[int, set[int]] = {}
        for each in found:
            if isinstance(each, int):
                stored.append(each)
                continue
            number, chunk, count = each
            chunks.setdefault(number, set()).add(chunk)
            if chunk == count - 1:
                missing = set(range(count)) - chunks[number]
                require(not missing, f"{sender.name}: {number} is stored without its chunks {missing}")
                stored.append(number)
        lost = [each for each in sender.wanted if each not in stored]
        require(not lost, f"{sender.name}: {lost} is lost")
        require(len(stored) == len(set(stored)), f"{sender.name}: stored twice: {stored}")
        require(stored == sender.wanted, f"{sender.name}: out of order: {stored}")
