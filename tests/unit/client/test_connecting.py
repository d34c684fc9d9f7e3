"""Connections: handshake, lookup, redirects, credentials, signs of life, and what happens without them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar.client import Client, TokenAuthentication
from magnetar.client.authentication import BasicAuthentication
from magnetar.client.errors import (
    AlreadyClosed,
    BrokerRefused,
    ConnectFailed,
    InvalidServiceUrl,
    OperationTimedOut,
)
from magnetar.protocol import commands
from magnetar.protocol.frames import Frame
from magnetar.protocol.pulsar_pb2 import BaseCommand, ServerError
from tests.unit.client.fake_broker import FakeBroker, Session


@pytest.fixture
async def other() -> AsyncIterator[FakeBroker]:
    """A second broker."""
    broker = FakeBroker()
    await broker.start()
    yield broker
    await broker.stop()


async def test_one_connection_serves_all(broker: FakeBroker, client: Client) -> None:
    await asyncio.gather(client.create_producer("a"), client.create_producer("b"), client.subscribe("a", "s"))
    assert broker.count(BaseCommand.CONNECT) == 1
    connect = broker.heard[0].connect
    assert connect.protocol_version == 21
    assert connect.feature_flags.supports_broker_entry_metadata
    await client.close()
    await broker.until(lambda: not broker.sessions)
    assert broker.count(BaseCommand.CLOSE_PRODUCER) == 2
    assert broker.count(BaseCommand.CLOSE_CONSUMER) == 1
    with pytest.raises(AlreadyClosed):
        await client.create_producer("a")
    await client.close()


async def test_lookups_are_passed_on(broker: FakeBroker, other: FakeBroker, client: Client) -> None:
    def redirect(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.LOOKUP:
            session.write(
                commands.lookup_response(frame.command.lookupTopic.request_id, other.url, redirect=True)
            )
            return True
        return False

    broker.intercept = redirect
    producer = await client.create_producer("t")
    await producer.send(b"x")
    assert other.last(BaseCommand.LOOKUP).lookupTopic.authoritative
    assert (broker.count(BaseCommand.SEND), other.count(BaseCommand.SEND)) == (0, 1)


async def test_a_circle_of_redirects_ends(broker: FakeBroker) -> None:
    def to_itself(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.LOOKUP:
            session.write(
                commands.lookup_response(frame.command.lookupTopic.request_id, broker.url, redirect=True)
            )
            return True
        return False

    broker.intercept = to_itself
    async with Client(broker.url, operation_timeout_s=0.3) as client:
        with pytest.raises(BrokerRefused, match="passed on 20 times"):
            await client.create_producer("t")


async def test_any_broker_of_the_service_url_will_do(broker: FakeBroker, other: FakeBroker) -> None:
    port = other.port
    await other.stop()
    async with Client(f"pulsar://127.0.0.1:{port},127.0.0.1:{broker.port}") as client:
        assert await client.partitions("t") == ["persistent://public/default/t"]
    async with Client(f"pulsar://127.0.0.1:{port}", operation_timeout_s=0.2) as client:
        with pytest.raises(ConnectFailed, match=str(port)):
            await client.create_producer("t")


async def test_through_a_proxy_the_broker_is_named(broker: FakeBroker, client: Client) -> None:
    def proxied(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.LOOKUP:
            session.write(
                commands.lookup_response(
                    frame.command.lookupTopic.request_id,
                    "pulsar://hidden:1",
                    proxy_through_service_url=True,
                )
            )
            return True
        return False

    broker.intercept = proxied
    await client.create_producer("t")
    connects = [command.connect for command in broker.heard if command.type == BaseCommand.CONNECT]
    assert [connect.proxy_to_broker_url for connect in connects] == ["", "pulsar://hidden:1"]


async def test_a_broker_that_is_not_ready_is_asked_again(broker: FakeBroker, client: Client) -> None:
    refusals = iter([ServerError.ServiceNotReady, ServerError.MetadataError])

    def not_yet(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.PRODUCER:
            code = next(refusals, None)
            if code is not None:
                session.write(commands.error(frame.command.producer.request_id, code, "wait"))
                return True
        return False

    broker.intercept = not_yet
    await client.create_producer("t")
    assert broker.count(BaseCommand.PRODUCER) == 3


@pytest.mark.parametrize("code", [ServerError.ProducerBusy, ServerError.TopicNotFound])
async def test_a_refusal_is_told_at_once(
    broker: FakeBroker, client: Client, code: ServerError.ValueType
) -> None:
    def refuse(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.PRODUCER:
            session.write(commands.error(frame.command.producer.request_id, code, "no"))
            return True
        return False

    broker.intercept = refuse
    with pytest.raises(BrokerRefused, match="no") as refusal:
        await client.create_producer("t")
    assert refusal.value.code == code
    assert broker.count(BaseCommand.PRODUCER) == 1


async def test_a_topic_that_is_gone_ends_what_was_attached(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")

    def gone(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.PRODUCER:
            session.write(
                commands.error(frame.command.producer.request_id, ServerError.TopicNotFound, "deleted")
            )
            return True
        return False

    broker.intercept = gone
    broker.cut()
    with pytest.raises(BrokerRefused, match="deleted"):
        await producer.send(b"x")


async def test_a_broker_that_says_nothing(broker: FakeBroker) -> None:
    broker.intercept = lambda session, frame: frame.type == BaseCommand.CONNECT
    async with Client(broker.url, connection_timeout_s=0.02, operation_timeout_s=0.2) as client:
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.02 s"):
            await client.create_producer("t")
        broker.intercept = lambda session, frame: frame.type == BaseCommand.PARTITIONED_METADATA
        with pytest.raises(OperationTimedOut):
            await client.partitions("t")


async def test_a_broker_that_does_not_want_us(broker: FakeBroker) -> None:
    def unauthorized(session: Session, frame: Frame) -> bool:
        if frame.type == BaseCommand.CONNECT:
            session.write(commands.error(commands.NO_REQUEST, ServerError.AuthenticationError, "bad token"))
            return True
        return False

    broker.intercept = unauthorized
    async with Client(broker.url, authentication=TokenAuthentication("t0k3n")) as client:
        with pytest.raises(BrokerRefused, match="bad token"):
            await client.create_producer("t")
    connect = broker.heard[0].connect
    assert (connect.auth_method_name, connect.auth_data) == ("token", b"t0k3n")


async def test_credentials_are_shown_again_on_demand(broker: FakeBroker) -> None:
    tokens = iter(["first", "second"])
    async with Client(broker.url, authentication=TokenAuthentication(lambda: next(tokens))) as client:
        await client.partitions("t")
        broker.sessions[0].write(commands.auth_challenge("Fake", "token", b"PulsarAuthRefresh"))
        await broker.until(lambda: broker.count(BaseCommand.AUTH_RESPONSE) == 1)
        response = broker.last(BaseCommand.AUTH_RESPONSE).authResponse.response
        assert (response.auth_method_name, response.auth_data) == ("token", b"second")
    assert BasicAuthentication("u", "p").data() == b"u:p"


async def test_signs_of_life(broker: FakeBroker) -> None:
    async with Client(broker.url, keep_alive_s=0.03, backoff_initial_s=0.01) as client:
        producer = await client.create_producer("t")
        broker.sessions[0].write(commands.ping())
        await broker.until(lambda: broker.count(BaseCommand.PONG) == 1)
        await broker.until(lambda: broker.count(BaseCommand.PING) >= 2)
        assert broker.count(BaseCommand.CONNECT) == 1
        broker.intercept = lambda session, frame: frame.type == BaseCommand.PING
        await broker.until(lambda: broker.count(BaseCommand.CONNECT) == 2)
        broker.intercept = lambda session, frame: False
        await producer.send(b"still there")


async def test_a_broker_that_speaks_nonsense_is_left(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    broker.sessions[0].write(b"\x00\x00\x00\x08\xff\xff\xff\xff\x00\x00\x00\x00")
    await broker.until(lambda: broker.count(BaseCommand.PRODUCER) == 2)
    await producer.send(b"x")


async def test_a_command_from_the_future_is_ignored(broker: FakeBroker, client: Client) -> None:
    producer = await client.create_producer("t")
    broker.sessions[0].write(commands.watch_topic_update(1, [], [], "00000000"))
    await producer.send(b"x")
    assert broker.count(BaseCommand.CONNECT) == 1


async def test_where_the_broker_sends_a_producer_it_goes(
    broker: FakeBroker, other: FakeBroker, client: Client
) -> None:
    producer = await client.create_producer("t")
    session = broker.sessions[0]
    session.write(commands.broker_closes_producer(next(iter(session.producers)), other.url))
    await other.until(lambda: other.count(BaseCommand.PRODUCER) == 1)
    await producer.send(b"x")
    assert other.count(BaseCommand.SEND) == 1
    assert other.count(BaseCommand.LOOKUP) == 0


def test_a_service_url_is_checked_at_once() -> None:
    with pytest.raises(InvalidServiceUrl, match="pulsar://host:port"):
        Client("http://localhost:8080")
