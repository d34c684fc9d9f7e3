"""Whether a new schema may stand beside those a topic has. Pure.

Types of one kind only: a topic that carries JSON does not become Avro. Between definitions in Avro's terms
(AVRO, JSON, PROTOBUF) the strategy decides who must be able to read whom; primitive types are compatible
with themselves; a key-value schema is as compatible as its parts; Protobuf-native ones are compared by their
root message alone, which is said in `docs` and in the answer.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from magnetar.broker.schema_rules.avro import AvroSchema, InvalidDefinition, can_read
from magnetar.policies.schemas import SchemaCompatibilityStrategy as Strategy
from magnetar.protocol.pulsar_pb2 import Schema

_AVRO_LIKE: Final = frozenset((Schema.Avro, Schema.Json, Schema.Protobuf))
_NEW_READS_OLD: Final = frozenset(
    (Strategy.BACKWARD, Strategy.BACKWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE)
)
_OLD_READS_NEW: Final = frozenset(
    (Strategy.FORWARD, Strategy.FORWARD_TRANSITIVE, Strategy.FULL, Strategy.FULL_TRANSITIVE)
)
_NEW_READS_ALL: Final = frozenset((Strategy.BACKWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE))
_TRANSITIVE: Final = frozenset(
    (Strategy.BACKWARD_TRANSITIVE, Strategy.FORWARD_TRANSITIVE, Strategy.FULL_TRANSITIVE)
)


@dataclass(frozen=True, slots=True)
class SchemaContent:
    """What is compared of a schema."""

    type: Schema.Type.ValueType
    data: bytes
    parts: tuple[str, str] = ("", "")
    """Of a key-value schema the types of key and value, as its properties say them; "" where they do not."""

    @classmethod
    def of(
        cls, schema_type: Schema.Type.ValueType, data: bytes, properties: Mapping[str, str]
    ) -> SchemaContent:
        """With what counts of the properties."""
        if schema_type != Schema.KeyValue:
            return cls(schema_type, data)
        return cls(
            schema_type,
            data,
            (properties.get("key.schema.type", ""), properties.get("value.schema.type", "")),
        )

    def same_as(self, other: SchemaContent) -> bool:
        """Whether they are one schema: what one of them does not say of its parts is as the other says."""
        return (
            self.type == other.type
            and self.data == other.data
            and all(
                ours == theirs or not ours or not theirs
                for ours, theirs in zip(self.parts, other.parts, strict=True)
            )
        )


def refusal_to_add(new: SchemaContent, existing: Sequence[SchemaContent], strategy: Strategy) -> str | None:
    """Why `new` may not follow `existing` (oldest first, at least one); None if it may."""
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return None
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return "the topic's schema strategy allows no other schema"
    for old in existing if strategy in _TRANSITIVE else existing[-1:]:
        if (reason := _refusal(new, old, strategy in _NEW_READS_OLD, strategy in _OLD_READS_NEW)) is not None:
            return reason
    return None


def refusal_to_consume(
    wanted: SchemaContent, existing: Sequence[SchemaContent], strategy: Strategy
) -> str | None:
    """Why a consumer of schema `wanted` may not read a topic that has `existing`; None if it may.

    It must read what is written now, whatever producers may do next. Source: Pulsar SchemaRegistryServiceImpl.
    """
    if strategy is Strategy.ALWAYS_COMPATIBLE or any(wanted.same_as(each) for each in existing):
        return None
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        return "the topic's schema strategy allows no other schema"
    for old in existing if strategy in _NEW_READS_ALL else existing[-1:]:
        if (reason := _refusal(wanted, old, True, False)) is not None:
            return reason
    return None


def check_definition(schema: SchemaContent) -> None:
    """
    Raises:
        InvalidDefinition: a definition in Avro's terms that is none.
    """
    if schema.type in _AVRO_LIKE:
        AvroSchema(schema.data)
    elif schema.type == Schema.KeyValue:
        _key_value_parts(schema.data)


def _refusal(new: SchemaContent, old: SchemaContent, new_reads_old: bool, old_reads_new: bool) -> str | None:
    if new.type != old.type:
        return f"a {_type_name(new.type)} schema cannot follow a {_type_name(old.type)} one"
    if new.data == old.data and new.parts == old.parts:
        return None
    try:
        if new.type in _AVRO_LIKE:
            return _avro_refusal(new, old, new_reads_old, old_reads_new)
        if new.type == Schema.KeyValue:
            return _key_value_refusal(new, old, new_reads_old, old_reads_new)
        if new.type == Schema.ProtobufNative and _root_message(new.data) != _root_message(old.data):
            return "the root message has another name"
    except InvalidDefinition as error:
        return str(error)
    return None


def _avro_refusal(
    new: SchemaContent, old: SchemaContent, new_reads_old: bool, old_reads_new: bool
) -> str | None:
    mine, theirs = AvroSchema(new.data), AvroSchema(old.data)
    if new_reads_old and (reason := can_read(mine, theirs)) is not None:
        return f"what was written so far cannot be read: {reason}"
    if old_reads_new and (reason := can_read(theirs, mine)) is not None:
        return f"consumers of before could not read it: {reason}"
    return None


def _key_value_refusal(
    new: SchemaContent, old: SchemaContent, new_reads_old: bool, old_reads_new: bool
) -> str | None:
    mine, theirs = _key_value_parts(new.data), _key_value_parts(old.data)
    for index, part in enumerate(("key", "value")):
        types = new.parts[index], old.parts[index]
        if all(types) and types[0] != types[1]:
            return f"{part}: {types[0]} cannot follow {types[1]}"
        if mine[index] == theirs[index]:
            continue
        try:
            kind = SchemaContent(Schema.Avro, mine[index]), SchemaContent(Schema.Avro, theirs[index])
            reason = _avro_refusal(*kind, new_reads_old, old_reads_new)
        except InvalidDefinition:
            reason = "its definitions differ, and are none that can be compared"
        if reason is not None:
            return f"{part}: {reason}"
    return None


def _key_value_parts(data: bytes) -> tuple[bytes, bytes]:
    """Key and value schema: each a 4-byte length, -1 for none, and as many bytes."""
    parts: list[bytes] = []
    offset = 0
    for _ in range(2):
        if len(data) < offset + 4:
            raise InvalidDefinition("key-value schema ends before its parts do")
        size = max(0, struct.unpack_from(">i", data, offset)[0])
        if len(data) < offset + 4 + size:
            raise InvalidDefinition("key-value schema ends before its parts do")
        parts.append(data[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return parts[0], parts[1]


def _root_message(data: bytes) -> str:
    try:
        fields = json.loads(data)
        base64.b64decode(fields.get("fileDescriptorSet", ""), validate=True)
        return str(fields["rootMessageTypeName"])
    except (ValueError, KeyError, AttributeError, binascii.Error) as error:
        raise InvalidDefinition(f"protobuf schema cannot be read: {error}") from None


def _type_name(number: Schema.Type.ValueType) -> str:
    return Schema.Type.Name(number) if number in Schema.Type.values() else str(number)
