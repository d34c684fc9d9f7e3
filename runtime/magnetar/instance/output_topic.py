"""Publishing encoded batches: to partitions as they come, or each under its sequence ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from magnetar.client.client import Client, Compression
from magnetar.client.errors import BrokerRefused
from magnetar.client.producer import Producer
from magnetar.environment.crash import crash_point
from magnetar.environment.logs import get_logger
from magnetar.functions.process.members import SEQUENCE_SHIFT
from magnetar.instance.delivery import Output
from magnetar.naming import TopicName
from magnetar.protocol.ids import MessageId
from magnetar.protocol.pulsar_pb2 import ServerError

ENTRY_BYTES_MAX = 1024 * 1024
ENTRY_MESSAGES_MAX = 10_000
NAME_WAIT_S = 0.2
UNPARTITIONED = -1

Done = Callable[[], None]
Failed = Callable[[Exception], None]

log = get_logger("magnetar.instance.output")


async def partition_count(client: Client, topic: str) -> int:
    """How many partitions a topic has; 0: it is not partitioned."""
    partitions = await client.partitions(topic)
    return 0 if partitions == [str(TopicName.parse(topic))] else len(partitions)


def topic_of(topic: str, route: int) -> str:
    """The topic, or its partition."""
    name = TopicName.parse(topic)
    return str(name if route == UNPARTITIONED else name.partition_name(route))


class PlainOutput:
    """For all guarantees but effectively once: what is published in one turn of the loop shares entries."""

    def __init__(
        self, client: Client, topic: str, partitions: int, *, compression: Compression, failed: Failed
    ) -> None:
        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._compression: Compression = compression
        self._failed = failed
        self._producers: list[Producer] = []
        self._gathered: dict[int, list[tuple[bytes, int, Done]]] = {}
        self._turn = 0

    async def open(self) -> None:
        """Raises ClientError."""
        for route in range(self._partitions) if self._partitions else (UNPARTITIONED,):
            producer = await self._client.create_producer(
                topic_of(self._topic, route), compression=self._compression, send_timeout_s=0.0
            )
            self._producers.append(producer)

    def next_route(self) -> int:
        """A partition for what has no key; each has its turn."""
        if not self._partitions:
            return UNPARTITIONED
        self._turn = (self._turn + 1) % self._partitions
        return self._turn

    def publish(self, route: int, payload: bytes, count: int, done: Done) -> None:
        """Publish a batch, perhaps joined with others; `done` is called at its receipt."""
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._flush)
        self._gathered.setdefault(route, []).append((payload, count, done))

    async def close(self) -> None:
        await _close_all(self._producers)

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for route, batches in gathered.items():
            chosen: list[tuple[bytes, int, Done]] = []
            size = messages = 0
            for batch in batches:
                if chosen and (
                    size + len(batch[0]) > ENTRY_BYTES_MAX or messages + batch[1] > ENTRY_MESSAGES_MAX
                ):
                    self._send(route, chosen, messages)
                    chosen, size, messages = [], 0, 0
                chosen.append(batch)
                size += len(batch[0])
                messages += batch[1]
            self._send(route, chosen, messages)

    def _send(self, route: int, batches: Sequence[tuple[bytes, int, Done]], messages: int) -> None:
        payload = batches[0][0] if len(batches) == 1 else b"".join(payload for payload, _, _ in batches)
        producer = self._producers[max(route, 0)]
        crash_point("instance.before_publish")
        try:
            future = producer.send_encoded_batch_nowait(payload, messages)
        except Exception as error:  # Closed, too large: whatever it is, nothing is stored.
            self._failed(error)
            return
        future.add_done_callback(partial(_stored, [done for _, _, done in batches], self._failed))


class SequencedOutput:
    """For effectively once: one producer a partition, named after the function and its input; one input."""

    def __init__(
        self,
        client: Client,
        topic: str,
        partitions: int,
        name: str,
        *,
        compression: Compression,
        failed: Failed,
    ) -> None:
        self._client = client
        self._topic = topic
        self._partitions = partitions
        self._name = name
        self._compression: Compression = compression
        self._failed = failed
        self._producers: dict[int, Producer] = {}

    async def open(self) -> dict[int, int]:
        """Take the producers, once whoever had their names has gone.

        Returns the highest index of which a result is stored, by partition; -1: none is.

        Raises:
            ClientError: other than that the name is taken, for which it waits.
        """
        for route in range(self._partitions) if self._partitions else (UNPARTITIONED,):
            self._producers[route] = await take_producer(
                self._client, topic_of(self._topic, route), self._name, self._compression
            )
        return {route: index_of(producer.last_sequence_id) for route, producer in self._producers.items()}

    def publish(self, output: Output[bytes], first_index: int, done: Done) -> None:
        """Publish one batch as one entry; `done` is called at its receipt."""
        lowest = first_index + output.ordinals[0]
        highest = first_index + output.ordinals[-1]
        crash_point("instance.before_publish")
        try:
            future = self._producers[output.route].send_encoded_batch_nowait(
                output.payload,
                len(output.ordinals),
                sequence_id=lowest << SEQUENCE_SHIFT,
                highest_sequence_id=highest << SEQUENCE_SHIFT,
            )
        except Exception as error:  # Closed, too large: whatever it is, nothing is stored.
            self._failed(error)
            return
        future.add_done_callback(partial(_stored, [done], self._failed))

    async def close(self) -> None:
        await _close_all(list(self._producers.values()))


async def take_producer(client: Client, topic: str, name: str, compression: Compression = "none") -> Producer:
    """A producer of that name; waits while another one has it. Raises ClientError."""
    waited = False
    while True:
        try:
            return await client.create_producer(
                topic, producer_name=name, compression=compression, send_timeout_s=0.0
            )
        except BrokerRefused as refusal:
            if refusal.code != ServerError.ProducerBusy:
                raise
            if not waited:
                log.info("producer.awaited", topic=topic, producer=name)
            waited = True
            await asyncio.sleep(NAME_WAIT_S)


def index_of(sequence_id: int) -> int:
    """The input's index that a result's sequence id stands for."""
    return -1 if sequence_id < 0 else sequence_id >> SEQUENCE_SHIFT


def _stored(dones: list[Done], failed: Failed, future: asyncio.Future[MessageId]) -> None:
    if future.cancelled():
        return
    error = future.exception()
    if error is not None:
        failed(error if isinstance(error, Exception) else RuntimeError(str(error)))
        return
    crash_point("instance.after_publish")
    for done in dones:
        done()


async def _close_all(producers: Sequence[Producer]) -> None:
    await asyncio.gather(*(producer.close() for producer in producers), return_exceptions=True)
