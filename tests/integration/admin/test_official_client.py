"""The official Python client with an http:// address: it looks topics, partitions and schemas up over REST."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path

import pulsar
import pytest

from tests.unit.admin.conftest import Platform, open_platform

pytestmark = pytest.mark.integration


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    async with open_platform(tmp_path) as opened:
        yield opened


def quiet() -> pulsar.Logger:
    return pulsar.ConsoleLogger(pulsar.LoggerLevel.Warn)


async def test_produce_and_consume(platform: Platform) -> None:
    def talk() -> list[bytes]:
        client = pulsar.Client(platform.broker.web_service_url, logger=quiet())
        try:
            consumer = client.subscribe("http lookup ä", "s")
            producer = client.create_producer("http lookup ä")
            for number in range(10):
                producer.send(b"%d" % number)
            received = [consumer.receive(5000).data() for _ in range(10)]
            consumer.unsubscribe()
            return received
        finally:
            client.close()

    assert await asyncio.to_thread(talk) == [b"%d" % number for number in range(10)]


async def test_partitions_patterns_and_schemas(platform: Platform) -> None:
    for name in ("parted-1", "parted-2"):
        answer = await platform.http.put(
            f"/admin/v2/persistent/public/default/{name}/partitions", content="3"
        )
        assert answer.status_code == 204

    class Flight(pulsar.schema.Record):  # type: ignore[misc]
        origin = pulsar.schema.String()

    def talk() -> tuple[list[str], set[str]]:
        client = pulsar.Client(platform.broker.web_service_url, logger=quiet())
        try:
            partitions = client.get_topic_partitions("parted-1")
            consumer = client.subscribe(
                re.compile("persistent://public/default/parted-.*"),
                "s",
                schema=pulsar.schema.JsonSchema(Flight),
            )
            for name in ("parted-1", "parted-2"):
                producer = client.create_producer(name, schema=pulsar.schema.JsonSchema(Flight))
                producer.send(Flight(origin=name))
            received = set()
            for _ in range(2):
                message = consumer.receive(5000)
                received.add(message.value().origin)
                consumer.acknowledge(message)
            return partitions, received
        finally:
            client.close()

    partitions, received = await asyncio.to_thread(talk)
    assert partitions == [f"persistent://public/default/parted-1-partition-{n}" for n in range(3)]
    assert received == {"parted-1", "parted-2"}
    told = (await platform.http.get("/admin/v2/schemas/public/default/parted-1/schema")).json()
    assert told["type"] == "JSON"
    assert json.loads(told["data"])["name"] == "Flight"


async def test_statistics_as_the_clients_own_tests_read_them(platform: Platform) -> None:
    """The helper of their suite: urllib, and JSON from the admin address."""

    def talk() -> dict[str, object]:
        client = pulsar.Client(platform.broker.service_url, logger=quiet())
        try:
            producer = client.create_producer("stats", producer_name="named")
            producer.send(b"x")
            url = f"{platform.broker.web_service_url}/admin/v2/persistent/public/default/stats/stats"
            with urllib.request.urlopen(url, timeout=10) as answer:
                told: dict[str, object] = json.load(answer)
                return told
        finally:
            client.close()

    told = await asyncio.to_thread(talk)
    publisher = told["publishers"][0]  # type: ignore[index]
    assert publisher["producerName"] == "named"
    assert " " not in publisher["clientVersion"]
