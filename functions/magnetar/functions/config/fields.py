"""How a field of a config is declared: its JSON name comes from its Python name, its parser from `setting`.

Parsing is as forgiving as Pulsar's (numbers and booleans may be text, unknown keys are ignored) and no more: what
cannot be meant raises a ConfigError that names the field and what it should be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from magnetar.functions.errors import ConfigError

Parser = Callable[[str, Any], Any]
"""Takes the field's name and what the JSON holds; returns the value or raises ConfigError."""


class Guarantee(StrEnum):
    """What holds between an input and its result. Source: FunctionConfig.ProcessingGuarantees."""

    ATLEAST_ONCE = "ATLEAST_ONCE"
    ATMOST_ONCE = "ATMOST_ONCE"
    EFFECTIVELY_ONCE = "EFFECTIVELY_ONCE"
    MANUAL = "MANUAL"


class Position(StrEnum):
    """Where a new subscription begins."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


def setting(
    parser: Parser, default: Any = None, *, factory: Callable[[], Any] | None = None, json: str = ""
) -> Any:
    """A dataclass field that `Config.from_dict` fills by `parser`; absent and null leave its default."""
    metadata = {"parser": parser, "json": json}
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


C = TypeVar("C", bound="Config")


@dataclass(frozen=True)
class Config:
    """A part of a config: knows its JSON form."""

    ALIASES: ClassVar[Mapping[str, str]] = {}
    """Other spellings of JSON names that are understood."""

    @classmethod
    def parse(cls: type[C], field: str, data: Any) -> C:
        """The value of the JSON object `data`, found in `field` (empty at the top). Raises ConfigError."""
        if not isinstance(data, Mapping):
            raise ConfigError(field or "config", f"must be an object, not {_show(data)}")
        values: dict[str, Any] = {}
        for name, json_name, parser in _declared(cls):
            given = data.get(json_name)
            if given is None:
                given = next((data[a] for a, n in cls.ALIASES.items() if n == json_name and a in data), None)
            if given is not None:
                values[name] = parser(f"{field}.{json_name}" if field else json_name, given)
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Pulsar's JSON object, without the fields that are not set."""
        values = ((json_name, getattr(self, name)) for name, json_name, _ in _declared(type(self)))
        return {json_name: _to_json(value) for json_name, value in values if value is not None}


def json_names(cls: type[Config]) -> dict[str, str]:
    """JSON name → Python name of each field."""
    return {json_name: name for name, json_name, _ in _declared(cls)}


def _declared(cls: type[Config]) -> list[tuple[str, str, Parser]]:
    return [
        (field.name, field.metadata["json"] or _camel(field.name), field.metadata["parser"])
        for field in dataclasses.fields(cls)
    ]


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _to_json(value: Any) -> Any:
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Mapping):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Parsers


def text(field: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(field, f"must be a string, not {_show(value)}")
    return value


def boolean(field: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ConfigError(field, f"must be true or false, not {_show(value)}")


def integer(*, at_least: int | None = None) -> Parser:
    """A whole number; `at_least` bounds it."""

    def parse(field: str, value: Any) -> int:
        number = _number(field, value, "a whole number")
        if number != int(number):
            raise ConfigError(field, f"must be a whole number, not {_show(value)}")
        if at_least is not None and number < at_least:
            raise ConfigError(field, f"must be {at_least} or more, not {int(number)}")
        return int(number)

    return parse


def positive_number(field: str, value: Any) -> float:
    number = float(_number(field, value, "a number"))
    if number <= 0:
        raise ConfigError(field, f"must be more than 0, not {number:g}")
    return number


def choice(*known: str) -> Parser:
    """One of `known`, whatever its case; the spelling of `known` is kept."""
    spellings = {word.lower(): word for word in known}

    def parse(field: str, value: Any) -> str:
        found = spellings.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise ConfigError(field, f"must be one of {', '.join(known)}, not {_show(value)}")
        return found

    return parse


def member(of: type[StrEnum]) -> Parser:
    """A member of the enumeration, whatever its case."""
    spelled = choice(*(item.value for item in of))
    return lambda field, value: of(spelled(field, value))


def texts(field: str, value: Any) -> tuple[str, ...]:
    """A list of strings; one string stands for a list of one."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise ConfigError(field, f"must be a list of strings, not {_show(value)}")
    return tuple(items)


def anything(field: str, value: Any) -> dict[str, Any]:
    """An object with any content."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError(field, f"must be an object, not {_show(value)}")
    return dict(value)


def mapping(of: Parser) -> Parser:
    """An object whose values are all parsed by `of`."""

    def parse(field: str, value: Any) -> dict[str, Any]:
        return {key: of(f"{field}[{key}]", item) for key, item in anything(field, value).items()}

    return parse


def part(of: type[Config]) -> Parser:
    """A nested config."""
    return of.parse


def _number(field: str, value: Any, kind: str) -> int | float:
    if isinstance(value, str):
        try:
            value = float(value) if set(value) & set(".eEnN") else int(value)
        except ValueError:
            raise ConfigError(field, f"must be {kind}, not {_show(value)}") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ConfigError(field, f"must be {kind}, not {_show(value)}")
    return value
