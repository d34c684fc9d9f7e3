"""/admin/v2/schemas"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from magnetar.admin.errors import Refused
from magnetar.admin.routing import Guards, Route
from magnetar.broker.errors import InvalidSchema, SchemaNotFound
from magnetar.broker.schema_rules.compatibility import SchemaContent, refusal_to_add
from magnetar.broker.schemas import StoredSchema, decode_version
from magnetar.policies.model import PolicyModel
from magnetar.protocol.pulsar_pb2 import Schema
from magnetar.security.authorizer import Action

if TYPE_CHECKING:
    from collections.abc import Mapping

    from magnetar.admin.call import Call

BASE: Final = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"


class PostSchemaPayload(PolicyModel):
    """A schema as the REST interface takes it."""

    type: str
    schema_text: str = Field(default="", alias="schema")
    properties: dict[str, str] = Field(default_factory=dict)


@cache
def _types() -> Mapping[str, Schema.Type.ValueType]:
    named = {StoredSchema(0, number, b"").type_name: number for number in Schema.Type.values()}
    return {**named, "BOOL": Schema.Bool}


async def get(call: Call) -> dict[str, Any]:
    """The latest schema."""
    await _namespace(call)
    return told(await call.admin.broker.schemas.get(call.topic))


async def get_version(call: Call) -> dict[str, Any]:
    """One version of the schema."""
    await _namespace(call)
    return told(await call.admin.broker.schemas.get(call.topic, call.path_number("version")))


async def get_all(call: Call) -> dict[str, Any]:
    """All versions of the schema."""
    return {"getSchemaResponses": [told(each) for each in await _live(call)]}


async def get_metadata(call: Call) -> dict[str, Any]:
    """Where the newest version of the schema is kept, and where each is: in the metadata, so in no ledger."""
    index = [{"ledgerId": -1, "entryId": -1, "version": each.version} for each in await _live(call)]
    return {"info": index[-1], "index": index}


async def post(call: Call) -> dict[str, Any]:
    """Register a schema, even where producers may not."""
    schema = _payload(call)
    policies = await call.admin.resources.effective(call.topic)
    allowed = replace(policies, allow_auto_update_schema=True)
    version = await call.admin.broker.schemas.for_producer(call.topic, schema, allowed)
    return {"version": {"version": decode_version(version)}}


async def delete(call: Call) -> dict[str, Any]:
    """Forget the schema. Its versions are never given to others."""
    await _namespace(call)
    return {"version": await call.admin.broker.schemas.delete(call.topic)}


async def check(call: Call) -> dict[str, Any]:
    """Whether a schema would be taken."""
    schema = _payload(call)
    policies = await call.admin.resources.effective(call.topic)
    existing = [
        each.content for each in await call.admin.broker.schemas.versions(call.topic) if not each.deleted
    ]
    content = SchemaContent.of(schema.type, schema.schema_data, _properties(schema))
    strategy = policies.schema_compatibility_strategy
    refusal = refusal_to_add(content, existing, strategy) if existing else None
    return {"compatibility": refusal is None, "schemaCompatibilityStrategy": strategy.value}


async def find_version(call: Call) -> dict[str, Any]:
    """The version of a schema that is there, -1 if it is not."""
    schema = _payload(call)
    await _namespace(call)
    content = SchemaContent.of(schema.type, schema.schema_data, _properties(schema))
    for each in await call.admin.broker.schemas.versions(call.topic):
        if not each.deleted and each.content.same_as(content):
            return {"version": each.version}
    return {"version": -1}


async def _namespace(call: Call) -> None:
    await call.admin.resources.require_namespace(call.topic.namespace_name)


async def _live(call: Call) -> list[StoredSchema]:
    await _namespace(call)
    live = [each for each in await call.admin.broker.schemas.versions(call.topic) if not each.deleted]
    if not live:
        raise SchemaNotFound(f"topic {call.topic.base} has no schema")
    return live


def told(schema: StoredSchema) -> dict[str, Any]:
    """As the REST interface tells a schema."""
    data = schema.data
    text = _key_value_text(data) if schema.type == Schema.KeyValue else data.decode("utf-8", "replace")
    return {
        "version": schema.version,
        "type": schema.type_name,
        "timestamp": schema.timestamp_ms,
        "data": text,
        "properties": dict(schema.properties),
    }


def _payload(call: Call) -> Schema:
    """The schema in the body. Raises BadValue, InvalidSchema, Refused."""
    payload = PostSchemaPayload.read(call.required("a schema"))
    name = payload.type.upper()
    if name not in _types():
        known = ", ".join(sorted(_types()))
        raise Refused(422, f"Unknown schema type {payload.type[:40]!r}: one of {known} is wanted")
    number = _types()[name]
    text = payload.schema_text
    data = _key_value_bytes(text) if number == Schema.KeyValue else text.encode()
    schema = Schema(name=call.topic.base.local_name, schema_data=data, type=number)
    for key, value in payload.properties.items():
        schema.properties.add(key=key, value=value)
    return schema


def _properties(schema: Schema) -> dict[str, str]:
    return {pair.key: pair.value for pair in schema.properties}


def _key_value_text(data: bytes) -> str:
    """A key and a value schema as one JSON object; as text where they are no JSON themselves."""
    parts: dict[str, Any] = {}
    offset = 0
    for name in ("key", "value"):
        size = int.from_bytes(data[offset : offset + 4], "big", signed=True)
        part = data[offset + 4 : offset + 4 + max(0, size)].decode("utf-8", "replace")
        offset += 4 + max(0, size)
        try:
            parts[name] = json.loads(part)
        except ValueError:
            parts[name] = part
    return json.dumps(parts)


def _key_value_bytes(text: str) -> bytes:
    """The other way round: each part with four bytes of length before it."""
    try:
        said = json.loads(text)
        parts = [said["key"], said["value"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidSchema("a KEY_VALUE schema is a JSON object with key and value") from None
    encoded = [(part if isinstance(part, str) else json.dumps(part)).encode() for part in parts]
    return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)


_READ: Final = (Guards.TOPIC, Action.LOOKUP)
_WRITE: Final = (Guards.TOPIC, Action.PRODUCE)
_ADMINISTER: Final = (Guards.TOPIC, Action.ADMINISTER_TOPIC)

ROUTES: Final = (
    Route("GET", f"{BASE}/schema", get, *_READ),
    Route("GET", f"{BASE}/schema/{{version}}", get_version, *_READ),
    Route("GET", f"{BASE}/schemas", get_all, *_READ),
    Route("GET", f"{BASE}/metadata", get_metadata, *_READ),
    Route("POST", f"{BASE}/schema", post, *_WRITE, body=PostSchemaPayload),
    Route("DELETE", f"{BASE}/schema", delete, *_ADMINISTER, query=("force",)),
    Route("POST", f"{BASE}/compatibility", check, *_READ, body=PostSchemaPayload),
    Route("POST", f"{BASE}/version", find_version, *_READ, body=PostSchemaPayload),
)
