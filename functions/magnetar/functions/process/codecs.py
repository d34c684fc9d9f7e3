"""Between payloads and what user code sees: schemas and SerDes, as plain callables."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from magnetar.functions.errors import FunctionsError, SerDeFailed
from magnetar.functions.serde import IdentitySerDe, PickleSerDe

Decode = Callable[[bytes], Any]
Encode = Callable[[Any], bytes]

SERDES: Mapping[str, type] = {"IdentitySerDe": IdentitySerDe, "PickleSerDe": PickleSerDe}


def input_decoder(codec: Mapping[str, Any]) -> Decode:
    """How an input's payloads are decoded.

    Raises:
        FunctionsError: the schema or SerDe is unknown.
    """
    schema = str(codec.get("schema") or "").strip()
    match schema.lower():
        case "":
            serde: Decode = load_serde(codec.get("serde")).deserialize
            return serde
        case "bytes" | "none" | "auto_consume":
            return bytes  # Gives back the very same object.
        case "string":
            return bytes.decode
        case "json":
            return _json_decoder(codec.get("type"))
        case _:
            decode: Decode = _schema_object(schema, codec.get("type")).decode
            return decode


def output_encoder(codec: Mapping[str, Any]) -> Encode:
    """How results are encoded. Raises FunctionsError: the schema or SerDe is unknown."""
    schema = str(codec.get("schema") or "").strip()
    match schema.lower():
        case "" | "bytes" | "none" | "auto_publish":
            serde = load_serde(codec.get("serde"))
            return serde.serialize if type(serde) in SERDES.values() else checked(serde.serialize)
        case "string":
            return _encode_string
        case "json":
            return _encode_json
        case _:
            return checked(_schema_object(schema, codec.get("type")).encode)


def checked(encode: Encode) -> Encode:
    """A foreign encoder, held to its word."""

    def encode_checked(value: Any) -> bytes:
        payload = encode(value)
        if type(payload) is not bytes:
            raise SerDeFailed(
                f"the output's SerDe or schema made {type(payload).__name__} of the result, not bytes"
            )
        return payload

    return encode_checked


def load_serde(class_name: object) -> Any:
    """A new SerDe; `serde.X` and a bare `X` mean those of the SDK. Raises FunctionsError."""
    name = str(class_name or "IdentitySerDe")
    bare = name.rpartition(".")[2]
    if bare in SERDES and name.rpartition(".")[0] in (
        "",
        "serde",
        "pulsar",
        "pulsar.functions.serde",
        "magnetar.functions",
    ):
        return SERDES[bare]()
    return load_name(name, "SerDe")()


def load_name(name: str, what: str) -> Any:
    """The object at `module.name`. Raises FunctionsError."""
    module, _, attribute = name.rpartition(".")
    if not module:
        raise FunctionsError(f"{what} '{name}' needs its module: module.{name}")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise FunctionsError(f"{what} '{name}' cannot be loaded: {error}") from error


def _schema_object(schema: str, type_name: object) -> Any:
    """An object with encode and decode, of a class that the package brings."""
    if "." not in schema:
        raise FunctionsError(
            f"schema '{schema}' is not supported: use bytes, string or json, or module.Class of a schema class"
        )
    schema_class = load_name(schema, "schema")
    return schema_class(load_name(str(type_name), "schema type")) if type_name else schema_class()


def _json_decoder(type_name: object) -> Decode:
    if not type_name:
        return json.loads
    record = load_name(str(type_name), "inputTypeClassName")

    def decode(payload: bytes) -> Any:
        return record(**json.loads(payload))

    return decode


def _encode_string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise SerDeFailed(f"outputSchemaType is string, but the function returned {type(value).__name__}")
    return value.encode()


def _encode_json(value: Any) -> bytes:
    try:
        return json.dumps(value, default=_plain, separators=(",", ":")).encode()
    except (TypeError, ValueError) as error:
        raise SerDeFailed(f"outputSchemaType is json, but the result is not: {error}") from error


def _plain(value: Any) -> Any:
    """A record object as JSON."""
    if hasattr(value, "__dict__"):
        return {key: item for key, item in vars(value).items() if not key.startswith("_")}
    raise TypeError(f"{type(value).__name__} has no JSON form")
