"""What the author of a function imports, and what runs around it in the function's own process.

    from magnetar.functions import Function

    class Greet(Function):
        def process(self, input, context):
            return f"hello, {input}"

Functions written for Apache Pulsar (`from pulsar import Function`) need no change: in a function's process
`pulsar` is a small module of ours (`standin/`). This room may import the standard library and nothing else, so
that a user's package can bring whatever versions it likes; `deploy` alone needs cloudpickle, when called.

Where to start reading: `function.py` and `context.py` for authors, `config/` for what may be asked of a function,
`process/main.py` for what happens in a function's process.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from magnetar.functions.context import Context
    from magnetar.functions.deploy import deploy
    from magnetar.functions.errors import ConfigError, FunctionsError, PackageError
    from magnetar.functions.function import Function
    from magnetar.functions.serde import IdentitySerDe, PickleSerDe, SerDe

_HOMES = {
    "ConfigError": "errors",
    "Context": "context",
    "Function": "function",
    "FunctionsError": "errors",
    "IdentitySerDe": "serde",
    "PackageError": "errors",
    "PickleSerDe": "serde",
    "SerDe": "serde",
    "deploy": "deploy",
}

__all__ = [
    "ConfigError",
    "Context",
    "Function",
    "FunctionsError",
    "IdentitySerDe",
    "PackageError",
    "PickleSerDe",
    "SerDe",
    "deploy",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
