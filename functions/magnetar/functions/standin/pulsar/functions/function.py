"""`from pulsar.functions.function import Function`."""

from magnetar.functions.function import Function

__all__ = ["Function"]
