"""Clusters: where their brokers are, and where clients go when they have moved. JSON: Pulsar ClusterData."""

from __future__ import annotations

from pydantic import Field

from magnetar.policies.model import CamelModel


class ClusterUrl(CamelModel):
    """Where a cluster's clients go after a migration."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None


class ClusterData(CamelModel):
    """How a cluster is reached, by clients and by other clusters."""

    service_url: str | None = None
    service_url_tls: str | None = None
    broker_service_url: str | None = None
    broker_service_url_tls: str | None = None
    proxy_service_url: str | None = None
    proxy_protocol: str | None = None
    peer_cluster_names: list[str] | None = None
    authentication_plugin: str | None = None
    authentication_parameters: str | None = None
    broker_client_tls_enabled: bool = False
    tls_allow_insecure_connection: bool = False
    broker_client_tls_enabled_with_key_store: bool = False
    broker_client_tls_trust_store: str | None = None
    broker_client_tls_trust_store_type: str | None = None
    broker_client_tls_trust_store_password: str | None = None
    broker_client_tls_key_store: str | None = None
    broker_client_tls_key_store_type: str | None = None
    broker_client_tls_key_store_password: str | None = None
    broker_client_trust_certs_file_path: str | None = None
    broker_client_certificate_file_path: str | None = None
    broker_client_key_file_path: str | None = None
    broker_client_ssl_factory_plugin: str | None = None
    broker_client_ssl_factory_plugin_params: str | None = None
    listener_name: str | None = None
    migrated: bool = False
    migrated_cluster_url: ClusterUrl | None = None


class ClusterPolicies(CamelModel):
    """Whether a cluster has moved, and where to. Answers GET clusters/{c}/migrate."""

    migrated: bool = False
    migrated_cluster_url: ClusterUrl | None = None


class FailureDomain(CamelModel):
    """Brokers that fail together."""

    brokers: list[str] = Field(default_factory=list)
