"""`from pulsar.functions.serde import SerDe, …`."""

from magnetar.functions.serde import IdentitySerDe, PickleSerDe, SerDe

__all__ = ["IdentitySerDe", "PickleSerDe", "SerDe"]
