"""Who can read whose schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from magnetar.broker.schema_rules.avro import AvroSchema, InvalidDefinition, can_read
from magnetar.broker.schema_rules.compatibility import (
    SchemaContent,
    check_definition,
    refusal_to_add,
    refusal_to_consume,
)
from magnetar.policies.schemas import SchemaCompatibilityStrategy as Strategy
from magnetar.protocol.pulsar_pb2 import Schema


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def reads(reader: Any, writer: Any) -> bool:
    return can_read(AvroSchema(json.dumps(reader)), AvroSchema(json.dumps(writer))) is None


A = field("a", "string")
B = field("b", "int")
B_DEFAULT = field("b", "int", default=0)


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("double", "float", True),
        ("bytes", "string", True),
        (record(A), record(A, B), True),
        (record(A, B), record(A), False),
        (record(A, B_DEFAULT), record(A), True),
        (record(A), record(A, name="S"), True),
        (["null", record(A)], record(A, name="S"), True),
        (record(A, B), record(A, name="S"), False),
        (record(field("c", "string", aliases=["a"])), record(A), True),
        (record(field("a", "int")), record(A), False),
        (["null", "string"], "string", True),
        ("string", ["null", "string"], False),
        (["string", "null"], ["null", "string"], True),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        (
            {"type": "enum", "name": "E", "symbols": ["X", "Y"]},
            {"type": "enum", "name": "E", "symbols": ["X"]},
            True,
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["X"]},
            {"type": "enum", "name": "E", "symbols": ["X", "Y"]},
            False,
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["X"]},
            {"type": "enum", "name": "F", "symbols": ["X"]},
            False,
        ),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, False),
        ({"type": "string"}, "string", True),
        ({"type": {"type": "string"}}, "string", True),
        ({"type": "long", "logicalType": "timestamp-millis"}, "long", True),
    ],
)
def test_resolution(reader: Any, writer: Any, expected: bool) -> None:
    assert reads(reader, writer) is expected


def test_records_may_contain_themselves() -> None:
    tree = record(field("next", ["null", "R"], default=None), A)
    wider = record(field("next", ["null", "R"], default=None), A, B_DEFAULT)
    assert reads(wider, tree)
    assert reads(tree, wider)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "5",
        '"nobody"',
        '{"name": "R"}',
        '{"type": "record", "name": "R"}',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "R", "fields": [{"name": "a"}]}',
        "[" * 100 + "]" * 100,
        '{"type": "enum", "name": "E"}',
    ],
)
def test_what_is_no_schema(text: str) -> None:
    with pytest.raises(InvalidDefinition):
        AvroSchema(text)


def avro(*fields: dict[str, Any], kind: Any = Schema.Avro) -> SchemaContent:
    return SchemaContent(kind, json.dumps(record(*fields)).encode())


@pytest.mark.parametrize(
    ("strategy", "new", "allowed"),
    [
        (Strategy.FULL, avro(A, B_DEFAULT), True),
        (Strategy.FULL, avro(A, B), False),
        (Strategy.BACKWARD, avro(A, B), False),
        (Strategy.FORWARD, avro(A, B), True),
        (Strategy.ALWAYS_COMPATIBLE, SchemaContent(Schema.String, b""), True),
        (Strategy.ALWAYS_INCOMPATIBLE, avro(A, B_DEFAULT), False),
        (Strategy.FULL, avro(A, kind=Schema.Json), False),
    ],
)
def test_strategies(strategy: Strategy, new: SchemaContent, allowed: bool) -> None:
    assert (refusal_to_add(new, [avro(A)], strategy) is None) is allowed


def test_transitive_strategies_look_at_all() -> None:
    history = [avro(A, B), avro(A, B_DEFAULT), avro(A)]
    newest = avro(A, field("b", "string", default=""))
    assert refusal_to_add(newest, history, Strategy.BACKWARD) is None
    assert refusal_to_add(newest, history, Strategy.BACKWARD_TRANSITIVE) is not None


@pytest.mark.parametrize(
    "strategy", [each for each in Strategy if each is not Strategy.ALWAYS_COMPATIBLE], ids=str
)
def test_consumers_read_what_is_there(strategy: Strategy) -> None:
    allows_others = strategy is not Strategy.ALWAYS_INCOMPATIBLE
    assert (refusal_to_consume(avro(A, B_DEFAULT), [avro(A)], strategy) is None) is allows_others
    assert refusal_to_consume(avro(A, B), [avro(A)], strategy) is not None
    assert refusal_to_consume(avro(A, B), [avro(A), avro(A, B)], strategy) is None
    assert refusal_to_consume(avro(A, B), [avro(A)], Strategy.ALWAYS_COMPATIBLE) is None


def test_only_transitive_strategies_make_consumers_read_the_past() -> None:
    history = [avro(A), avro(A, B)]
    wanted = avro(A, field("b", "long"))
    assert refusal_to_consume(wanted, history, Strategy.FORWARD_TRANSITIVE) is None
    assert refusal_to_consume(wanted, history, Strategy.FULL) is None
    assert refusal_to_consume(wanted, history, Strategy.FULL_TRANSITIVE) is not None


def key_value(key: bytes, value: bytes) -> SchemaContent:
    parts = b"".join(len(part).to_bytes(4, "big") + part for part in (key, value))
    return SchemaContent(Schema.KeyValue, parts)


def test_key_values_are_compared_part_by_part() -> None:
    plain, wider = avro(A).data, avro(A, B_DEFAULT).data
    assert refusal_to_add(key_value(plain, wider), [key_value(plain, plain)], Strategy.FULL) is None
    reason = refusal_to_add(key_value(plain, avro(A, B).data), [key_value(plain, plain)], Strategy.FULL)
    assert reason is not None
    assert reason.startswith("value")
    with pytest.raises(InvalidDefinition):
        check_definition(SchemaContent(Schema.KeyValue, b"\x00\x00\x00\xff"))


def test_a_key_value_schema_is_also_what_its_parts_are_of() -> None:
    """Primitive types have no definition: only the properties tell them apart."""

    def of(key: str, value: str) -> SchemaContent:
        properties = {"key.schema.type": key, "value.schema.type": value, "kv.encoding.type": "INLINE"}
        return SchemaContent.of(Schema.KeyValue, key_value(b"", b"").data, properties)

    assert refusal_to_add(of("STRING", "INT32"), [of("STRING", "INT32")], Strategy.FULL) is None
    assert refusal_to_add(of("INT32", "INT32"), [of("STRING", "INT32")], Strategy.FULL) == (
        "key: INT32 cannot follow STRING"
    )
    assert refusal_to_add(of("STRING", "BYTES"), [of("STRING", "INT32")], Strategy.FULL) is not None
    assert refusal_to_add(of("STRING", "BYTES"), [of("STRING", "INT32")], Strategy.ALWAYS_COMPATIBLE) is None
    old = key_value(b"", b"")  # Registered by a client that does not say.
    assert refusal_to_add(of("INT32", "INT32"), [old], Strategy.FULL) is None


def test_what_a_schema_does_not_say_of_its_parts_is_as_another_says() -> None:
    """Tools register a key-value schema without the properties that clients send with it."""
    data = key_value(b"", b"").data
    untold = SchemaContent(Schema.KeyValue, data)
    texts = SchemaContent(Schema.KeyValue, data, ("STRING", "STRING"))
    numbers = SchemaContent(Schema.KeyValue, data, ("STRING", "INT32"))
    assert untold.same_as(texts)
    assert texts.same_as(untold)
    assert SchemaContent(Schema.KeyValue, data, ("STRING", "")).same_as(texts)
    assert not texts.same_as(numbers)
    assert not untold.same_as(SchemaContent(Schema.KeyValue, data + b"x"))
    assert refusal_to_consume(texts, [untold], Strategy.ALWAYS_INCOMPATIBLE) is None
    assert refusal_to_consume(texts, [numbers], Strategy.ALWAYS_INCOMPATIBLE) is not None
