"""Schemas that functions declare: plain ones and JSON records. Avro and its kin are not here."""

from __future__ import annotations

import json
from typing import Any


class Field:
    """A record's field: its default, and whether it must be given."""

    def __init__(self, default: Any = None, required: bool = False, required_default: bool = False) -> None:
        self.default = default
        self.required = required
        self.required_default = required_default


class Boolean(Field): ...


class Integer(Field): ...


class Long(Field): ...


class Float(Field): ...


class Double(Field): ...


class Bytes(Field): ...


class String(Field): ...


class Array(Field):
    def __init__(self, array_type: Any, default: Any = None, required: bool = False) -> None:
        super().__init__(default, required)
        self.array_type = array_type


class Map(Field):
    def __init__(self, value_type: Any, default: Any = None, required: bool = False) -> None:
        super().__init__(default, required)
        self.value_type = value_type


class Record:
    """A JSON object with declared fields. Nested records are built from nested objects."""

    _fields: dict[str, Any]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        own = {name: value for name, value in vars(cls).items() if _declares(value)}
        cls._fields = {**getattr(cls, "_fields", {}), **own}

    def __init__(self, *args: Any, **values: Any) -> None:
        unknown = set(values) - set(self._fields)
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field '{min(unknown)}'")
        for name, kind in self._fields.items():
            value = values.get(name)
            if value is None:
                value = kind.default if isinstance(kind, Field) else None
            if value is None and isinstance(kind, Field) and kind.required:
                raise TypeError(f"{type(self).__name__} needs '{name}'")
            setattr(self, name, _built(kind, value))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"
        )


def _declares(value: Any) -> bool:
    """Whether a class attribute declares a field: a kind of field or record, or an instance of one."""
    return issubclass(value if isinstance(value, type) else type(value), (Field, Record))


def _built(kind: Any, value: Any) -> Any:
    """A nested object as the record its field declares."""
    record = kind if isinstance(kind, type) else type(kind)
    if issubclass(record, Record) and isinstance(value, dict):
        return record(**value)
    if isinstance(kind, Array) and isinstance(value, list):
        return [_built(kind.array_type, item) for item in value]
    if isinstance(kind, Map) and isinstance(value, dict):
        return {key: _built(kind.value_type, item) for key, item in value.items()}
    return value


class BytesSchema:
    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes) -> bytes:
        return data


class StringSchema:
    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class JsonSchema:
    """Between records and JSON."""

    def __init__(self, record_class: type[Record]) -> None:
        self._record_class = record_class

    def encode(self, value: Record) -> bytes:
        return json.dumps(value, default=vars, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> Record:
        return self._record_class(**json.loads(data))
