"""Commands made from tables: Typer reads signatures, so theirs are written by hand here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

REQUIRED: Any = inspect.Parameter.empty


def argument(subject: str) -> inspect.Parameter:
    """The one argument `name`, shown as `subject`."""
    kind = Annotated[str, typer.Argument(metavar=subject)]
    return inspect.Parameter("name", inspect.Parameter.KEYWORD_ONLY, annotation=kind)


def option(name: str, kind: Any, option: Any, default: Any) -> inspect.Parameter:
    """An option; `default` may be REQUIRED."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, option], default=default
    )


def described(
    command: Callable[..., None], summary: str, parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """`command` with the signature that Typer is to read."""
    command.__doc__ = summary
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command
