"""The registry, through the protocol."""

from __future__ import annotations

import json

from magnetar.broker.broker import Broker
from magnetar.broker.schemas import decode_version
from magnetar.naming import TopicName
from magnetar.protocol.pulsar_pb2 import Schema
from tests.unit.broker.conftest import Connect

TOPIC = "persistent://public/default/t"
INCOMPATIBLE, NOT_FOUND = 18, 11


def schema(*fields: str, kind: int = Schema.Json) -> Schema:
    described = [{"name": name, "type": ["null", "string"], "default": None} for name in fields]
    definition = {"type": "record", "name": "R", "fields": described}
    return Schema(name="s", type=kind, schema_data=json.dumps(definition).encode())  # type: ignore[arg-type]


async def test_identical_schemas_have_one_version(connect: Connect) -> None:
    client = await connect()
    first = await client.produce(TOPIC, 1, schema=schema("a"))
    again = await client.produce(TOPIC, 2, schema=schema("a"))
    second = await client.produce(TOPIC, 3, schema=schema("a", "b"))
    assert first.schema_version == again.schema_version == bytes(8)
    assert decode_version(second.schema_version) == 1


async def test_incompatible_schemas_are_refused(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC, 1, schema=schema("a"))
    assert (await client.produce(TOPIC, 2, schema=schema("a", kind=Schema.Avro))).error == INCOMPATIBLE
    assert (
        await client.produce(TOPIC, 3, schema=Schema(name="", type=Schema.String, schema_data=b""))
    ).error == 18
    broken = Schema(name="", type=Schema.Avro, schema_data=b"{")
    assert (await client.produce("persistent://public/default/u", 4, schema=broken)).error == INCOMPATIBLE


async def test_schemas_are_fetched_by_version_and_shared_by_partitions(
    connect: Connect, broker: Broker
) -> None:
    await broker.context.resources.create_partitioned(TopicName.parse(TOPIC), 2)
    client = await connect()
    await client.produce(f"{TOPIC}-partition-0", 1, schema=schema("a"))
    await client.produce(f"{TOPIC}-partition-1", 2, schema=schema("a", "b"))
    latest = await client.ask("getSchema", "getSchemaResponse", topic=TOPIC)
    assert decode_version(latest.schema_version) == 1
    assert not latest.HasField("error_code")
    first = await client.ask("getSchema", "getSchemaResponse", topic=TOPIC, schema_version=bytes(8))
    assert first.schema.schema_data == schema("a").schema_data
    assert (
        await client.ask("getSchema", "getSchemaResponse", topic=TOPIC, schema_version=b"")
    ).error_code == 18
    missing = await client.ask(
        "getSchema", "getSchemaResponse", topic=TOPIC, schema_version=b"\0" * 7 + b"\x09"
    )
    assert missing.error_code == NOT_FOUND


async def test_get_or_create(connect: Connect) -> None:
    client = await connect()
    answer = await client.ask(
        "getOrCreateSchema", "getOrCreateSchemaResponse", topic=TOPIC, schema=schema("a")
    )
    assert answer.error_code == NOT_FOUND
    await client.produce(TOPIC)
    answer = await client.ask(
        "getOrCreateSchema", "getOrCreateSchemaResponse", topic=TOPIC, schema=schema("a")
    )
    assert answer.schema_version == bytes(8)
    assert not answer.HasField("error_code")


async def test_the_first_consumer_brings_the_schema_to_an_unused_topic(connect: Connect) -> None:
    client = await connect()
    assert not hasattr(await client.subscribe(TOPIC, schema=schema("a")), "error")
    assert (await client.ask("getSchema", "getSchemaResponse", topic=TOPIC)).schema_version == bytes(8)
    stranger = schema("a", kind=Schema.Avro)
    assert (await client.subscribe(TOPIC, "other", 2, schema=stranger)).error == INCOMPATIBLE


async def test_a_consumer_with_schema_on_a_topic_of_bytes_is_refused(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC)
    assert (await client.subscribe(TOPIC, schema=schema("a"))).error == INCOMPATIBLE
    auto = Schema(name="", type=Schema.AutoConsume, schema_data=b"")
    assert not hasattr(await client.subscribe(TOPIC, schema=auto), "error")


async def test_a_producer_without_schema_is_told_no_version(connect: Connect) -> None:
    client = await connect()
    await client.produce(TOPIC, 1, schema=schema("a"))
    assert (await client.produce(TOPIC, 2)).schema_version == b""


async def test_deleted_schemas_keep_their_numbers(connect: Connect, broker: Broker) -> None:
    client = await connect()
    await client.produce(TOPIC, 1, schema=schema("a"))
    assert await broker.schemas.delete(TopicName.parse(TOPIC)) == 1
    assert (await client.ask("getSchema", "getSchemaResponse", topic=TOPIC)).error_code == NOT_FOUND
    assert decode_version((await client.produce(TOPIC, 2, schema=schema("z"))).schema_version) == 1
