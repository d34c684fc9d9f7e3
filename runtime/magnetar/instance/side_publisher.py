"""`context.publish`: to any topic, with the input acknowledged only after it is stored."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Protocol, cast

from magnetar.client.client import Client, Compression
from magnetar.client.errors import ClientError
from magnetar.environment.clock import Clock
from magnetar.environment.logs import get_logger
from magnetar.functions.process.members import key_of, split_batch
from magnetar.functions.process.routing import partition_of
from magnetar.functions.process.wire import split_headed
from magnetar.instance.delivery import Position
from magnetar.instance.feed import Fed, Feed
from magnetar.instance.input_session import InputSession
from magnetar.instance.keeper import ProcessKeeper
from magnetar.instance.output_topic import UNPARTITIONED, PlainOutput, partition_count
from magnetar.instance.statistics import Statistics

PENDING_BYTES_MAX = 32 * 1024 * 1024
"""What is on its way before the user process is made to wait."""

log = get_logger("magnetar.instance.publish")


class Publishing(Protocol):
    """The instance, as far as it publishes."""

    statistics: Statistics
    clock: Clock
    feed: Feed

    @property
    def client(self) -> Client: ...

    @property
    def keeper(self) -> ProcessKeeper: ...

    def answer(self, call: int, **fields: Any) -> None: ...

    def session_failed(self, error: Exception) -> None: ...


class SidePublisher:
    """Opens a topic when it is first published to; publishes in the order of the calls, topic by topic."""

    def __init__(self, instance: Publishing) -> None:
        self._instance = instance
        self._topics: dict[tuple[str, str], asyncio.Task[tuple[PlainOutput, int]]] = {}
        self._pending_bytes = 0

    def publish(self, body: memoryview) -> None:
        """A PUBLISH frame came."""
        head, member = split_headed(body)
        slot = (head["topic"], head["compression"])
        running = self._instance.feed.running(head["serial"])
        if running is not None:
            fed, position = running
            _session(fed).side_publish_began(position)
        opening = self._topics.get(slot)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(*slot), name=f"open {head['topic']}")
            self._topics[slot] = opening
        self._pending_bytes += len(member)
        if self._pending_bytes > PENDING_BYTES_MAX and self._instance.keeper.process is not None:
            self._instance.keeper.process.pause()
        stored = partial(self._stored, head, running, len(member))
        if opening.done():
            self._send(member, stored, slot, opening)
        else:
            opening.add_done_callback(partial(self._send, member, stored, slot))

    async def close(self) -> None:
        for opening in self._topics.values():
            opening.cancel()
        for result in await asyncio.gather(*self._topics.values(), return_exceptions=True):
            if isinstance(result, tuple):
                await result[0].close()

    async def _open(self, topic: str, compression: str) -> tuple[PlainOutput, int]:
        client = self._instance.client
        partitions = await partition_count(client, topic)
        output = PlainOutput(
            client,
            topic,
            partitions,
            compression=cast("Compression", compression),
            failed=self._instance.session_failed,
        )
        await output.open()
        return output, partitions

    def _send(
        self,
        member: bytes,
        stored: Any,
        slot: tuple[str, str],
        opening: asyncio.Task[tuple[PlainOutput, int]],
    ) -> None:
        if opening.cancelled():
            return
        error = opening.exception()
        if error is not None:
            self._topics.pop(slot, None)  # The next call tries again.
            failure = error if isinstance(error, ClientError) else ClientError(str(error))
            self._instance.session_failed(failure)
            return
        output, partitions = opening.result()
        route = UNPARTITIONED
        if partitions:
            key = key_of(split_batch(member, 1)[1][0])
            route = output.next_route() if key is None else partition_of(key, partitions)
        output.publish(route, member, 1, stored)

    def _stored(self, head: dict[str, Any], running: tuple[Fed, Position] | None, size: int) -> None:
        self._pending_bytes -= size
        if self._pending_bytes <= PENDING_BYTES_MAX // 2 and self._instance.keeper.process is not None:
            self._instance.keeper.process.resume()
        if running is not None:
            fed, position = running
            _session(fed).side_publish_stored(position)
        if head["answer"]:
            self._instance.answer(head["call"])


def _session(fed: Fed) -> InputSession:
    assert isinstance(fed, InputSession)
    return fed
