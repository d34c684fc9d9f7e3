"""When a reader of one Avro schema can read what a writer of another wrote. Pure.

Source: Avro specification, "Schema Resolution", as Avro's own library for Java does it, by which Pulsar goes.
Definitions are the JSON that clients register. Records may have any name, because a class that was renamed reads
the same fields; enums and fixed types are compared by name, without the namespace, because official clients of
different languages choose different ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

Definition = Any
"""What `json.loads` makes of a schema: a name, a list for a union, or an object."""

PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
"""What a reader may take instead of what was written."""

_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))
_COMPLEX: Final = _NAMED | {"array", "map"}
_DEPTH_MAX: Final = 64


class InvalidDefinition(ValueError):
    """The text is no Avro schema."""


class AvroSchema:
    """A definition, and the named types inside it."""

    def __init__(self, text: str | bytes) -> None:
        """
        Raises:
            InvalidDefinition: it is no Avro schema.
        """
        try:
            self.root: Definition = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidDefinition(f"schema is no JSON: {error}") from None
        self.named: dict[str, Definition] = {}
        for definition in _walk(self.root, 0):
            if isinstance(definition, dict) and "name" in definition and _type_of(definition) in _NAMED:
                self.named[_local(definition["name"])] = definition
        for definition in _walk(self.root, 0):
            self._check(definition)

    def resolve(self, definition: Definition) -> Definition:
        """Follow names, and objects that only wrap a type, to what they mean."""
        if isinstance(definition, str) and definition not in PRIMITIVES:
            return self.named[_local(definition)]
        if isinstance(definition, dict) and _type_of(definition) not in _COMPLEX:
            return self.resolve(definition["type"])
        return definition

    def _check(self, definition: Definition) -> None:
        if isinstance(definition, str):
            if definition not in PRIMITIVES and _local(definition) not in self.named:
                raise InvalidDefinition(f"schema names {definition!r}, which it does not define")
        elif isinstance(definition, dict):
            kind = _type_of(definition)
            if kind in _NAMED and not isinstance(definition.get("name"), str):
                raise InvalidDefinition(f"a {kind} has no name")
            if kind == "record" and not isinstance(definition.get("fields"), list):
                raise InvalidDefinition(f"record {definition['name']!r} has no list of fields")
            if kind == "enum" and not isinstance(definition.get("symbols"), list):
                raise InvalidDefinition(f"enum {definition['name']!r} has no list of symbols")


def can_read(reader: AvroSchema, writer: AvroSchema) -> str | None:
    """Why `reader` cannot read what `writer` wrote; None if it can."""
    return _Comparison(reader, writer).differs(reader.root, writer.root)


class _Comparison:
    def __init__(self, reader: AvroSchema, writer: AvroSchema) -> None:
        self._reader = reader
        self._writer = writer
        self._compared: set[tuple[str, str]] = set()

    def differs(self, reader: Definition, writer: Definition) -> str | None:
        reader, writer = self._reader.resolve(reader), self._writer.resolve(writer)
        if isinstance(writer, list):
            for branch in writer:
                if (reason := self.differs(reader, branch)) is not None:
                    return reason
            return None
        if isinstance(reader, list):
            if any(self.differs(branch, writer) is None for branch in reader):
                return None
            return f"no branch of the union reads {_kind(writer)}"
        reader_kind, writer_kind = _kind(reader), _kind(writer)
        if reader_kind != writer_kind:
            if reader_kind in _PROMOTIONS.get(writer_kind, ()):
                return None
            return f"{writer_kind} cannot be read as {reader_kind}"
        match reader_kind:
            case "record" | "error":
                return self._records(reader, writer)
            case "enum":
                return _enums(reader, writer)
            case "fixed":
                same = _local(reader["name"]) == _local(writer["name"]) and reader.get("size") == writer.get(
                    "size"
                )
                return None if same else f"fixed {writer['name']!r} differs in name or size"
            case "array":
                return self.differs(reader.get("items", "null"), writer.get("items", "null"))
            case "map":
                return self.differs(reader.get("values", "null"), writer.get("values", "null"))
        return None

    def _records(self, reader: Definition, writer: Definition) -> str | None:
        names = (_local(reader["name"]), _local(writer["name"]))
        if names in self._compared:
            return None  # A record within itself: compared where it began.
        self._compared.add(names)
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            known_as = [field["name"], *field.get("aliases", ())]
            source = next((written[name] for name in known_as if name in written), None)
            if source is None:
                if "default" not in field:
                    return (
                        f"field {field['name']!r} of {names[0]!r} is not always written, and has no default"
                    )
            elif (reason := self.differs(field["type"], source["type"])) is not None:
                return f"field {field['name']!r} of {names[0]!r}: {reason}"
        return None


def _enums(reader: Definition, writer: Definition) -> str | None:
    if _local(reader["name"]) != _local(writer["name"]):
        return f"enum {writer['name']!r} is not {reader['name']!r}"
    unknown = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
    if unknown and "default" not in reader:
        return f"enum {reader['name']!r} does not know {', '.join(map(str, unknown))}"
    return None


def _type_of(definition: Definition) -> str:
    """The type of an object, if it is told by a name; else nothing that any type is called."""
    kind = definition.get("type")
    return kind if isinstance(kind, str) else ""


def _kind(definition: Definition) -> str:
    return definition if isinstance(definition, str) else _type_of(definition)


def _local(name: Any) -> str:
    return str(name).rpartition(".")[2]


def _walk(definition: Definition, depth: int) -> Iterator[Definition]:
    """Every definition inside a schema, itself first."""
    if depth > _DEPTH_MAX:
        raise InvalidDefinition(f"schema is nested deeper than {_DEPTH_MAX} levels")
    yield definition
    if isinstance(definition, list):
        for branch in definition:
            yield from _walk(branch, depth + 1)
    elif isinstance(definition, dict):
        kind = definition.get("type")
        if kind is None:
            raise InvalidDefinition("a schema object has no type")
        match _type_of(definition):
            case "record" | "error":
                for field in definition.get("fields") or ():
                    if (
                        not isinstance(field, dict)
                        or not isinstance(field.get("name"), str)
                        or "type" not in field
                    ):
                        raise InvalidDefinition("a field has no name or no type")
                    yield from _walk(field["type"], depth + 1)
            case "array":
                yield from _walk(definition.get("items", "null"), depth + 1)
            case "map":
                yield from _walk(definition.get("values", "null"), depth + 1)
            case "enum" | "fixed":
                pass
            case _:
                yield from _walk(kind, depth + 1)
    elif not isinstance(definition, str):
        raise InvalidDefinition(f"{definition!r} is no schema")
