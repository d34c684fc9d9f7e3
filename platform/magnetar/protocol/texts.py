"""Strings of commands and metadata that may not be text.

Protobuf's second version lets a `string` hold any bytes, and other clients do write such keys. The
library hands out `bytes` there in spite of its type. Commands that hold such a string are refused;
stored messages must stay readable.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def text(value: str) -> str:
    """A string field as text. Bytes that are no UTF-8 are written out, as `\\xff`: such text can be printed,
    compared, and sent on, which lone surrogates could not."""
    raw: object = value
    return raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else value


def holds_text_only(message: Message) -> bool:
    """Whether every string in `message` and the messages inside is text indeed."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            if any(type(item) is bytes for item in (value if field.is_repeated else (value,))):
                return False
        elif field.type == FieldDescriptor.TYPE_MESSAGE and not all(
            map(holds_text_only, value if field.is_repeated else (value,))
        ):
            return False
    return True
