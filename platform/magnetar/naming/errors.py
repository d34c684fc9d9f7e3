"""NamingError: a name that cannot be one.

InvalidName(kind, text)         a tenant, namespace, cluster or other plain name
InvalidNamespaceName(text)      not `tenant/namespace`
InvalidTopicName(text)          not a topic's full or short name
"""

from __future__ import annotations


class NamingError(ValueError):
    """The root of this room's errors."""


class InvalidName(NamingError):
    """A plain name is empty or holds a character that names may not have."""

    def __init__(self, kind: str, text: str, reason: str) -> None:
        super().__init__(f"invalid {kind} name {text!r}: {reason}")
        self.kind = kind
        self.text = text


class InvalidNamespaceName(NamingError):
    """Not of the form `tenant/namespace`."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"invalid namespace {text!r}: {reason}")
        self.text = text


class InvalidTopicName(NamingError):
    """Neither `domain://tenant/namespace/topic`, nor `tenant/namespace/topic`, nor `topic`."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"invalid topic name {text!r}: {reason}")
        self.text = text
