"""Arbitrary protobuf messages, drawn from their descriptors."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st

from magnetar.protocol.pulsar_pb2 import BaseCommand

M = TypeVar("M", bound=Message)

_VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: st.text(max_size=12),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=12),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
}


@st.composite
def any_message(draw: st.DrawFn, kind: type[M], depth: int = 0) -> M:
    """A message of a type, with every required field and some of the others."""
    message = kind()
    _fill(draw, message, kind.DESCRIPTOR, depth)
    return message


def _fill(draw: st.DrawFn, message: Message, descriptor: Any, depth: int) -> None:
    for field in descriptor.fields:
        if field.is_repeated:
            for _ in range(draw(st.integers(0, 2))):
                if field.message_type is not None:
                    _fill(draw, getattr(message, field.name).add(), field.message_type, depth + 1)
                else:
                    getattr(message, field.name).append(draw(_scalar(field)))
        elif field.is_required or (depth < 3 and draw(st.booleans())):
            if field.message_type is not None:
                inner = getattr(message, field.name)
                inner.SetInParent()
                _fill(draw, inner, field.message_type, depth + 1)
            else:
                setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _VALUES[field.type]


@st.composite
def any_command(draw: st.DrawFn) -> BaseCommand:
    """A command of any type."""
    number = draw(st.sampled_from(list(BaseCommand.Type.values())))
    command = BaseCommand(type=number)
    field = BaseCommand.DESCRIPTOR.fields_by_number[number]
    inner = getattr(command, field.name)
    inner.SetInParent()
    assert field.message_type is not None
    _fill(draw, inner, field.message_type, 1)
    return command
