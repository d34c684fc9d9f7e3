"""What `import pulsar` finds in a function's process: the part of the official client that functions use.

Stands before the real one on the module path there, and nowhere else; so a function package needs no client library,
and none of its threads.
"""

from typing import Any

from pulsar import schema
from pulsar.enums import CompressionType, Result

from magnetar.functions.context import Context
from magnetar.functions.function import Function
from magnetar.functions.process.current_message import MessageId
from magnetar.functions.serde import IdentitySerDe, PickleSerDe, SerDe

__all__ = [
    "CompressionType",
    "Context",
    "Function",
    "IdentitySerDe",
    "MessageId",
    "PickleSerDe",
    "Result",
    "SerDe",
    "schema",
]


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"pulsar.{name} is not there inside a function: its process has no client; "
        "publish with context.publish, or return results"
    )
