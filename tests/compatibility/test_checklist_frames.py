"""The checklist of what commonly breaks real clients, tried with raw frames against a real standalone.

What needs a broker that can be looked into is tried in `tests/unit/broker`; `test_checklist.py` says where each line is.
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from magnetar.protocol.pulsar_pb2 import (
    CommandLookupTopicResponse,
    CommandPartitionedTopicMetadataResponse,
    CommandSubscribe,
    KeyValue,
    Schema,
)
from tests.compatibility.conftest import Platform
from tests.unit.broker.raw_client import RawClient

Open = Callable[..., Awaitable[RawClient]]

NO_ID = 2**64 - 1


@pytest.fixture
async def open_client(platform: Platform) -> AsyncIterator[Open]:
    opened: list[RawClient] = []

    async def open_one(url: str = platform.service_url, *, handshake: bool = True) -> RawClient:
        client = await RawClient.open(int(url.rpartition(":")[2]))
        opened.append(client)
        if handshake:
            await client.handshake()
        return client

    yield open_one
    for client in opened:
        await client.close()


@pytest.fixture
async def client(open_client: Open) -> RawClient:
    return await open_client()


async def published(client: RawClient, topic: str, count: int, **metadata: Any) -> list[tuple[int, int]]:
    """So many messages, and where they are."""
    await client.produce(topic)
    places = []
    for number in range(count):
        client.send(b"%d" % number, number, metadata=metadata)
        receipt = await client.expect("send_receipt")
        places.append((receipt.message_id.ledgerId, receipt.message_id.entryId))
    return places


def stats(platform: Platform, topic: str) -> Any:
    return platform.rest("GET", f"{topic.replace('://', '/')}/stats")


# Handshake and connection.


async def test_connected_comes_first_and_names_version_and_server(open_client: Open) -> None:
    client = await open_client(handshake=False)
    for_version = await client.handshake(protocol_version=15)
    assert (for_version.protocol_version, bool(for_version.server_version)) == (15, True)
    assert for_version.max_message_size == 5 * 1024 * 1024
    flags = for_version.feature_flags
    assert flags.supports_get_partitioned_metadata_without_auto_creation
    assert not flags.supports_scalable_topics
    client.say("ping")
    await client.expect("pong")


# Looking topics up.


async def test_lookups_lead_to_a_broker_that_answers(
    client: RawClient, open_client: Open, topic: str
) -> None:
    answer = await client.ask("lookupTopic", "lookupTopicResponse", topic=topic)
    assert answer.response == CommandLookupTopicResponse.Connect
    assert not answer.HasField("error"), "present is wrong, though it be 0"
    assert answer.HasField("brokerServiceUrlTls"), "clients in C++ read it unasked"
    there = await open_client(answer.brokerServiceUrl)
    assert (await there.produce(topic)).producer_ready


async def test_a_plain_topic_has_no_partitions_and_says_so(
    client: RawClient, platform: Platform, topic: str
) -> None:
    for name in (topic, f"{topic}-partition-0"):
        answer = await client.ask("partitionMetadata", "partitionMetadataResponse", topic=name)
        assert answer.response == CommandPartitionedTopicMetadataResponse.Success
        assert (answer.HasField("partitions"), answer.partitions) == (True, 0)
        assert not answer.HasField("error")
    assert topic not in platform.rest("GET", "persistent/public/default/partitioned")


def test_lookup_over_http_names_all_that_clients_read(platform: Platform, topic: str) -> None:
    url = f"{platform.web_url}/lookup/v2/topic/{topic.replace('://', '/')}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        told = json.loads(answer.read())
    assert told["brokerUrl"].startswith("pulsar://")
    assert {"brokerUrlTls", "httpUrl", "httpUrlTls", "nativeUrl", "brokerUrlSsl"} <= set(told)


# Producers.


async def test_a_new_producer_begins_before_zero_and_has_no_schema(client: RawClient, topic: str) -> None:
    made = await client.produce(topic, producer_name="", initial_subscription_name="", epoch=0)
    assert (made.last_sequence_id, made.schema_version, made.producer_ready) == (-1, b"", True)
    assert made.producer_name


async def test_a_topic_that_ended_refuses_producers_instead_of_messages(
    client: RawClient, platform: Platform, topic: str
) -> None:
    await client.produce(topic)
    platform.rest("POST", f"{topic.replace('://', '/')}/terminate")
    closed = await client.expect("close_producer")
    assert closed.request_id == NO_ID
    client.send(b"late")
    refused = await client.produce(topic, 2)
    assert refused.error == 15, "TopicTerminatedError"
    await client.hears_nothing("send_error")


# Consumers.


async def test_what_a_consumer_says_of_itself_is_told(
    client: RawClient, platform: Platform, topic: str
) -> None:
    await client.subscribe(
        topic,
        "s",
        kind=CommandSubscribe.Shared,
        consumer_name="named",
        replicate_subscription_state=True,
        metadata=[KeyValue(key="who", value="me")],
        subscription_properties=[KeyValue(key="why", value="test")],
    )
    told = stats(platform, topic)["subscriptions"]["s"]
    assert told["isReplicated"] is True
    assert told["subscriptionProperties"] == {"why": "test"}
    assert (told["consumers"][0]["consumerName"], told["consumers"][0]["metadata"]) == (
        "named",
        {"who": "me"},
    )


async def test_consumer_stats_have_no_error_where_there_is_none(client: RawClient, topic: str) -> None:
    await client.subscribe(topic, permits=7)
    told = await client.ask("consumerStats", "consumerStatsResponse", consumer_id=1)
    assert not told.HasField("error_code")
    assert (told.type, told.availablePermits, told.msgBacklog) == ("Exclusive", 7, 0)
    unknown = await client.ask("consumerStats", "consumerStatsResponse", consumer_id=9)
    assert unknown.error_code == 13, "ConsumerNotFound"


async def test_a_subscription_may_begin_some_time_ago(client: RawClient, topic: str) -> None:
    await published(client, topic, 3)
    await client.subscribe(
        topic, "back", 1, earliest=False, permits=9, start_message_rollback_duration_sec=3600
    )
    await client.subscribe(topic, "now", 2, earliest=False, permits=9)
    assert len(await client.messages(3)) == 3
    await client.hears_nothing("message")


async def test_parts_of_a_batch_stay_acknowledged_over_an_unload(
    client: RawClient, platform: Platform, topic: str
) -> None:
    await client.produce(topic)
    await client.subscribe(topic, kind=CommandSubscribe.Shared, permits=10)
    client.send_batch([b"%d" % number for number in range(5)])
    message, _ = (await client.messages(1))[0]
    place = (message.message_id.ledgerId, message.message_id.entryId)
    client.ack(place, ack_set=[0b10110], request_id=77)
    await client.expect("ackResponse", where=lambda body: body.request_id == 77)
    client.ack(place, ack_set=[0b00111], request_id=78)
    await client.expect("ackResponse", where=lambda body: body.request_id == 78)
    platform.rest("PUT", f"{topic.replace('://', '/')}/unload")
    assert (await client.expect("close_consumer")).request_id == NO_ID
    await client.subscribe(topic, consumer_id=2, kind=CommandSubscribe.Shared, permits=10)
    again, _ = (await client.messages(1))[0]
    assert (list(again.ack_set), again.redelivery_count) == ([0b00110], 0)


async def test_partitions_choose_different_consumers_of_the_best_priority(
    client: RawClient, platform: Platform, topic: str
) -> None:
    platform.partitioned(topic, 2)
    numbers = iter(range(1, 9))
    who: dict[tuple[int, str], int] = {}
    for name, priority in (("a", 1), ("b", 0), ("c", 0)):
        for partition in range(2):
            who[partition, name] = next(numbers)
            await client.subscribe(
                f"{topic}-partition-{partition}",
                "f",
                who[partition, name],
                kind=CommandSubscribe.Failover,
                consumer_name=name,
                priority_level=priority,
            )

    async def is_active(partition: int, name: str) -> bool:
        number = who[partition, name]
        told = await client.expect("active_consumer_change", where=lambda body: body.consumer_id == number)
        return bool(told.is_active)

    active = {}
    for partition in range(2):
        found = stats(platform, f"{topic}-partition-{partition}")
        active[partition] = found["subscriptions"]["f"]["activeConsumerName"]
    assert active == {0: "b", 1: "c"}
    assert await is_active(0, "b")
    assert await is_active(1, "c")
    for partition in range(2):
        assert not await is_active(partition, "a"), "everybody is told, those that stand by as well"


async def test_keys_in_base64_are_hashed_by_what_they_mean(client: RawClient, topic: str) -> None:
    """Text and base64 of the same key belong to one consumer."""
    for consumer_id in (1, 2, 3):
        await client.subscribe(topic, "k", consumer_id, kind=CommandSubscribe.Key_Shared, permits=100)
    await client.produce(topic)
    for number in range(20):
        key = f"key-{number}"
        client.send(b"text", 2 * number, metadata={"partition_key": key})
        encoded = base64.b64encode(key.encode()).decode()
        client.send(
            b"bytes", 2 * number + 1, metadata={"partition_key": encoded, "partition_key_b64_encoded": True}
        )
    got: dict[tuple[int, int], int] = {}
    for message, _ in await client.messages(40):
        got[message.message_id.ledgerId, message.message_id.entryId] = message.consumer_id
    owners = [got[place] for place in sorted(got)]
    assert owners[::2] == owners[1::2]
    assert len(set(owners)) == 3


async def test_seeking_one_partition_leaves_the_others(
    client: RawClient, platform: Platform, topic: str
) -> None:
    """What clients make of a seek by a function of the partition."""
    platform.partitioned(topic, 2)
    for partition in range(2):
        name = f"{topic}-partition-{partition}"
        await client.produce(name, partition + 1)
        for number in range(3):
            client.send(b"%d" % number, number, partition + 1)
            await client.expect("send_receipt")
        await client.subscribe(name, "s", partition + 1, kind=CommandSubscribe.Failover, permits=9)
    first = await client.messages(6)
    for message, _ in first:
        client.ack((message.message_id.ledgerId, message.message_id.entryId), consumer_id=message.consumer_id)
    there = next(message.message_id for message, _ in first if message.consumer_id == 2)
    await client.ask("seek", consumer_id=2, message_id=there)
    assert (await client.expect("close_consumer")).consumer_id == 2
    await client.subscribe(f"{topic}-partition-1", "s", 3, kind=CommandSubscribe.Failover, permits=9)
    assert [message.consumer_id for message, _ in await client.messages(3)] == [3, 3, 3]
    await client.hears_nothing("message")


async def test_the_last_message_of_nothing_is_nothing(client: RawClient, topic: str) -> None:
    await client.subscribe(topic)
    told = await client.ask("getLastMessageId", "getLastMessageIdResponse", consumer_id=1)
    assert (told.last_message_id.entryId, told.last_message_id.batch_index) == (NO_ID, -1)
    assert told.HasField("consumer_mark_delete_position")


# Schemas.


async def test_a_schema_is_told_without_an_error(client: RawClient, topic: str) -> None:
    schema = Schema(name="n", schema_data=b'"string"', type=Schema.String)
    await client.produce(topic, schema=schema)
    told = await client.ask("getSchema", "getSchemaResponse", topic=topic)
    assert not told.HasField("error_code")
    assert (told.schema.type, told.schema_version) == (Schema.String, (0).to_bytes(8, "big"))
    assert told.schema.HasField("name")
    missing = await client.ask("getSchema", "getSchemaResponse", topic=f"{topic}-none")
    assert missing.error_code == 11, "TopicNotFound"
