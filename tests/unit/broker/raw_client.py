"""A client made of frames: says exactly what a test wants said, and hears exactly what is answered."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from magnetar.protocol import commands
from magnetar.protocol.batch import BatchBuilder
from magnetar.protocol.frames import Frame, FrameDecoder, encode_command
from magnetar.protocol.message import build_message
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandSubscribe,
    FeatureFlags,
    MessageIdData,
    MessageMetadata,
)

DEADLINE_S = 5.0

_FIELDS = {field.number: field.name for field in BaseCommand.DESCRIPTOR.fields if field.name != "type"}


class RawClient:
    """One connection, spoken to by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        self._arrived = asyncio.Event()
        self.closed = asyncio.Event()
        self.answer_pings = True
        self._requests = 0
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    @classmethod
    async def open(cls, port: int) -> RawClient:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def handshake(
        self, version: str = "Pulsar-CPP-v4.2.0", protocol_version: int = 21, entry_metadata: bool = True
    ) -> Any:
        self.write(
            encode_command(
                _command(
                    "connect",
                    client_version=version,
                    protocol_version=protocol_version,
                    feature_flags=FeatureFlags(supports_broker_entry_metadata=entry_metadata),
                )
            )
        )
        return await self.expect("connected")

    # Saying.

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def say(self, field: str, **fields: Any) -> None:
        """Send a command."""
        self.write(encode_command(_command(field, **fields)))

    async def ask(self, field: str, answer: str | None = None, **fields: Any) -> Any:
        """Send a command with a request id, and return the body of its answer."""
        self._requests += 1
        request_id = self._requests
        self.say(field, request_id=request_id, **fields)
        kinds = ("success", "error") if answer is None else (answer, "error")
        return await self.expect(*kinds, where=lambda body: body.request_id == request_id)

    async def produce(self, topic: str, producer_id: int = 1, **fields: Any) -> Any:
        return await self.ask("producer", "producer_success", topic=topic, producer_id=producer_id, **fields)

    async def subscribe(
        self,
        topic: str,
        subscription: str = "sub",
        consumer_id: int = 1,
        *,
        kind: int = CommandSubscribe.Exclusive,
        earliest: bool = True,
        permits: int = 0,
        **fields: Any,
    ) -> Any:
        answer = await self.ask(
            "subscribe",
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=consumer_id,
            initialPosition=CommandSubscribe.Earliest if earliest else CommandSubscribe.Latest,
            **fields,
        )
        if permits:
            self.flow(permits, consumer_id)
        return answer

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.say("flow", consumer_id=consumer_id, messagePermits=permits)

    def send(
        self,
        payload: bytes = b"hello",
        sequence_id: int = 0,
        producer_id: int = 1,
        *,
        producer_name: str = "p",
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Publish a single message."""
        described = MessageMetadata(
            producer_name=producer_name, sequence_id=sequence_id, publish_time=1, **(metadata or {})
        )
        self.send_raw(build_message(described, payload), sequence_id, producer_id, **fields)

    def send_batch(
        self,
        payloads: Sequence[bytes],
        first_sequence_id: int = 0,
        producer_id: int = 1,
        *,
        tell_highest: bool = True,
        producer_name: str = "p",
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """Publish a batch whose members are numbered one after another."""
        message, highest = batch(
            payloads,
            first_sequence_id,
            tell_highest=tell_highest,
            producer_name=producer_name,
            metadata=metadata,
        )
        told = {"highest_sequence_id": highest} if tell_highest else {}
        self.send_raw(message, first_sequence_id, producer_id, num_messages=len(payloads), **told)

    def send_raw(self, message: bytes, sequence_id: int, producer_id: int = 1, **fields: Any) -> None:
        command = _command("send", producer_id=producer_id, sequence_id=sequence_id, **fields)
        body = command.SerializeToString()
        size = len(body)
        self.write((size + 4 + len(message)).to_bytes(4, "big") + size.to_bytes(4, "big") + body + message)

    def ack(
        self,
        *positions: tuple[int, int],
        consumer_id: int = 1,
        cumulative: bool = False,
        ack_set: Sequence[int] = (),
        request_id: int | None = None,
    ) -> None:
        ids = [MessageIdData(ledgerId=ledger, entryId=entry, ack_set=ack_set) for ledger, entry in positions]
        fields = {} if request_id is None else {"request_id": request_id}
        self.say("ack", consumer_id=consumer_id, ack_type=int(cumulative), message_id=ids, **fields)

    # Hearing.

    async def _listen(self) -> None:
        try:
            while data := await self._reader.read(1 << 16):
                for frame in self._decoder.feed(data):
                    if frame.command.type == BaseCommand.PING and self.answer_pings:
                        self.write(commands.pong())
                    else:
                        self._frames.append(frame)
                self._arrived.set()
        except ConnectionError:
            pass  # The broker closed on us: what `closed` says.
        finally:
            self.closed.set()
            self._arrived.set()

    async def expect(self, *fields: str, where: Callable[[Any], bool] = lambda _: True) -> Any:
        """The body of the next command of one of these kinds; others stay for later."""
        return (await self.expect_frame(*fields, where=where))[0]

    async def expect_frame(
        self, *fields: str, where: Callable[[Any], bool] = lambda _: True
    ) -> tuple[Any, bytes]:
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for index, frame in enumerate(self._frames):
                    field = _FIELDS[frame.command.type]
                    body = getattr(frame.command, field)
                    if field in fields and where(body):
                        del self._frames[index]
                        return body, b"" if frame.payload is None else bytes(frame.payload)
                if self.closed.is_set():
                    raise AssertionError(f"connection closed while waiting for {fields}")
                self._arrived.clear()
                await self._arrived.wait()

    async def messages(self, count: int) -> list[tuple[Any, bytes]]:
        return [await self.expect_frame("message") for _ in range(count)]

    async def hears_nothing(self, *fields: str) -> None:
        """Nothing of these kinds has come, nor comes while a ping goes back and forth twice."""
        for _ in range(2):
            self.say("ping")
            await self.expect("pong")
        heard = [_FIELDS[frame.command.type] for frame in self._frames]
        assert not set(heard) & set(fields), heard

    async def is_closed(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            await self.closed.wait()
        return True

    def stop_reading(self) -> None:
        """Be there, and take nothing more."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # A transport of both directions.
        self._listening.cancel()

    def abort(self) -> None:
        """Be gone without a word."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        self._listening.cancel()
        await asyncio.wait((self._listening,))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something nobody announces."""
    async with asyncio.timeout(DEADLINE_S):
        for _ in itertools.count():
            if condition():
                return
            await asyncio.sleep(0.002)


def batch(
    payloads: Sequence[bytes],
    first_sequence_id: int,
    *,
    tell_highest: bool = True,
    producer_name: str = "p",
    metadata: dict[str, Any] | None = None,
) -> tuple[bytes, int]:
    """The bytes of a batch, and the sequence id of its last member."""
    builder = BatchBuilder()
    for offset, payload in enumerate(payloads):
        builder.add(payload, first_sequence_id + offset)
    described = MessageMetadata(
        producer_name=producer_name,
        sequence_id=first_sequence_id,
        publish_time=1,
        num_messages_in_batch=len(payloads),
        uncompressed_size=len(builder.payload()),
        **(metadata or {}),
    )
    highest = first_sequence_id + len(payloads) - 1
    if tell_highest:
        described.highest_sequence_id = highest
    return build_message(described, builder.payload()), highest


def _command(field: str, **fields: Any) -> BaseCommand:
    number = next(number for number, name in _FIELDS.items() if name == field)
    command = BaseCommand(type=number)  # type: ignore[arg-type]
    body = getattr(command, field)
    body.CopyFrom(type(body)(**fields))
    return command
