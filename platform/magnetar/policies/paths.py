"""Where policies lie in the metadata store. Sources: Pulsar's layout, save what begins with /magnetar."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus

from magnetar.naming import NamespaceName, TopicName

CLUSTERS: Final = "/admin/clusters"
POLICIES: Final = "/admin/policies"
LOCAL_POLICIES: Final = "/admin/local-policies"
PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"
RESOURCE_GROUPS: Final = "/admin/resourcegroup"
RESOURCE_QUOTAS: Final = "/admin/resource-quotas"
CONFIGURATION: Final = "/admin/configuration"
READ_ONLY_FLAG: Final = "/admin/flags/policies-readonly"
TOPIC_POLICIES: Final = "/magnetar/topic-policies"


def cluster(name: str) -> str:
    return f"{CLUSTERS}/{name}"


def failure_domains(cluster_name: str) -> str:
    return f"{CLUSTERS}/{cluster_name}/failureDomain"


def isolation_policies(cluster_name: str) -> str:
    return f"{CLUSTERS}/{cluster_name}/namespaceIsolationPolicies"


def tenant(name: str) -> str:
    return f"{POLICIES}/{name}"


def namespace(name: NamespaceName) -> str:
    return f"{POLICIES}/{name}"


def local_policies(name: NamespaceName) -> str:
    return f"{LOCAL_POLICIES}/{name}"


def partitioned_topics(name: NamespaceName, domain: str) -> str:
    return f"{PARTITIONED_TOPICS}/{name}/{domain}"


def partitioned_topic(topic: TopicName) -> str:
    return f"{partitioned_topics(topic.namespace_name, topic.domain)}/{_local(topic)}"


def namespace_topic_policies(name: NamespaceName) -> str:
    return f"{TOPIC_POLICIES}/{name}"


def topic_policies(topic: TopicName) -> str:
    return f"{namespace_topic_policies(topic.namespace_name)}/{topic.domain}/{_local(topic)}"


def _local(topic: TopicName) -> str:
    # A path component may not be `.` or `..`, which are topics' names like any other.
    encoded = topic.encoded_local
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


def decoded_local(component: str) -> str:
    """The local name that a path's last component stands for."""
    return unquote_plus(component)


def subject(path: str) -> NamespaceName | TopicName | None:
    """Of which namespace or topic the record at `path` says something; None if of neither."""
    parts = path.split("/")[1:]
    match parts:
        case ["admin", "policies" | "local-policies", tenant_name, local]:
            return NamespaceName(tenant_name, local)
        case ["magnetar", "topic-policies", tenant_name, local, domain, topic]:
            return TopicName.parse(f"{domain}://{tenant_name}/{local}/{decoded_local(topic)}")
        case ["admin", "partitioned-topics", tenant_name, local, domain, topic]:
            return TopicName.parse(f"{domain}://{tenant_name}/{local}/{decoded_local(topic)}")
    return None
