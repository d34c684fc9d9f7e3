"""Tenants. JSON: Pulsar TenantInfo."""

from __future__ import annotations

from pydantic import Field

from magnetar.policies.model import CamelModel


class TenantInfo(CamelModel):
    """Who administers a tenant, and which clusters its namespaces may live on."""

    admin_roles: list[str] = Field(default_factory=list)
    allowed_clusters: list[str] = Field(default_factory=list)
