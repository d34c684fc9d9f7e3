"""Isolation: which brokers the namespaces of a group are kept on. JSON: Pulsar NamespaceIsolationDataImpl."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field

from magnetar.policies.errors import BadValue
from magnetar.policies.model import CamelModel

MIN_AVAILABLE: Final = "min_available"
_PARAMETERS: Final = ("min_limit", "usage_threshold")


class AutoFailover(CamelModel):
    """When namespaces leave their first brokers for the second ones."""

    policy_type: str = Field(MIN_AVAILABLE, alias="policy_type")
    parameters: dict[str, str] = Field(default_factory=dict)


class Isolation(CamelModel):
    """One group of namespaces, and the brokers they are kept on: expressions that match whole names."""

    namespaces: list[str] = Field(default_factory=list)
    primary: list[str] = Field(default_factory=list)
    secondary: list[str] = Field(default_factory=list)
    auto_failover_policy: AutoFailover | None = Field(None, alias="auto_failover_policy")
    unload_scope: str | None = None

    def check(self) -> None:
        """
        Raises:
            BadValue: nothing is named, an expression cannot be read, or the failover lacks its numbers.
        """
        for kind, expressions in (("namespaces", self.namespaces), ("primary", self.primary)):
            if not expressions:
                raise BadValue(f"{kind} must be set")
        for expression in (*self.namespaces, *self.primary, *self.secondary):
            try:
                re.compile(expression)
            except re.error as error:
                raise BadValue(f"Invalid regex {expression[:80]!r}: {error}") from None
        failover = self.auto_failover_policy
        if failover is None:
            raise BadValue("auto_failover_policy must be set")
        if failover.policy_type != MIN_AVAILABLE:
            raise BadValue(
                f"Unknown auto_failover_policy {failover.policy_type[:80]!r}: only {MIN_AVAILABLE}"
            )
        for name in _PARAMETERS:
            if not failover.parameters.get(name, "").isdigit():
                raise BadValue(f"Required parameter {name} of {MIN_AVAILABLE} is missing or no number")

    def covers(self, namespace: str) -> bool:
        """Whether it speaks of a namespace."""
        return any(re.fullmatch(each, namespace) for each in self.namespaces)

    def prefers(self, host: str) -> bool:
        """Whether a broker is among the first."""
        return any(re.fullmatch(each, host) for each in self.primary)

    def allows(self, host: str) -> bool:
        """Whether a broker is among the first or the second."""
        return self.prefers(host) or any(re.fullmatch(each, host) for each in self.secondary)


class Isolations(CamelModel):
    """All of a cluster, by name: one record."""

    policies: dict[str, Isolation] = Field(default_factory=dict)
