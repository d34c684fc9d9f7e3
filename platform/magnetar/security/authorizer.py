"""What can be asked for, and who answers.

A role is the name an authenticated client goes by (None: it has not said). A resource is named by the text
users know: a topic's full name, `tenant/namespace`, a tenant, a cluster, or a function's
`tenant/namespace/name`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Protocol

from magnetar.security.errors import Forbidden

CLUSTER = "cluster"
"""The resource of actions that concern the whole platform."""


class Action(enum.Enum):
    """What a client may wish to do, at the grain at which Pulsar grants it."""

    PRODUCE = "produce"
    CONSUME = "consume"
    LOOKUP = "lookup"
    READ_STATS = "read_stats"
    READ_POLICY = "read_policy"
    WRITE_POLICY = "write_policy"
    ADMINISTER_TOPIC = "administer_topic"
    ADMINISTER_NAMESPACE = "administer_namespace"
    ADMINISTER_TENANT = "administer_tenant"
    ADMINISTER_CLUSTER = "administer_cluster"
    RUN_FUNCTIONS = "functions"
    RUN_SOURCES = "sources"
    RUN_SINKS = "sinks"
    USE_PACKAGES = "packages"


class Authorizer(Protocol):
    """Answers every question of permission."""

    async def authorize(self, role: str | None, action: Action, resource: str) -> None:
        """Return if allowed.

        Raises:
            Forbidden: and nothing else; who cannot be judged is not allowed.
        """
        ...


class AllowAll:
    """Everyone may do everything: a platform that answers on 127.0.0.1 only, or one that nobody guards."""

    __slots__ = ()

    async def authorize(self, role: str | None, action: Action, resource: str) -> None:
        return None


class SuperUsersOnly:
    """The named roles may do everything, others nothing: for a cluster's own doors, and as the start of
    richer rules."""

    __slots__ = ("_roles",)

    def __init__(self, roles: Iterable[str]) -> None:
        self._roles = frozenset(roles)

    async def authorize(self, role: str | None, action: Action, resource: str) -> None:
        if role is None or role not in self._roles:
            raise Forbidden(role, action.value, resource)
