"""Schemas as the official client registers and checks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pulsar
import pytest
from pulsar.schema import BytesSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.compatibility.conftest import WAIT_MS, Platform

pytestmark = pytest.mark.integration


class User(Record):  # type: ignore[misc]  # The official client has no types.
    name = String()
    age = Integer()


class RenamedUser(Record):  # type: ignore[misc]
    _sorted_fields = True
    name = String()
    age = Integer(required=True)


class Stranger(Record):  # type: ignore[misc]
    age = String(required=True)
    height = Integer(required=True)


@pytest.fixture(params=["binary", "http"])
def either(
    request: pytest.FixtureRequest, new_client: Callable[..., pulsar.Client], platform: Platform
) -> pulsar.Client:
    """A client that asks for schemas over the binary protocol, and one that does over HTTP."""
    return new_client(platform.service_url if request.param == "binary" else platform.web_url)


@pytest.mark.parametrize(
    ("schema", "value"),
    [(JsonSchema(User), User(name="Ada", age=36)), (StringSchema(), "grüß"), (BytesSchema(), b"\x00\xff")],
    ids=["json", "string", "bytes"],
)
def test_values_arrive_as_they_were(either: pulsar.Client, topic: str, schema: Any, value: Any) -> None:
    consumer = either.subscribe(topic, "s", schema=schema)
    either.create_producer(topic, schema=schema).send(value)
    assert consumer.receive(WAIT_MS).value() == value


def test_what_does_not_fit_is_refused(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=JsonSchema(User))
    for stranger in (JsonSchema(Stranger), StringSchema()):
        with pytest.raises(pulsar.IncompatibleSchema):
            client.create_producer(topic, schema=stranger)
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(topic, "s", schema=stranger)
    client.subscribe(topic, "s", schema=JsonSchema(User))
    client.subscribe(topic, "bytes")


def test_consumers_must_read_what_is_there_whatever_producers_may_do_next(
    platform: Platform, client: pulsar.Client, topic: str
) -> None:
    topic = topic.replace("public/default", "public/default-3")
    for strategy in ("FORWARD", "FULL", "BACKWARD"):
        platform.rest("PUT", "namespaces/public/default-3/schemaCompatibilityStrategy", strategy)
        client.create_producer(f"{topic}-{strategy}", schema=JsonSchema(User))
        with pytest.raises(pulsar.IncompatibleSchema):
            client.subscribe(f"{topic}-{strategy}", "s", schema=JsonSchema(Stranger))


def test_a_class_that_was_renamed_goes_on(platform: Platform, client: pulsar.Client, topic: str) -> None:
    topic = topic.replace("public/default", "public/default-3")
    platform.rest("PUT", "namespaces/public/default-3/schemaCompatibilityStrategy", "FORWARD")
    before = client.create_producer(topic, schema=JsonSchema(User))
    consumer = client.subscribe(topic, "s", schema=JsonSchema(User))
    after = client.create_producer(topic, schema=JsonSchema(RenamedUser))
    for age in range(5):
        before.send(User(name="before", age=age))
        after.send(RenamedUser(name="after", age=age))
    values = [consumer.receive(WAIT_MS).value() for _ in range(10)]
    assert [(each.name, each.age) for each in values] == [
        (name, age) for age in range(5) for name in ("before", "after")
    ]
    versions = platform.rest("GET", f"{topic.replace('persistent://', 'schemas/')}/schemas")
    assert len(versions["getSchemaResponses"]) == 2


def test_what_producers_register_is_told_over_rest(
    platform: Platform, client: pulsar.Client, topic: str
) -> None:
    path = f"{topic.replace('persistent://', 'schemas/')}/schema"
    client.create_producer(topic)
    assert platform.refused("GET", path) == 404
    client.create_producer(topic, schema=JsonSchema(User))
    told = platform.rest("GET", path)
    assert (told["type"], told["version"]) == ("JSON", 0)
    assert platform.rest("GET", f"{path}/0")["data"] == told["data"]
    assert platform.refused("GET", f"{path}/1") == 404
