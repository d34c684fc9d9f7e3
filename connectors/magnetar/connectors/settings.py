"""Settings of a connector: declared once as fields, from which parsing, error messages and REST metadata follow.

YAML, JSON and command lines disagree about types (`"500"`, `500`, `true`, `"true"`), so a value is taken for what its
field says it is, or refused with the field's name; a misspelt key is refused with the nearest known one.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from magnetar.connectors.errors import InvalidSetting

FieldType: TypeAlias = Literal["string", "strings", "integer", "number", "boolean", "object"]

TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a connector's `configs`."""

    name: str
    type: FieldType
    help: str
    default: Any = None
    required: bool = False
    sensitive: bool = False
    """Never shown in clear; may be filled from the component's secret of the same name."""
    choices: tuple[str, ...] = ()
    minimum: float | None = None

    def parse(self, value: object) -> Any:
        """`value` as this field's type. Raises InvalidSetting."""
        parsed = _PARSERS[self.type](self.name, value)
        if self.choices and parsed not in self.choices:
            raise InvalidSetting(self.name, f"must be one of {', '.join(self.choices)}, not {value!r}")
        if self.minimum is not None and parsed < self.minimum:
            raise InvalidSetting(self.name, f"must be at least {self.minimum:g}, not {value!r}")
        return parsed

    def definition(self) -> dict[str, Any]:
        """Pulsar's ConfigFieldDefinition. Its attributes are strings, as those of @FieldDoc are."""
        return {
            "fieldName": self.name,
            "typeName": _JAVA_NAMES[self.type],
            "attributes": {
                "help": self.help,
                "required": str(self.required).lower(),
                "sensitive": str(self.sensitive).lower(),
                "defaultValue": "" if self.default is None else str(self.default),
            },
        }


def parse_settings(
    fields: Iterable[Field], configs: Mapping[str, Any], secret: Callable[[str], str | None] | None = None
) -> dict[str, Any]:
    """Every field's value: parsed, or its default. Raises InvalidSetting for the first that is wrong.

    Args:
        secret: asked for the value of a sensitive field that `configs` does not have.
    """
    known = {field.name: field for field in fields}
    for key in configs:
        if key not in known and not key.startswith("__"):  # Pulsar reserves __NAMES__ for itself.
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise InvalidSetting(key, f"is unknown; {hint}")
    values: dict[str, Any] = {}
    for name, field in known.items():
        given = configs.get(name)
        if given is None and field.sensitive and secret is not None:
            given = secret(name)
        if given is None or given == "":
            if field.required:
                raise InvalidSetting(name, "is required")
            values[name] = field.default
        else:
            values[name] = field.parse(given)
    return values


def _string(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(name, f"must be a string, not {value!r}")
    return value


def _strings(name: str, value: object) -> tuple[str, ...]:
    """A list of names, or one string with commas between them."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise InvalidSetting(name, f"must be a string or a list of strings, not {value!r}")
    names = tuple(item.strip() for item in items)
    if not all(names):
        raise InvalidSetting(name, f"has an empty name in {value!r}")
    return names


def _integer(name: str, value: object) -> int:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = int(value)
        except (ValueError, OverflowError) as error:
            raise InvalidSetting(name, f"must be a whole number, not {value!r}") from error
        if isinstance(value, str) or number == value:
            return number
    raise InvalidSetting(name, f"must be a whole number, not {value!r}")


def _number(name: str, value: object) -> float:
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError) as error:
            raise InvalidSetting(name, f"must be a number, not {value!r}") from error
        if math.isfinite(number):
            return number
    raise InvalidSetting(name, f"must be a number, not {value!r}")


def _boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.lower() if isinstance(value, str) else None
    if word in TRUE_WORDS or word in FALSE_WORDS:
        return word in TRUE_WORDS
    raise InvalidSetting(name, f"must be true or false, not {value!r}")


def _object(name: str, value: object) -> dict[str, Any]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return dict(value)
    raise InvalidSetting(name, f"must be a mapping, not {value!r}")


_PARSERS: dict[FieldType, Callable[[str, object], Any]] = {
    "string": _string,
    "strings": _strings,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
}
_JAVA_NAMES: dict[FieldType, str] = {
    "string": "class java.lang.String",
    "strings": "interface java.util.List",
    "integer": "long",
    "number": "double",
    "boolean": "boolean",
    "object": "interface java.util.Map",
}
