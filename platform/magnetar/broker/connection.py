"""One client's connection: bytes in, frames to handlers, frames out.

Reading stops while more is on its way to storage than the limits allow, or while the client does not take
what it is sent; everything written in one turn of the loop leaves in one write. Bytes that make no frame
close the connection, with a line in the log.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, cast

from magnetar.broker.consumer import Consumer
from magnetar.broker.creating import Creating
from magnetar.broker.errors import BrokerError, as_broker_error
from magnetar.broker.handlers.routes import ROUTES, Route
from magnetar.broker.producer import Producer
from magnetar.environment.logs import get_logger
from magnetar.protocol import commands, versions
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import FrameError
from magnetar.protocol.frames import FRAME_SLACK_BYTES, Frame, FrameDecoder
from magnetar.protocol.pulsar_pb2 import BaseCommand, FeatureFlags

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from magnetar.broker.broker import Broker
    from magnetar.broker.topic_lists import TopicListWatcher

log = get_logger("magnetar.broker")

OUR_CLIENT: Final = "Magnetar"
_BEAR_END_OF_TOPIC: Final = ("Pulsar-Java", OUR_CLIENT)
_LATE_SENDS_S: Final = 30.0
"""How long messages to a producer that the broker closed may still arrive."""


class _State(Enum):
    OPEN = auto()
    """CONNECT has not come yet."""
    CONNECTED = auto()
    CLOSED = auto()


class _Pause(Enum):
    """Why the connection is not read from."""

    PUBLISHES = auto()
    MEMORY = auto()
    WRITES = auto()
    RATES = auto()


class Connection(asyncio.Protocol):
    """The asyncio side of a client. It is the `Peer` of its producers and consumers."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.context = broker.context
        self.settings = broker.context.settings
        self.producers: dict[int, Producer | Creating] = {}
        self.consumers: dict[int, Consumer | Creating] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.role: str | None = None
        self.client_version = ""
        self.protocol_version = 0
        self.features = FeatureFlags()
        self.address = ""
        self._state = _State.OPEN
        self._decoder = FrameDecoder(self.settings.max_message_bytes + FRAME_SLACK_BYTES)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._flush_planned = False
        self._claims = False
        """Whether anything of what is queued is true only while we own what it speaks of."""
        self._transport_full = False
        self._pauses: set[_Pause] = set()
        self._throttled_by: set[object] = set()
        self._publishes = 0
        self._heard = True
        self._unsent_before = sys.maxsize
        self._alive_checks: list[asyncio.Future[bool]] = []
        self._keep_alive: asyncio.TimerHandle | None = None
        self._closed_producers: dict[int, float] = {}

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not instances of it.
        transport = self._transport
        transport.set_write_buffer_limits(high=self.settings.write_buffer_bytes)
        name = transport.get_extra_info("peername")
        self.address = f"/{name[0]}:{name[1]}" if isinstance(name, tuple) else "/local"
        self._keep_alive = asyncio.get_running_loop().call_later(
            self.settings.keep_alive_interval_s, self._keep_alive_due
        )
        self.broker.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        if self._alive_checks:
            checks, self._alive_checks = self._alive_checks, []
            for check in checks:
                if not check.done():
                    check.set_result(True)
        try:
            for frame in self._decoder.feed(data):
                if self._state is _State.CLOSED:
                    return
                self._handle(frame)
        except FrameError as error:
            self.close(f"malformed input: {error}")
        except Exception as error:
            log.exception("command.failed_unexpectedly", peer=self.address)
            self.close(f"unexpected {type(error).__name__} while handling a command")

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._state is not _State.CLOSED:
            self._state = _State.CLOSED
            log.info(
                "connection.closed",
                peer=self.address,
                reason=str(exc) if exc is not None else "by the client",
            )
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        for check in self._alive_checks:
            if not check.done():
                check.set_result(False)
        self._alive_checks.clear()
        self._leave_everything()
        self.context.budget.leave(self)
        self._out.clear()
        self.broker.connection_closed(self)

    def _leave_everything(self) -> None:
        producers, self.producers = self.producers, {}
        consumers, self.consumers = self.consumers, {}
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers.values():
            watcher.cancel()
        for producer in producers.values():
            if isinstance(producer, Producer):
                producer.topic.remove_producer(producer)
            else:
                producer.cancelled = True
        for consumer in consumers.values():
            if isinstance(consumer, Creating):
                consumer.cancelled = True
            elif consumer.subscription is not None:
                consumer.subscription.leave(consumer)

    def pause_writing(self) -> None:
        self._transport_full = True
        self._pause(_Pause.WRITES)
        self._tell_writable()

    def resume_writing(self) -> None:
        self._transport_full = False
        self._resume(_Pause.WRITES)
        self._tell_writable()

    # Commands in.

    def _handle(self, frame: Frame) -> None:
        if (frame.type == BaseCommand.CONNECT) is not (self._state is _State.OPEN):
            self.close("CONNECT must be the first command, and come once")
            return
        route = ROUTES.get(frame.type)
        if route is None:
            self.close(f"command {BaseCommand.Type.Name(frame.command.type)} is not for brokers")
            return
        body = getattr(frame.command, route.field)
        if route.hot is not None:
            route.hot(self, body, frame.payload)
        else:
            self.context.tasks.start(self._answer(route, body), route.field)

    async def _answer(self, route: Route, body: Message) -> None:
        """Ask for permission, do it, or say why not."""
        try:
            if not self.context.lease.sure:
                await self.broker.until_sure()
            await self.context.authorizer.authorize(self.role, route.action, route.resource(self, body))
            assert route.handler is not None
            await route.handler(self, body)
        except Exception as error:
            refusal = as_broker_error(error)
            if type(refusal) is BrokerError and not isinstance(error, BrokerError):
                log.exception("command.failed_unexpectedly", peer=self.address, command=route.field)
            self._refuse(route, body, refusal)

    def _refuse(self, route: Route, body: Message, error: BrokerError) -> None:
        if self._state is _State.CLOSED:
            return
        log.info("command.refused", peer=self.address, command=route.field, reason=str(error))
        self.send(route.refusal(body, error))

    def connect(
        self, client_version: str, protocol_version: int, features: FeatureFlags, role: str | None
    ) -> None:
        """The handshake succeeded."""
        self._state = _State.CONNECTED
        self.client_version = client_version
        self.protocol_version = min(max(protocol_version, 0), versions.CURRENT)
        self.features = features
        self.role = role

    @property
    def connected(self) -> bool:
        """Whether the handshake is done and the client still there."""
        return self._state is _State.CONNECTED

    @property
    def open(self) -> bool:
        """Whether the client is still there to be answered."""
        return self._state is not _State.CLOSED

    # Frames out.

    def send(self, frame: bytes) -> None:
        if self._state is _State.CLOSED:
            return
        self._out.append(frame)
        self._out_bytes += len(frame)
        self._plan_flush()

    def send_claim(self, frame: bytes) -> None:
        self._claims = True
        self.send(frame)

    def send_parts(self, parts: Sequence[Buffer]) -> None:
        if self._state is _State.CLOSED:
            return
        self._claims = True
        self._out.extend(parts)
        self._out_bytes += sum(map(len, parts))
        self._plan_flush()
        if self._out_bytes > self.settings.write_buffer_bytes:
            self._tell_writable()

    def _plan_flush(self) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        transport = self._transport
        if transport is None or transport.is_closing() or not self._out:
            return
        if self._claims:
            self._claims = False
            if not self.context.lease.sure:
                # Between queueing and now we were stopped for long: others may own by now what it speaks of.
                self.abort("the lease ran out before what was queued could be sent")
                return
        out, self._out = self._out, []
        held_back = self._out_bytes > self.settings.write_buffer_bytes
        self._out_bytes = 0
        transport.writelines(out)
        if held_back:
            self._tell_writable()

    @property
    def writable(self) -> bool:
        return not self._transport_full and self._out_bytes <= self.settings.write_buffer_bytes

    def _tell_writable(self) -> None:
        writable = self.writable
        for consumer in list(self.consumers.values()):
            if isinstance(consumer, Consumer) and consumer.writable is not writable:
                consumer.connection_writable(writable)

    # Back-pressure on publishing.

    def publish_started(self, size: int) -> None:
        self._publishes += 1
        if self._publishes > self.settings.max_pending_publishes_per_connection:
            self._pause(_Pause.PUBLISHES)
        if not self.context.budget.take(size, self):
            self._pause(_Pause.MEMORY)

    def publish_finished(self, size: int) -> None:
        self._publishes -= 1
        if self._publishes <= self.settings.max_pending_publishes_per_connection // 2:
            self._resume(_Pause.PUBLISHES)
        self.context.budget.give_back(size)

    def resume_publishing(self) -> None:
        """The broker as a whole has room for messages again."""
        self._resume(_Pause.MEMORY)

    def throttle(self, by: object) -> None:
        """Messages come faster than a rate allows."""
        self._throttled_by.add(by)
        self._pause(_Pause.RATES)

    def unthrottle(self, by: object) -> None:
        self._throttled_by.discard(by)
        if not self._throttled_by:
            self._resume(_Pause.RATES)

    @property
    def reading(self) -> bool:
        """Whether the client's bytes are taken just now."""
        return not self._pauses

    def _pause(self, reason: _Pause) -> None:
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses.add(reason)

    def _resume(self, reason: _Pause) -> None:
        if reason not in self._pauses:
            return
        self._pauses.remove(reason)
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # Being alive.

    def _keep_alive_due(self) -> None:
        if self._state is _State.CLOSED:
            return
        if self._state is _State.OPEN:
            self.close("no CONNECT within the keep-alive interval")
            return
        if not self._heard and not self._pauses:
            self.close("it answered no ping within the keep-alive interval")
            return
        unsent = self._unsent_bytes if _Pause.WRITES in self._pauses else 0
        if unsent and unsent >= self._unsent_before:
            self.abort("it took nothing of what it was sent within the keep-alive interval")
            return
        self._unsent_before = unsent if unsent else sys.maxsize
        self._heard = False
        if self.protocol_version >= versions.KEEP_ALIVE:
            self.send(commands.ping())
        else:
            self._heard = True  # Too old to be asked.
        now = self.context.clock.monotonic()
        self._closed_producers = {
            producer_id: closed_at
            for producer_id, closed_at in self._closed_producers.items()
            if now - closed_at < _LATE_SENDS_S
        }
        self._keep_alive = asyncio.get_running_loop().call_later(
            self.settings.keep_alive_interval_s, self._keep_alive_due
        )

    @property
    def _unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def is_alive(self) -> bool:
        if self._state is not _State.CONNECTED or self._transport is None or self._transport.is_closing():
            return False
        if _Pause.WRITES in self._pauses:  # A ping would stand behind all that is unsent.
            unsent = self._unsent_bytes
            await asyncio.sleep(self.settings.liveness_check_timeout_s)
            return self.connected and self._unsent_bytes < unsent
        if self._pauses or self.protocol_version < versions.KEEP_ALIVE:
            return True  # We are not listening, or it cannot be asked: in doubt for the holder.
        check: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._alive_checks.append(check)
        self.send(commands.ping())
        try:
            async with asyncio.timeout(self.settings.liveness_check_timeout_s):
                return await check
        except TimeoutError:
            return False

    def close(self, reason: str) -> None:
        """Close from our side, after what is queued has been sent. Producers and consumers leave at once."""
        if self._state is _State.CLOSED:
            return
        log.warning("connection.closed_by_broker", peer=self.address, reason=reason)
        self._flush()
        self._state = _State.CLOSED
        self._leave_everything()
        if self._transport is not None:
            self._transport.close()

    def abort(self, reason: str) -> None:
        if self._state is not _State.CLOSED:
            log.warning("connection.closed_by_broker", peer=self.address, reason=reason)
            self._state = _State.CLOSED
            self._leave_everything()
        if self._transport is not None:
            self._transport.abort()

    # What the broker closes.

    def forget_producer(self, producer: Producer) -> None:
        if self.producers.get(producer.identifier) is producer:
            del self.producers[producer.identifier]
            self._closed_producers[producer.identifier] = self.context.clock.monotonic()

    def forget_consumer(self, consumer: Consumer) -> None:
        if self.consumers.get(consumer.identifier) is consumer:
            del self.consumers[consumer.identifier]

    def was_closed_lately(self, producer_id: int) -> bool:
        """Whether messages to this producer are only late, not wrong."""
        closed_at = self._closed_producers.get(producer_id)
        return closed_at is not None and self.context.clock.monotonic() - closed_at < _LATE_SENDS_S

    # What its client bears.

    @property
    def bears_end_of_topic(self) -> bool:
        return self.client_version.startswith(_BEAR_END_OF_TOPIC)

    @property
    def wants_entry_metadata(self) -> bool:
        return (
            self.features.supports_broker_entry_metadata
            and self.protocol_version >= versions.ENTRY_METADATA_TO_CLIENTS
            and (self.settings.expose_entry_metadata or self.client_version.startswith(OUR_CLIENT))
        )
