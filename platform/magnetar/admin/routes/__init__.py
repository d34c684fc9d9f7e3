"""What can be asked for, one module for each family of paths. Each has its rows in `ROUTES`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from magnetar.admin.routing import Route


def all_routes() -> Iterator[Route]:
    """Every row."""
    from magnetar.admin.routes import (
        backlog_analysis,
        backlog_quotas,
        bookies,
        broker_stats,
        brokers,
        bundles,
        clusters,
        compaction,
        isolation,
        lookup,
        messages,
        monitoring,
        namespace_policies,
        namespaces,
        partitioned,
        placement,
        refused,
        resource_groups,
        resource_quotas,
        schemas,
        skipping,
        subscriptions,
        tenants,
        topic_permissions,
        topic_policies,
        topic_stats,
        topics,
        transactions,
    )

    for module in (
        clusters,
        isolation,
        tenants,
        namespaces,
        bundles,
        namespace_policies,
        placement,
        topics,
        topic_stats,
        topic_permissions,
        partitioned,
        skipping,
        subscriptions,
        messages,
        backlog_analysis,
        compaction,
        topic_policies,
        backlog_quotas,
        schemas,
        brokers,
        broker_stats,
        bookies,
        resource_groups,
        resource_quotas,
        lookup,
        monitoring,
        transactions,
        refused,
    ):
        yield from module.ROUTES
