"""How the web side behaves."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class AdminSettings(BaseModel):
    """Limits and time-outs of HTTP. Names in brackets are Pulsar's."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    body_bytes_max: int = Field(default=4 * 1024 * 1024, ge=1024)
    """Largest body of a request to the routes of this room. Mounted routers have limits of their own."""
    header_bytes_max: int = Field(default=32 * 1024, ge=1024)
    """Largest request line and headers together. [httpMaxRequestHeaderSize is 8 KiB; tokens can be larger.]"""
    header_timeout_s: float = Field(default=30.0, gt=0)
    """How long a client may take to send its headers."""
    body_timeout_s: float = Field(default=60.0, gt=0)
    """How long a client may take to send a body."""
    write_timeout_s: float = Field(default=60.0, gt=0)
    """How long a client may leave an answer unread before the connection is cut."""
    request_timeout_s: float = Field(default=60.0, gt=0)
    """How long a client is made to wait for an answer. What it asked for goes on."""
    keep_alive_s: float = Field(default=30.0, gt=0)
    """How long an idle connection is kept."""
    connections_max: int = Field(default=2048, ge=1)
    """Connections at one time. [maxHttpServerConnections]"""
    requests_max: int = Field(default=1024, ge=1)
    """Requests at one time; more are answered 503. [maxConcurrentHttpRequests]"""
    backlog_scan_entries_max: int = Field(default=10_000, ge=1)
    """Entries that analysing a backlog reads at most. [subscriptionBacklogScanMaxEntries]"""
    backlog_scan_s_max: float = Field(default=50.0, gt=0)
    """How long that may take. [subscriptionBacklogScanMaxTimeMs is 120 s, longer than an answer may take here.]"""
    force_delete_allowed: bool = True
    """Whether namespaces and tenants may be deleted with everything in them.
    [forceDeleteNamespaceAllowed, forceDeleteTenantAllowed; on in Pulsar's standalone.conf]"""
