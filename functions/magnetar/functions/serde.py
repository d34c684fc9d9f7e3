"""Between payloads and values, where no schema does it."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from typing import Any

from magnetar.functions.errors import SerDeFailed


class SerDe(ABC):
    """Turns what a function returns into bytes, and bytes into what it is given."""

    @abstractmethod
    def serialize(self, input: Any) -> bytes: ...

    @abstractmethod
    def deserialize(self, input_bytes: bytes) -> Any: ...


class PickleSerDe(SerDe):
    """Python objects. Only for topics whose every producer is trusted: unpickling runs what it is told to."""

    def serialize(self, input: Any) -> bytes:
        return pickle.dumps(input)

    def deserialize(self, input_bytes: bytes) -> Any:
        return pickle.loads(input_bytes)


# What int(), float() and complex() accept begins with one of these, or with white space, or beyond ASCII.
_MAY_BE_NUMBER = (
    frozenset(b"0123456789+-._(jJnNiI")
    | frozenset(range(0x80, 0x100))
    | frozenset(b" \t\n\r\v\f\x1c\x1d\x1e\x1f")
)


class IdentitySerDe(SerDe):
    """The default, with Apache's meaning: what looks like a number becomes one, then text, then bytes.

    So "007" arrives as 7 and "nan" as a float. Who wants what was sent asks for schema `string` or `bytes`.
    """

    def serialize(self, input: Any) -> bytes:
        if isinstance(input, bytes):
            return input
        if isinstance(input, (str, int, float, complex)):
            return str(input).encode()
        raise SerDeFailed(
            f"cannot make a message of {type(input).__name__}: return bytes, text or a number, "
            "or set outputSchemaType or outputSerdeClassName"
        )

    def deserialize(self, input_bytes: bytes) -> Any:
        if input_bytes and input_bytes[0] not in _MAY_BE_NUMBER:
            try:
                return input_bytes.decode()
            except UnicodeDecodeError:
                return input_bytes
        for parse in (int, float, _complex, bytes.decode):
            try:
                return parse(input_bytes)
            except ValueError:
                continue
        return input_bytes


def _complex(data: bytes) -> complex:
    return complex(data.decode())
