"""The handshake, and what ends a connection."""

from __future__ import annotations

import asyncio
import functools

import pytest

from magnetar.broker.broker import Broker
from magnetar.protocol import commands
from magnetar.protocol.frames import encode_command
from magnetar.protocol.pulsar_pb2 import BaseCommand, CommandConnect, ServerError
from tests.unit.broker.conftest import Connect, StartBroker
from tests.unit.broker.raw_client import RawClient

TOPIC = "persistent://public/default/t"


async def test_the_lower_protocol_version_is_agreed_upon(connect: Connect) -> None:
    client = await connect(handshake=False)
    assert (await client.handshake(protocol_version=13)).protocol_version == 13
    other = await connect(handshake=False)
    answer = await other.handshake(protocol_version=99)
    assert answer.protocol_version == 21
    assert answer.server_version
    assert answer.max_message_size == 5 * 1024 * 1024


async def test_anything_before_connect_closes(connect: Connect) -> None:
    client = await connect(handshake=False)
    client.say("ping")
    assert await client.is_closed()


async def test_a_second_connect_closes(connect: Connect) -> None:
    client = await connect()
    client.say("connect", client_version="again")
    assert await client.is_closed()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x08\x00\x00\x00\xff\x00\x00\x00\x00",
        b"\x00\x00\x00\x06\x00\x00\x00\x02\xff\xff",
        b"\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=["huge", "lying", "garbage", "empty", "http"],
)
async def test_malformed_bytes_close_one_connection_and_no_other(connect: Connect, data: bytes) -> None:
    bystander = await connect()
    client = await connect()
    client.write(data)
    assert await client.is_closed()
    bystander.say("ping")
    await bystander.expect("pong")


async def test_a_message_that_is_none_closes(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    client.send_raw(b"\x00\x00\xff\xff\x01", 0)
    assert await client.is_closed()


async def test_frames_may_come_byte_by_byte(connect: Connect) -> None:
    client = await connect(handshake=False)
    hello = encode_command(
        BaseCommand(type=BaseCommand.CONNECT, connect=CommandConnect(client_version="x", protocol_version=21))
    )
    for byte in hello + commands.ping():
        client.write(bytes((byte,)))
        await asyncio.sleep(0)
    await client.expect("connected")
    await client.expect("pong")


async def test_a_silent_client_is_pinged_then_closed(start_broker: StartBroker) -> None:
    broker = await start_broker(keep_alive_interval_s=0.1)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    client.answer_pings = False
    await client.handshake()
    await client.expect("ping")
    assert await client.is_closed()
    await client.close()


async def test_who_answers_pings_stays(start_broker: StartBroker) -> None:
    broker = await start_broker(keep_alive_interval_s=0.05)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    await client.handshake()
    await asyncio.sleep(0.4)  # Eight intervals: what is tried is that time alone closes nothing.
    client.say("ping")
    await client.expect("pong")
    await client.close()


async def test_who_never_says_connect_is_closed(start_broker: StartBroker) -> None:
    broker = await start_broker(keep_alive_interval_s=0.1)
    client = await RawClient.open(int(broker.service_url.rpartition(":")[2]))
    assert await client.is_closed()
    await client.close()


async def test_who_takes_nothing_of_what_it_is_sent_is_closed(start_broker: StartBroker) -> None:
    """It cannot be pinged, for the ping would stand behind all that is unsent: its silence must count otherwise."""
    broker = await start_broker(
        keep_alive_interval_s=0.6, write_buffer_bytes=4096, liveness_check_timeout_s=0.4
    )
    port = int(broker.service_url.rpartition(":")[2])
    producer, deaf, other = [await RawClient.open(port) for _ in range(3)]
    for client in (producer, deaf, other):
        await client.handshake()
    await producer.produce(TOPIC)
    await deaf.subscribe(TOPIC)
    deaf.stop_reading()
    deaf.flow(1000)
    for number in range(20):
        producer.send(b"x" * 1024 * 1024, number)
        await producer.expect("send_receipt")
    assert not hasattr(await other.subscribe(TOPIC), "error")
    for client in (producer, deaf, other):
        await client.close()


async def test_a_command_only_brokers_send_closes(connect: Connect) -> None:
    client = await connect()
    client.say("success", request_id=1)
    assert await client.is_closed()


async def test_lookup_names_this_broker(connect: Connect, broker: Broker) -> None:
    client = await connect()
    answer = await client.ask("lookupTopic", "lookupTopicResponse", topic=TOPIC)
    assert answer.brokerServiceUrl == broker.service_url
    assert answer.response == answer.Connect
    assert not answer.HasField("error")


async def test_a_listener_nobody_has_is_told_so_that_clients_do_not_ask_again(
    connect: Connect, broker: Broker
) -> None:
    client = await connect()
    ask = functools.partial(client.ask, "lookupTopic", "lookupTopicResponse", topic=TOPIC)
    answer = await ask(advertised_listener_name="outside")
    assert answer.response == answer.Failed
    assert answer.error == ServerError.ServiceNotReady
    assert "PulsarServerException" in answer.message
    assert "the broker do not have outside listener" in answer.message
    assert (await ask(advertised_listener_name="internal")).brokerServiceUrl == broker.service_url


async def test_lookup_in_an_unknown_namespace_is_topic_not_found(connect: Connect) -> None:
    client = await connect()
    answer = await client.ask("lookupTopic", "lookupTopicResponse", topic="persistent://no/such/topic")
    assert answer.response == answer.Failed
    assert answer.error == 11
    answer = await client.ask(
        "partitionMetadata", "partitionMetadataResponse", topic="persistent://no/such/topic"
    )
    assert answer.error == 11


async def test_an_impossible_name_is_refused_and_the_connection_stays(connect: Connect) -> None:
    client = await connect()
    answer = await client.ask(
        "partitionMetadata", "partitionMetadataResponse", topic="persistent://a/b/c/d/e"
    )
    assert answer.error == 17
    answer = await client.produce("persistent://a/b/c/d/e")
    assert answer.error == 17


async def test_too_many_connections_are_told_so(start_broker: StartBroker) -> None:
    broker = await start_broker(max_connections=1)
    port = int(broker.service_url.rpartition(":")[2])
    first, second = await RawClient.open(port), await RawClient.open(port)
    await first.handshake()
    second.say("connect", client_version="x", protocol_version=21)
    assert (await second.expect("error")).error == 22
    assert await second.is_closed()
    await first.close()
    await second.close()
