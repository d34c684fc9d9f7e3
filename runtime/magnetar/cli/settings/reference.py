"""Writes `config/standalone.yaml`: every setting with its default and what it means, from the classes themselves.

python -m magnetar.cli.settings.reference > config/standalone.yaml
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from magnetar.cli.settings.loading import section_fields
from magnetar.cli.settings.model import build

DERIVED = {
    "broker.cluster": "cluster",
    "policies.cluster": "cluster",
    "worker.cluster": "cluster",
    "bookie.directory": "data",
    "worker.data_dir": "data",
}
"""Settings that follow another one unless they are set: shown, and commented out."""

_WIDTH = 108
_HEAD = """\
Settings of `magnetar standalone`, `magnetar broker` and `magnetar bookie`, with their defaults.
Written by `python -m magnetar.cli.settings.reference`: change the classes, not this file.

    magnetar standalone --config config/standalone.yaml

Each setting can also stand in a variable: MAGNETAR_PORT, MAGNETAR_BROKER__MAX_MESSAGE_BYTES.
Options win over variables, variables over the file. A file that ends in .conf is read as one of Pulsar's own."""


def reference() -> str:
    """The documented file."""
    defaults = build({})
    return "\n".join([*_comment(_HEAD, ""), "", *_section(defaults, "")]) + "\n"


def _section(values: Any, prefix: str) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    kind = type(values)
    notes = _notes(kind)
    plain = [name for name, each in section_fields(kind).items() if not section_fields(each)]
    for name in [*plain, *(name for name in section_fields(kind) if name not in plain)]:
        value = getattr(values, name)
        if name not in plain and not prefix:
            yield ""
        yield from _comment(notes.get(name, ""), indent)
        key = f"{prefix}{name}"
        if key in DERIVED:
            yield f"{indent}# {name}: {_written(value)}  (follows `{DERIVED[key]}`)"
        elif name in plain:
            yield f"{indent}{name}: {_written(value)}"
        else:
            yield f"{indent}{name}:"
            yield from _section(value, f"{key}.")


def _notes(kind: type[Any]) -> dict[str, str]:
    """Field → the docstring below it, of a class and those it derives from."""
    notes: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if each in (object, BaseModel) or not (dataclasses.is_dataclass(each) or issubclass(each, BaseModel)):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                notes[field.target.id] = inspect.cleandoc(below.value.value)
    return notes


def _comment(text: str, indent: str) -> Iterator[str]:
    for line in text.splitlines():
        wrapped = textwrap.wrap(line, _WIDTH - len(indent) - 2, subsequent_indent="") or [""]
        yield from (f"{indent}# {part}".rstrip() for part in wrapped)


def _written(value: Any) -> str:
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, Path):
        value = str(value)
    return json.dumps(value)


if __name__ == "__main__":
    sys.stdout.write(reference())
