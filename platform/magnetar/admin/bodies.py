"""Reading what a request carries: tolerant of how it is written, exact about what it means.

Jackson, which clients were written against, takes `"10240"` for a number and `"true"` for a truth value.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from magnetar.policies.errors import BadValue
from magnetar.policies.model import PolicyModel

Chosen = TypeVar("Chosen", bound=Enum)

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def read_json(body: bytes) -> Any:
    """What the body says; None if it says nothing.

    Raises:
        BadValue: it is no JSON, or nested deeper than anything anybody means.
    """
    if not body.strip():
        return None
    try:
        return json.loads(body, parse_constant=_no_constant)
    except RecursionError:
        raise BadValue("Invalid JSON: it is nested too deeply") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise BadValue(f"Invalid JSON: {error}") from None


def integer(value: Any) -> int:
    """Raises BadValue."""
    number: int | None = None
    if isinstance(value, bool):
        pass
    elif isinstance(value, int):
        number = value
    elif isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, str):
        try:
            number = int(value.strip())
        except ValueError:
            number = None
    if number is None:
        raise BadValue(f"Invalid value {shown(value)}: a whole number is wanted")
    if not _LONG_MIN <= number <= _LONG_MAX:
        raise BadValue(f"Invalid value {shown(value)}: it does not fit 64 bits")
    return number


def small_integer(value: Any) -> int:
    """What Java calls an int. Raises BadValue."""
    number = integer(value)
    if not -(2**31) <= number < 2**31:
        raise BadValue(f"Invalid value {shown(value)}: it does not fit 32 bits")
    return number


def truth(value: Any) -> bool:
    """Raises BadValue."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if isinstance(value, int):
        return value != 0
    raise BadValue(f"Invalid value {shown(value)}: true or false is wanted")


def text(value: Any) -> str:
    """Raises BadValue."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value)
    raise BadValue(f"Invalid value {shown(value)}: a string is wanted")


def bare_text(body: bytes) -> str:
    """A body that is one string: quoted, or as it is, which is how Java's clients send it.

    Raises:
        BadValue: it is no UTF-8, or other JSON than a string.
    """
    try:
        said = body.decode().strip()
    except UnicodeDecodeError as error:
        raise BadValue(f"Invalid text: {error}") from None
    return text(read_json(body)) if said[:1] in ('"', "[", "{") else said


def texts(value: Any) -> list[str]:
    """A list without repetition, in its order. Raises BadValue."""
    if not isinstance(value, list):
        raise BadValue(f"Invalid value {shown(value)}: a list of strings is wanted")
    return list(dict.fromkeys(text(each) for each in value))


def text_map(value: Any) -> dict[str, str]:
    """Raises BadValue."""
    if not isinstance(value, dict):
        raise BadValue(f"Invalid value {shown(value)}: an object with string values is wanted")
    return {name: text(each) for name, each in value.items() if each is not None}


def one_of(kind: type[Chosen]) -> Callable[[Any], Chosen]:
    """A reader of an enumeration's values."""

    def read(value: Any) -> Chosen:
        try:
            return kind(text(value))
        except ValueError:
            raise BadValue(
                f"Invalid value {shown(value)}: one of {', '.join(each.value for each in kind)} is wanted"
            ) from None

    return read


def several_of(kind: type[Chosen]) -> Callable[[Any], list[Chosen]]:
    """A reader of lists of an enumeration's values."""
    read_one = one_of(kind)
    return lambda value: [read_one(each) for each in texts(value)]


def model(kind: type[PolicyModel]) -> Callable[[Any], PolicyModel]:
    """A reader of a policy model."""
    return kind.read


def shown(value: Any) -> str:
    """A value in an error message, not longer than that should be."""
    told = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return told if len(told) <= 80 else f"{told[:77]}…"
