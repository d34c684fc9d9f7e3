"""`from pulsar.functions.context import Context`."""

from magnetar.functions.context import Context

__all__ = ["Context"]
