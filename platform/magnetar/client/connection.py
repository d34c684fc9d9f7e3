"""One connection to a broker: handshake, keep-alive, requests, and whom each frame is for.

Runs wholly in the loop's callbacks; nothing here is awaited but answers to requests. Whatever was
written is never written into again, for the loop may keep it until it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, cast

from google.protobuf.message import Message as Command

from magnetar.client.errors import (
    BrokerRefused,
    ClientError,
    ConnectFailed,
    ConnectionLost,
    OperationTimedOut,
)
from magnetar.client.settings import CLIENT_VERSION, ClientSettings
from magnetar.environment.logs import get_logger
from magnetar.protocol import commands
from magnetar.protocol.buffers import Buffer
from magnetar.protocol.errors import FrameError
from magnetar.protocol.frames import FRAME_SLACK_BYTES, MAX_MESSAGE_BYTES, Frame, FrameDecoder
from magnetar.protocol.pulsar_pb2 import (
    BaseCommand,
    CommandActiveConsumerChange,
    CommandMessage,
    CommandSendError,
    CommandSendReceipt,
)

log = get_logger("magnetar.client")

Answer = TypeVar("Answer", bound=Command)


class ProducerEnd(Protocol):
    """What a connection needs of a producer."""

    def on_receipt(self, receipt: CommandSendReceipt) -> None: ...
    def on_send_error(self, error: CommandSendError) -> None: ...
    def on_detached(self, connection: Connection, url: str | None) -> None: ...


class ConsumerEnd(Protocol):
    """What a connection needs of a consumer."""

    def on_message(self, command: CommandMessage, payload: memoryview) -> None: ...
    def on_end_of_topic(self) -> None: ...
    def on_active_change(self, change: CommandActiveConsumerChange) -> None: ...
    def on_detached(self, connection: Connection, url: str | None) -> None: ...


class WatcherEnd(Protocol):
    """What a connection needs of somebody who watches topics."""

    def on_change(self) -> None: ...
    def on_detached(self) -> None: ...


class _Request:
    """A question whose answer is awaited."""

    __slots__ = ("deadline", "future")

    def __init__(self, future: asyncio.Future[Command], deadline: asyncio.Timeout) -> None:
        self.future = future
        self.deadline = deadline


class Connection(asyncio.Protocol):
    """A connection, to be made by `pool.ConnectionPool`."""

    def __init__(self, address: str, settings: ClientSettings, proxy_to: str | None = None) -> None:
        self.address = address
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self.producers: dict[int, ProducerEnd] = {}
        self.consumers: dict[int, ConsumerEnd] = {}
        self.watchers: dict[int, WatcherEnd] = {}
        self._settings = settings
        self._proxy_to = proxy_to
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._requests: dict[int, _Request] = {}
        self._unsent: list[Buffer] = []
        self._heard = False
        self._keep_alive: asyncio.TimerHandle | None = None
        self._lost: asyncio.Future[None] = self._loop.create_future()
        self._reason = "closed by the broker"

    @property
    def usable(self) -> bool:
        """Whether the handshake is done and the connection still open."""
        return self._transport is not None and self._ready.done()

    async def handshake(self) -> None:
        """Wait until the broker has said CONNECTED.

        Raises:
            ConnectFailed: it said something else, or nothing.
            BrokerRefused: it does not want us.
        """
        try:
            await self._ready
        except ConnectionLost as error:
            raise ConnectFailed(self.address, str(error)) from None

    async def request(self, request_id: int, frame: bytes, answer: type[Answer], timeout_s: float) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            BrokerRefused: the broker answered with an error.
            ConnectionLost: the connection ended first.
            OperationTimedOut: no answer in time.
        """
        if self._transport is None:
            raise ConnectionLost(f"connection to {self.address} is closed")
        future: asyncio.Future[Command] = self._loop.create_future()
        try:
            async with asyncio.timeout(timeout_s) as deadline:
                self._requests[request_id] = _Request(future, deadline)
                self.write(frame)
                response = await future
        except TimeoutError:
            raise OperationTimedOut(f"{self.address} has not answered within {timeout_s:g} s") from None
        finally:
            self._requests.pop(request_id, None)
        if not isinstance(response, answer):
            raise ClientError(
                f"{self.address} answered {type(response).__name__} instead of {answer.__name__}"
            )
        return response

    def write(self, frame: Buffer) -> None:
        """Send a frame; dropped if the connection is gone, which its ends are told anyway.

        Everything written in one turn of the loop leaves together: a system call costs more than all
        that a client does for a message.
        """
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)

    def write_parts(self, parts: Sequence[Buffer]) -> None:
        """Send a frame given in parts, joined only where the loop does so."""
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent += parts

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and unsent:
            self._transport.writelines(unsent)

    def abort(self, reason: str) -> None:
        """End the connection at once; its ends will reconnect."""
        self._reason = reason
        if self._transport is not None:
            log.warning("connection.aborted", broker=self.address, reason=reason)
            self._transport.abort()

    async def close(self) -> None:
        """End the connection after what was written is sent."""
        if self._transport is not None:
            self._reason = "closed"
            self._flush()
            self._transport.close()
            await self._lost

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Say hello."""
        self._transport = cast(asyncio.Transport, transport)
        authentication = self._settings.authentication
        self.write(
            commands.connect(
                CLIENT_VERSION,
                auth_method_name=authentication.method_name if authentication else None,
                auth_data=authentication.data() if authentication else None,
                proxy_to_broker_url=self._proxy_to,
            )
        )

    def data_received(self, data: bytes) -> None:
        """Cut the bytes into frames and hand each to whom it concerns."""
        self._heard = True
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self.abort(str(error))
            return
        for frame in frames:
            number = frame.type
            if number == BaseCommand.MESSAGE:
                message = frame.command.message
                consumer = self.consumers.get(message.consumer_id)
                if consumer is not None and frame.payload is not None:
                    consumer.on_message(message, frame.payload)
            elif number == BaseCommand.SEND_RECEIPT:
                receipt = frame.command.send_receipt
                producer = self.producers.get(receipt.producer_id)
                if producer is not None:
                    producer.on_receipt(receipt)
            else:
                _HANDLERS.get(number, Connection._on_unexpected)(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who relied on the connection."""
        self._transport = None
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        error = ConnectionLost(f"connection to {self.address} ended: {exc or self._reason}")
        if not self._ready.done():
            self._ready.set_exception(error)
        for request in self._requests.values():
            if not request.future.done():
                request.future.set_exception(error)
        ends: list[ProducerEnd | ConsumerEnd] = [*self.producers.values(), *self.consumers.values()]
        self.producers.clear()
        self.consumers.clear()
        for end in ends:
            end.on_detached(self, None)
        watchers, self.watchers = list(self.watchers.values()), {}
        for watcher in watchers:
            watcher.on_detached()
        if not self._lost.done():
            self._lost.set_result(None)

    # One method for each command that is not for every entry.

    def _on_connected(self, frame: Frame) -> None:
        connected = frame.command.connected
        if self._ready.done():
            self.abort("the broker said CONNECTED twice")
            return
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size
            self._decoder.max_frame_bytes = connected.max_message_size + FRAME_SLACK_BYTES
        self._ready.set_result(None)
        self._keep_alive = self._loop.call_later(self._settings.keep_alive_s, self._check_life)

    def _check_life(self) -> None:
        if not self._heard:
            self.abort(f"nothing heard for {self._settings.keep_alive_s:g} s")
            return
        self._heard = False
        self.write(commands.ping())
        self._keep_alive = self._loop.call_later(self._settings.keep_alive_s, self._check_life)

    def _on_ping(self, frame: Frame) -> None:
        self.write(commands.pong())

    def _on_pong(self, frame: Frame) -> None:
        """A sign of life, noted already like any other."""

    def _on_auth_challenge(self, frame: Frame) -> None:
        authentication = self._settings.authentication
        if authentication is None:
            self.abort("the broker asks for credentials and there are none")
            return
        self.write(commands.auth_response(CLIENT_VERSION, authentication.method_name, authentication.data()))

    def _on_success(self, frame: Frame) -> None:
        self._answer(frame.command.success.request_id, frame.command.success)

    def _on_error(self, frame: Frame) -> None:
        error = frame.command.error
        refusal = BrokerRefused(error.error, error.message)
        if error.request_id == commands.NO_REQUEST:
            if not self._ready.done():
                self._ready.set_exception(refusal)
            self.abort(str(refusal))
            return
        self._refuse(error.request_id, refusal)

    def _on_producer_success(self, frame: Frame) -> None:
        success = frame.command.producer_success
        request = self._requests.get(success.request_id)
        if request is not None and not success.producer_ready:
            request.deadline.reschedule(None)  # It may have to wait for others for ever.
        else:
            self._answer(success.request_id, success)

    def _on_partitions(self, frame: Frame) -> None:
        response = frame.command.partitionMetadataResponse
        if response.response == response.Failed or response.HasField("error"):
            self._refuse(response.request_id, BrokerRefused(response.error, response.message))
        else:
            self._answer(response.request_id, response)

    def _on_lookup(self, frame: Frame) -> None:
        response = frame.command.lookupTopicResponse
        if response.response == response.Failed:
            self._refuse(response.request_id, BrokerRefused(response.error, response.message))
        else:
            self._answer(response.request_id, response)

    def _on_topics(self, frame: Frame) -> None:
        response = frame.command.getTopicsOfNamespaceResponse
        self._answer(response.request_id, response)

    def _on_watching(self, frame: Frame) -> None:
        success = frame.command.watchTopicListSuccess
        self._answer(success.request_id, success)

    def _on_topics_changed(self, frame: Frame) -> None:
        watcher = self.watchers.get(frame.command.watchTopicUpdate.watcher_id)
        if watcher is not None:
            watcher.on_change()

    def _on_last_message_id(self, frame: Frame) -> None:
        response = frame.command.getLastMessageIdResponse
        self._answer(response.request_id, response)

    def _on_schema(self, frame: Frame) -> None:
        response = frame.command.getSchemaResponse
        if response.HasField("error_code"):
            self._refuse(response.request_id, BrokerRefused(response.error_code, response.error_message))
        else:
            self._answer(response.request_id, response)

    def _on_ack_response(self, frame: Frame) -> None:
        response = frame.command.ackResponse
        if response.HasField("error"):
            self._refuse(response.request_id, BrokerRefused(response.error, response.message))
        else:
            self._answer(response.request_id, response)

    def _on_transaction_response(self, frame: Frame) -> None:
        response = getattr(frame.command, _TRANSACTION_RESPONSES[frame.type])
        if response.HasField("error"):
            self._refuse(response.request_id, BrokerRefused(response.error, response.message))
        else:
            self._answer(response.request_id, response)

    def _on_send_error(self, frame: Frame) -> None:
        error = frame.command.send_error
        producer = self.producers.get(error.producer_id)
        if producer is not None:
            producer.on_send_error(error)

    def _on_close_producer(self, frame: Frame) -> None:
        close = frame.command.close_producer
        producer = self.producers.pop(close.producer_id, None)
        if producer is not None:
            producer.on_detached(
                self, self._assigned(close.assignedBrokerServiceUrl, close.assignedBrokerServiceUrlTls)
            )

    def _on_close_consumer(self, frame: Frame) -> None:
        close = frame.command.close_consumer
        consumer = self.consumers.pop(close.consumer_id, None)
        if consumer is not None:
            consumer.on_detached(
                self, self._assigned(close.assignedBrokerServiceUrl, close.assignedBrokerServiceUrlTls)
            )

    def _assigned(self, url: str, url_tls: str) -> str | None:
        """The broker to go to instead, in the scheme of this connection."""
        return (url_tls if self.address.startswith("pulsar+ssl") else url) or None

    def _on_active_change(self, frame: Frame) -> None:
        change = frame.command.active_consumer_change
        consumer = self.consumers.get(change.consumer_id)
        if consumer is not None:
            consumer.on_active_change(change)

    def _on_end_of_topic(self, frame: Frame) -> None:
        consumer = self.consumers.get(frame.command.reachedEndOfTopic.consumer_id)
        if consumer is not None:
            consumer.on_end_of_topic()

    def _on_unexpected(self, frame: Frame) -> None:
        log.debug("command.ignored", broker=self.address, command=BaseCommand.Type.Name(frame.command.type))

    def _answer(self, request_id: int, answer: Command) -> None:
        request = self._requests.get(request_id)
        if request is not None and not request.future.done():
            request.future.set_result(answer)

    def _refuse(self, request_id: int, refusal: BrokerRefused) -> None:
        request = self._requests.get(request_id)
        if request is not None and not request.future.done():
            request.future.set_exception(refusal)


_TRANSACTION_RESPONSES: dict[int, str] = {
    BaseCommand.TC_CLIENT_CONNECT_RESPONSE: "tcClientConnectResponse",
    BaseCommand.NEW_TXN_RESPONSE: "newTxnResponse",
    BaseCommand.ADD_PARTITION_TO_TXN_RESPONSE: "addPartitionToTxnResponse",
    BaseCommand.ADD_SUBSCRIPTION_TO_TXN_RESPONSE: "addSubscriptionToTxnResponse",
    BaseCommand.END_TXN_RESPONSE: "endTxnResponse",
    BaseCommand.END_TXN_ON_PARTITION_RESPONSE: "endTxnOnPartitionResponse",
    BaseCommand.END_TXN_ON_SUBSCRIPTION_RESPONSE: "endTxnOnSubscriptionResponse",
}

_HANDLERS: dict[int, Callable[[Connection, Frame], None]] = {
    **dict.fromkeys(_TRANSACTION_RESPONSES, Connection._on_transaction_response),
    BaseCommand.CONNECTED: Connection._on_connected,
    BaseCommand.PING: Connection._on_ping,
    BaseCommand.PONG: Connection._on_pong,
    BaseCommand.AUTH_CHALLENGE: Connection._on_auth_challenge,
    BaseCommand.SUCCESS: Connection._on_success,
    BaseCommand.ERROR: Connection._on_error,
    BaseCommand.PRODUCER_SUCCESS: Connection._on_producer_success,
    BaseCommand.PARTITIONED_METADATA_RESPONSE: Connection._on_partitions,
    BaseCommand.LOOKUP_RESPONSE: Connection._on_lookup,
    BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE: Connection._on_topics,
    BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE: Connection._on_last_message_id,
    BaseCommand.WATCH_TOPIC_LIST_SUCCESS: Connection._on_watching,
    BaseCommand.WATCH_TOPIC_UPDATE: Connection._on_topics_changed,
    BaseCommand.GET_SCHEMA_RESPONSE: Connection._on_schema,
    BaseCommand.ACK_RESPONSE: Connection._on_ack_response,
    BaseCommand.SEND_ERROR: Connection._on_send_error,
    BaseCommand.CLOSE_PRODUCER: Connection._on_close_producer,
    BaseCommand.CLOSE_CONSUMER: Connection._on_close_consumer,
    BaseCommand.ACTIVE_CONSUMER_CHANGE: Connection._on_active_change,
    BaseCommand.REACHED_END_OF_TOPIC: Connection._on_end_of_topic,
}
