"""Rates that several namespaces share."""

from __future__ import annotations

from magnetar.policies.model import CamelModel, Int32, Int64


class ResourceGroup(CamelModel):
    """Rates shared by the namespaces of a group; what is missing, or 0 or less, is no limit."""

    publish_rate_in_msgs: Int32 | None = None
    publish_rate_in_bytes: Int64 | None = None
    dispatch_rate_in_msgs: Int32 | None = None
    dispatch_rate_in_bytes: Int64 | None = None
    replication_dispatch_rate_in_msgs: Int64 | None = None
    replication_dispatch_rate_in_bytes: Int64 | None = None
