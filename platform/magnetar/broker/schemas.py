"""The schemas of topics, with their versions, in the metadata store.

One record for each topic, `/schemas/{tenant}/{namespace}/{topic}`, shared by its partitions. It is JSON:
`{"version": 1, "schemas": [...]}`; the place in the list is the schema's version, which clients see as eight
bytes, big-endian. Identical schemas have one version. Nothing is ever taken out of the list, so that a
message's version always means what it meant; deletion is a mark.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from magnetar.broker.errors import IncompatibleSchema, InvalidSchema, MetadataFailed, SchemaNotFound
from magnetar.broker.schema_rules.avro import InvalidDefinition
from magnetar.broker.schema_rules.compatibility import (
    SchemaContent,
    check_definition,
    refusal_to_add,
    refusal_to_consume,
)
from magnetar.environment.logs import get_logger
from magnetar.metadata.errors import BadVersion
from magnetar.metadata.store import MUST_NOT_EXIST
from magnetar.protocol.pulsar_pb2 import Schema

if TYPE_CHECKING:
    from magnetar.broker.settings import BrokerSettings
    from magnetar.broker.topic import Topic
    from magnetar.environment.clock import Clock
    from magnetar.metadata.store import MetadataStore
    from magnetar.naming import TopicName
    from magnetar.policies.effective import EffectivePolicies

log = get_logger("magnetar.broker")

SCHEMAS_PATH: Final = "/schemas"
_FORMAT: Final = 1
NO_VERSION: Final = b""
"""What clients read as: this topic has no schema."""


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    type: Schema.Type.ValueType
    data: bytes
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    timestamp_ms: int = 0
    deleted: bool = False

    @property
    def version_bytes(self) -> bytes:
        return self.version.to_bytes(8, "big", signed=True)

    @property
    def content(self) -> SchemaContent:
        return SchemaContent.of(self.type, self.data, self.properties)

    @property
    def type_name(self) -> str:
        """As REST names it: STRING, JSON, BOOLEAN, KEY_VALUE, PROTOBUF_NATIVE, …"""
        return (
            _rest_name(Schema.Type.Name(self.type)) if self.type in Schema.Type.values() else str(self.type)
        )

    def to_protocol(self) -> Schema:
        schema = Schema(name=self.name, schema_data=self.data, type=self.type)
        for key, value in self.properties.items():
            schema.properties.add(key=key, value=value)
        return schema

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "data": b64encode(self.data).decode(),
            "name": self.name,
            "properties": dict(self.properties),
            "timestamp": self.timestamp_ms,
            "deleted": self.deleted,
        }

    @classmethod
    def from_json(cls, version: int, fields: Mapping[str, Any]) -> StoredSchema:
        return cls(
            version,
            fields["type"],
            b64decode(fields["data"]),
            fields["name"],
            fields["properties"],
            fields["timestamp"],
            fields["deleted"],
        )


def decode_version(version: bytes) -> int:
    """The number behind a version's bytes. Very old producers wrote 64 of them; the first eight count."""
    return int.from_bytes(version[:8], "big", signed=True)


class SchemaRegistry:
    """Finds, registers and compares the schemas of topics."""

    def __init__(self, metadata: MetadataStore, settings: BrokerSettings, clock: Clock) -> None:
        self._metadata = metadata
        self._settings = settings
        self._clock = clock

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """All versions, oldest first, the deleted ones too."""
        return (await self._read(topic))[0]

    async def get(self, topic: TopicName, version: bytes | int | None = None) -> StoredSchema:
        """A version, or the latest.

        Raises:
            SchemaNotFound: there is none.
        """
        schemas = await self.versions(topic)
        if version is None:
            live = _live(schemas)
            if not live:
                raise SchemaNotFound(f"topic {topic.base} has no schema")
            return live[-1]
        number = decode_version(version) if isinstance(version, bytes) else version
        if not 0 <= number < len(schemas) or schemas[number].deleted:
            raise SchemaNotFound(f"topic {topic.base} has no schema of version {number}")
        return schemas[number]

    async def for_producer(
        self, topic: TopicName, schema: Schema | None, policies: EffectivePolicies
    ) -> bytes:
        """The version of a producer's schema, registered if it is new; `NO_VERSION` for one that has none.

        Raises:
            IncompatibleSchema, InvalidSchema: it may not produce with it.
        """
        if schema is None or schema.type in _NO_SCHEMA:
            if policies.schema_validation_enforced and _live(await self.versions(topic)):
                raise IncompatibleSchema(f"topic {topic.base} has a schema: producers must have one, too")
            return NO_VERSION
        return (await self.register(topic, self._content(schema), policies, schema)).version_bytes

    async def for_consumer(self, topic: Topic, schema: Schema | None) -> None:
        """Check a consumer's schema; it becomes the topic's where nobody has used the topic yet.

        Raises:
            IncompatibleSchema, InvalidSchema: it cannot read what the topic has.
        """
        if schema is None or schema.type in _NO_SCHEMA or schema.type == Schema.AutoConsume:
            return
        content = self._content(schema)
        live = _live(await self.versions(topic.name))
        if not live and topic.untouched:
            await self.register(topic.name, content, topic.policies, schema)
            return
        if not live:
            raise IncompatibleSchema(
                f"topic {topic.name.base} has messages or producers but no schema: read bytes"
            )
        strategy = topic.policies.schema_compatibility_strategy
        refusal = refusal_to_consume(content, [each.content for each in live], strategy)
        if refusal is not None:
            raise IncompatibleSchema(f"schema cannot read topic {topic.name.base} ({strategy}): {refusal}")

    async def register(
        self,
        topic: TopicName,
        content: SchemaContent,
        policies: EffectivePolicies,
        schema: Schema | None = None,
    ) -> StoredSchema:
        """Find the version of an identical schema, or add one.

        Raises:
            IncompatibleSchema: those that are there, or a policy, forbid it.
        """
        while True:
            schemas, record_version = await self._read(topic)
            for known in schemas:
                if not known.deleted and known.content.same_as(content):
                    return known
            self._check_addition(topic, content, _live(schemas), policies)
            added = StoredSchema(
                len(schemas),
                content.type,
                content.data,
                schema.name if schema is not None else "",
                {pair.key: pair.value for pair in schema.properties} if schema is not None else {},
                self._clock.time_ms(),
            )
            try:
                await self._write(topic, [*schemas, added], record_version)
            except BadVersion:
                continue  # Another broker, or another producer, was faster: look again.
            log.info("schema.registered", topic=str(topic.base), version=added.version, type=added.type_name)
            return added

    def _check_addition(
        self,
        topic: TopicName,
        content: SchemaContent,
        live: Sequence[StoredSchema],
        policies: EffectivePolicies,
    ) -> None:
        if not live:
            return
        if not policies.allow_auto_update_schema:
            raise IncompatibleSchema(
                f"topic {topic.base} has another schema, and producers may not update it: register it over REST"
            )
        strategy = policies.schema_compatibility_strategy
        refusal = refusal_to_add(content, [each.content for each in live], strategy)
        if refusal is not None:
            raise IncompatibleSchema(
                f"schema does not fit those of topic {topic.base} ({strategy}): {refusal}"
            )

    async def delete(self, topic: TopicName) -> int:
        """Mark all versions as deleted. Returns the version after the last."""
        while True:
            schemas, record_version = await self._read(topic)
            if not _live(schemas):
                return len(schemas)
            deleted = [
                StoredSchema(
                    each.version,
                    each.type,
                    each.data,
                    each.name,
                    each.properties,
                    each.timestamp_ms,
                    deleted=True,
                )
                for each in schemas
            ]
            try:
                await self._write(topic, deleted, record_version)
            except BadVersion:
                continue
            return len(schemas)

    def _content(self, schema: Schema) -> SchemaContent:
        limit = self._settings.schema_bytes_max
        if len(schema.schema_data) > limit:
            raise InvalidSchema(f"schema of {len(schema.schema_data)} bytes exceeds the limit of {limit}")
        properties = {pair.key: pair.value for pair in schema.properties}
        content = SchemaContent.of(schema.type, schema.schema_data, properties)
        try:
            check_definition(content)
        except InvalidDefinition as error:
            raise InvalidSchema(str(error)) from None
        return content

    async def _read(self, topic: TopicName) -> tuple[list[StoredSchema], int]:
        record = await self._metadata.get(_path(topic))
        if record is None:
            return [], MUST_NOT_EXIST
        fields = json.loads(record.value)
        if fields.get("version") != _FORMAT:
            raise MetadataFailed(f"schemas of {topic.base} are stored in a newer format: upgrade this broker")
        return [
            StoredSchema.from_json(number, each) for number, each in enumerate(fields["schemas"])
        ], record.version

    async def _write(self, topic: TopicName, schemas: Sequence[StoredSchema], expected_version: int) -> None:
        value = json.dumps({"version": _FORMAT, "schemas": [each.to_json() for each in schemas]}).encode()
        await self._metadata.put(_path(topic), value, expected_version=expected_version)


_NO_SCHEMA: Final = frozenset((getattr(Schema, "None"),))


def _live(schemas: Sequence[StoredSchema]) -> list[StoredSchema]:
    return [each for each in schemas if not each.deleted]


def _path(topic: TopicName) -> str:
    base = topic.base
    return f"{SCHEMAS_PATH}/{base.tenant}/{base.namespace}/{base.encoded_local}"


def _rest_name(name: str) -> str:
    """`KeyValue` → `KEY_VALUE`. Source: Pulsar SchemaType."""
    if name == "Bool":
        return "BOOLEAN"
    return "".join(
        f"_{each}" if each.isupper() and index else each for index, each in enumerate(name)
    ).upper()
