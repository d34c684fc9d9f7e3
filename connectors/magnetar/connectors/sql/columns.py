"""Records as rows, and the columns a new table needs for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from typing import Any, Literal, TypeAlias

from magnetar.connectors.errors import RowRefused
from magnetar.connectors.interfaces import Record

Row: TypeAlias = dict[str, Any]
Converter: TypeAlias = Callable[[str], Any]
ColumnType: TypeAlias = Literal["boolean", "integer", "number", "text", "json"]


_CONVERTERS: dict[type, Converter] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
}


def row_of(record: Record, key: Sequence[str]) -> Row:
    """The record's JSON object, each column of `key` with a value. Raises RowRefused."""
    try:
        fields = json.loads(record.value)
    except (ValueError, RecursionError) as error:
        raise RowRefused(f"the value is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise RowRefused(f"the value is not a JSON object but {type(fields).__name__}")
    for column in key:
        if fields.get(column) is None:
            raise RowRefused(f"the key column {column!r} has no value")
    return fields


def fitted(row: Row, columns: Mapping[str, Converter | None], *, ignore_unknown: bool) -> Row:
    """`row` with only those fields that have a column, each as its column takes it. Raises RowRefused."""
    unknown = [name for name in row if name not in columns]
    if unknown and not ignore_unknown:
        raise RowRefused(f"the table has no column {', '.join(map(repr, unknown))}")
    fits: Row = {}
    for name, value in row.items():
        if name in columns:
            convert = columns[name]
            if isinstance(value, (list, dict)):
                fits[name] = json.dumps(value, ensure_ascii=False)
            elif convert is not None and isinstance(value, str):
                try:
                    fits[name] = convert(value)
                except ValueError as error:
                    raise RowRefused(f"the field {name!r}: {error}") from error
            else:
                fits[name] = value
    if not fits:
        raise RowRefused("it has no field that the table has a column for")
    return fits


def converter(python_type: type) -> Converter | None:
    """How text in JSON becomes a value for a column of that type, where the driver would not take the text."""
    return _CONVERTERS.get(python_type)


def column_types(rows: Iterable[Row]) -> dict[str, ColumnType]:
    """A type for each field in `rows`, wide enough for all its values there, in order of first appearance.

    Where there are only nulls nothing is known, and text holds whatever may come.
    """
    types: dict[str, ColumnType | None] = {}
    for row in rows:
        for name, value in row.items():
            seen = types.setdefault(name, None)
            if value is not None:
                types[name] = _wider(seen, _type_of(value))
    return {name: known or "text" for name, known in types.items()}


def _type_of(value: object) -> ColumnType:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer" if -(2**63) <= value < 2**63 else "text"
        case float():
            return "number"
        case str():
            return "text"
        case _:
            return "json"


def _wider(one: ColumnType | None, other: ColumnType) -> ColumnType:
    if one is None or one == other:
        return other
    if {one, other} == {"integer", "number"}:
        return "number"
    return "text"
