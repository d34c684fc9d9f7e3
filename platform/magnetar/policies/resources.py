"""Resources: clusters, tenants, namespaces and topics as the metadata store knows them.

All of it is read through a cache that watches keep fresh; every change is a compare-and-set.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

from magnetar.naming import NamespaceName, NamingError, TopicName
from magnetar.policies import checks, paths
from magnetar.policies.cluster import ClusterData
from magnetar.policies.configuration import DynamicConfiguration
from magnetar.policies.effective import EffectivePolicies, PolicyDefaults, resolve
from magnetar.policies.errors import Conflict, NotFound, NotPermitted, PreconditionFailed
from magnetar.policies.model import PolicyModel
from magnetar.policies.namespace import BundlesData, LocalPolicies, Policies
from magnetar.policies.quotas import BacklogQuota, BacklogQuotaPolicy, BacklogQuotaType
from magnetar.policies.records import RecordCache
from magnetar.policies.storage import InactiveTopicPolicies
from magnetar.policies.tenant import TenantInfo
from magnetar.policies.topic import PartitionedTopicMetadata, TopicPolicies, TopicPoliciesRecord

if TYPE_CHECKING:
    from magnetar.metadata.store import MetadataStore

DEFAULT_BUNDLES: Final = 4
BUNDLES_MAX: Final = 4096

_HOLD: Final = BacklogQuotaPolicy.producer_request_hold

Subject: TypeAlias = NamespaceName | TopicName | None
"""Whose policies have changed: a topic's, a namespace's, or (None) anybody's."""


class ReadOnlyFlag(PolicyModel):
    """While this record exists, no policy can be changed."""


class Resources:
    """What exists, and what holds for it."""

    def __init__(self, metadata: MetadataStore, defaults: PolicyDefaults | None = None) -> None:
        self._records = RecordCache(metadata, ("/admin", paths.TOPIC_POLICIES))
        self._defaults = defaults or PolicyDefaults()

    def close(self) -> None:
        """Watch no longer."""
        self._records.close()

    def on_change(self, listener: Callable[[Subject], None]) -> None:
        """Tell `listener` whose policies have changed, soon after they have."""

        def changed(path: str) -> None:
            if path in ("", paths.CONFIGURATION):
                listener(None)
                return
            with suppress(NamingError):  # A record that somebody else has put there concerns no topic.
                subject = paths.subject(path)
                if subject is not None:
                    listener(subject)

        self._records.on_change(changed)

    @property
    def records(self) -> RecordCache:
        """The records themselves: for what is stored beside policies and nobody else reads."""
        return self._records

    async def bootstrap(
        self, cluster: str, service_url: str, broker_url: str, *, overwrite: bool = True
    ) -> None:
        """Make what a platform begins with; what is there stays as it is.

        Args:
            service_url: the web address, http://…
            broker_url: the binary protocol's address, pulsar://…
            overwrite: these addresses replace others: there is no broker beside this one.
        """

        def with_addresses(data: ClusterData) -> ClusterData:
            if overwrite:
                return data.changed(service_url=service_url, broker_service_url=broker_url)
            return data.changed(
                service_url=data.service_url or service_url or None,
                broker_service_url=data.broker_service_url or broker_url or None,
            )

        await self._records.change(paths.cluster(cluster), ClusterData, with_addresses, missing=None)
        for tenant in ("public", "pulsar"):
            await self._once(self.create_tenant(tenant, TenantInfo(allowed_clusters=[cluster])))
        for text in ("public/default", "public/functions", "pulsar/system"):
            said = _kept_for_ever() if text == "public/functions" else Policies()
            await self._once(self.create_namespace(NamespaceName.parse(text), said))

    @staticmethod
    async def _once(creating: Coroutine[object, object, None]) -> None:
        try:
            await creating
        except Conflict:
            return  # It has been there since an earlier start.

    # Clusters.

    async def clusters(self) -> list[str]:
        return await self._records.names(paths.CLUSTERS)

    async def cluster(self, name: str) -> ClusterData | None:
        return await self._records.get(paths.cluster(name), ClusterData)

    async def create_cluster(self, name: str, data: ClusterData) -> None:
        """Raises Conflict, PreconditionFailed (its name), NotPermitted (policies are read-only)."""
        checks.check_plain_name("cluster", name)
        await self._check_writable()
        await self._records.create(paths.cluster(name), data, f"Cluster already exists: {name}")

    async def update_cluster(self, name: str, change: Callable[[ClusterData], ClusterData]) -> ClusterData:
        """Raises NotFound, Conflict (others keep changing it), NotPermitted."""
        await self._check_writable()
        return await self._records.change(paths.cluster(name), ClusterData, change, "Cluster does not exist")

    async def delete_cluster(self, name: str) -> None:
        """Raises NotFound, PreconditionFailed (namespaces live on it), NotPermitted."""
        await self._check_writable()
        if await self.cluster(name) is None:
            raise NotFound("Cluster does not exist")
        for tenant in await self.tenants():
            for namespace in await self.namespaces(tenant):
                policies = await self._policies(namespace)
                if policies is not None and name in policies.replication_clusters:
                    raise PreconditionFailed(f"Cluster not empty: namespace {namespace} lives on it")
        await self._records.delete_all(paths.cluster(name))

    # Tenants.

    async def tenants(self) -> list[str]:
        return await self._records.names(paths.POLICIES)

    async def tenant(self, name: str) -> TenantInfo | None:
        return await self._records.get(paths.tenant(name), TenantInfo)

    async def create_tenant(self, name: str, info: TenantInfo) -> None:
        """Raises Conflict, PreconditionFailed (its name, its clusters, too many tenants), NotPermitted."""
        checks.check_plain_name("tenant", name)
        await self._check_writable()
        await self._check_clusters(info)
        limit = (await self.defaults()).max_tenants
        if limit and len(await self.tenants()) >= limit:
            raise PreconditionFailed(f"Exceed the maximum number of tenants: {limit}")
        await self._records.create(paths.tenant(name), info, f"Tenant already exists: {name}")

    async def update_tenant(self, name: str, info: TenantInfo) -> None:
        """Raises NotFound, Conflict (a namespace lives on a cluster that would go), PreconditionFailed."""
        await self._check_writable()
        if await self.tenant(name) is None:
            raise NotFound("Tenant does not exist")
        await self._check_clusters(info)
        allowed = set(info.allowed_clusters)
        for namespace in await self.namespaces(name):
            policies = await self._policies(namespace)
            lost = sorted(set(policies.replication_clusters) - allowed) if policies is not None else []
            if lost:
                raise Conflict(
                    f"Tenant has active namespaces on clusters to be removed: {namespace} on {lost[0]}"
                )
        await self._records.change(paths.tenant(name), TenantInfo, lambda _: info, "Tenant does not exist")

    async def delete_tenant(self, name: str) -> None:
        """Raises NotFound, Conflict (it has namespaces), NotPermitted."""
        await self._check_writable()
        if await self.tenant(name) is None:
            raise NotFound("Tenant does not exist")
        if await self.namespaces(name):
            raise Conflict("The tenant still has active namespaces")
        await self._records.delete_all(paths.tenant(name))

    async def _check_clusters(self, info: TenantInfo) -> None:
        if not info.allowed_clusters:
            raise PreconditionFailed("Clusters can not be empty")
        checks.check_known("Clusters", info.allowed_clusters, await self.clusters())

    # Namespaces.

    async def namespaces(self, tenant: str) -> list[NamespaceName]:
        return [NamespaceName(tenant, local) for local in await self._records.names(paths.tenant(tenant))]

    async def namespace_policies(
        self, namespace: NamespaceName, *, deleted_too: bool = False
    ) -> Policies | None:
        """What is said of a namespace; None if there is none, or it is about to be deleted."""
        policies = await self._policies(namespace)
        if policies is None or (policies.deleted and not deleted_too):
            return None
        local = await self.local_policies(namespace)
        if local is None:
            return policies
        return policies.changed(bundles=local.bundles or policies.bundles, migrated=local.migrated)

    async def require_namespace(self, namespace: NamespaceName, *, deleted_too: bool = False) -> Policies:
        """As above. Raises NotFound, of the tenant first."""
        policies = await self.namespace_policies(namespace, deleted_too=deleted_too)
        if policies is None:
            if await self.tenant(namespace.tenant) is None:
                raise NotFound("Tenant does not exist")
            raise NotFound("Namespace does not exist")
        return policies

    async def local_policies(self, namespace: NamespaceName) -> LocalPolicies | None:
        return await self._records.get(paths.local_policies(namespace), LocalPolicies)

    async def create_namespace(self, namespace: NamespaceName, policies: Policies) -> None:
        """Make a namespace. Without clusters it lives on this one, without bundles it gets four.

        Raises:
            NotFound: its tenant does not exist.
            Conflict: it exists.
            PreconditionFailed: too many namespaces, bad bundles.
            NotPermitted: a cluster that is unknown or not its tenant's; or policies are read-only.
        """
        checks.check_plain_name("namespace", namespace.local)
        await self._check_writable()
        tenant = await self.tenant(namespace.tenant)
        if tenant is None:
            raise NotFound("Tenant does not exist")
        defaults = await self.defaults()
        clusters = policies.replication_clusters or [defaults.cluster]
        await self.check_replication(tenant, clusters)
        limit = defaults.max_namespaces_per_tenant
        existing = await self._records.names(paths.tenant(namespace.tenant))
        if limit and len(existing) >= limit and namespace.local not in existing:
            raise PreconditionFailed(f"Exceed the maximum number of namespace in tenant: {namespace.tenant}")
        if namespace.local in existing:
            raise Conflict("Namespace already exists")
        bundles = bundles_asked_for(policies.bundles)
        # Bundles first: whoever sees the namespace finds them. Left alone they do no harm.
        await self._records.change(
            paths.local_policies(namespace),
            LocalPolicies,
            lambda _: LocalPolicies(bundles=bundles),
            missing=None,
        )
        await self._records.create(
            paths.namespace(namespace),
            policies.changed(replication_clusters=list(clusters), bundles=bundles, deleted=False),
            "Namespace already exists",
        )

    async def update_namespace(
        self, namespace: NamespaceName, change: Callable[[Policies], Policies]
    ) -> Policies:
        """Raises NotFound, Conflict (others keep changing it), NotPermitted, and what `change` raises."""
        await self._check_writable()
        await self.require_namespace(namespace, deleted_too=True)
        return await self._records.change(
            paths.namespace(namespace), Policies, change, "Namespace does not exist"
        )

    async def update_local_policies(
        self, namespace: NamespaceName, change: Callable[[LocalPolicies], LocalPolicies]
    ) -> LocalPolicies:
        """What holds on this cluster only. Raises as `update_namespace`."""
        await self._check_writable()
        await self.require_namespace(namespace)
        return await self._records.change(
            paths.local_policies(namespace), LocalPolicies, change, missing=None
        )

    async def delete_namespace(self, namespace: NamespaceName) -> None:
        """Forget a namespace and what is said of its topics. Its topics must be gone. Raises NotFound."""
        await self._check_writable()
        await self.require_namespace(namespace, deleted_too=True)
        await self._records.delete_all(paths.namespace_topic_policies(namespace))
        await self._records.delete_all(f"{paths.PARTITIONED_TOPICS}/{namespace}")
        await self._records.delete(paths.namespace(namespace), "Namespace does not exist")
        await self._records.delete(paths.local_policies(namespace), missing=None)

    async def check_replication(self, tenant: TenantInfo, clusters: list[str]) -> None:
        """Raises NotPermitted: a cluster does not exist, or the tenant may not use it."""
        known = await self.clusters()
        for cluster in clusters:
            if cluster not in known:
                raise NotPermitted(f"Invalid cluster id: {cluster}")
            if cluster not in tenant.allowed_clusters:
                raise NotPermitted(
                    f"Cluster [{cluster}] is not in the list of allowed clusters list for tenant"
                )

    async def _policies(self, namespace: NamespaceName) -> Policies | None:
        return await self._records.get(paths.namespace(namespace), Policies)

    # Topics.

    async def partitions(self, topic: TopicName) -> int | None:
        """How many partitions a topic has; None if it is not partitioned."""
        metadata = await self.partitioned(topic)
        return None if metadata is None else metadata.partitions

    async def partitioned(self, topic: TopicName) -> PartitionedTopicMetadata | None:
        """The record of a partitioned topic."""
        return await self._records.get(paths.partitioned_topic(topic), PartitionedTopicMetadata)

    async def list_partitioned(self, namespace: NamespaceName, domain: str | None = None) -> list[TopicName]:
        """The partitioned topics of a namespace, of both domains unless one is named."""
        return [
            TopicName.parse(f"{each}://{namespace}/{paths.decoded_local(name)}")
            for each in ((domain,) if domain else ("persistent", "non-persistent"))
            for name in await self._records.names(paths.partitioned_topics(namespace, each))
        ]

    async def create_partitioned(
        self, topic: TopicName, partitions: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Record a partitioned topic.

        Raises:
            LimitExceeded: none, or more partitions than the platform allows.
            PreconditionFailed: the name looks like a partition's.
            Conflict: it exists.
        """
        checks.check_partitioned_name(topic)
        checks.check_partition_count(partitions, (await self.defaults()).max_partitions_per_topic)
        await self.require_namespace(topic.namespace_name)
        await self._records.create(
            paths.partitioned_topic(topic),
            PartitionedTopicMetadata(
                partitions=partitions, properties=dict(properties) if properties else None
            ),
            "This topic already exists",
        )

    async def update_partitions(self, topic: TopicName, partitions: int) -> int:
        """Let a partitioned topic grow. Returns how many partitions it had.

        Raises:
            LimitExceeded: fewer than there are, or more than the platform allows.
            NotFound: it is not partitioned.
        """
        checks.check_partitioned_name(topic)
        checks.check_partition_count(partitions, (await self.defaults()).max_partitions_per_topic)
        had = 0

        def grow(metadata: PartitionedTopicMetadata) -> PartitionedTopicMetadata:
            nonlocal had
            had = metadata.partitions
            return metadata.changed(partitions=checks.check_growth(had, partitions))

        await self._records.change(
            paths.partitioned_topic(topic),
            PartitionedTopicMetadata,
            grow,
            f"Topic is not partitioned topic: {topic}",
        )
        return had

    async def change_partitioned_properties(
        self, topic: TopicName, change: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> None:
        """Raises NotFound: it is not partitioned."""
        await self._records.change(
            paths.partitioned_topic(topic),
            PartitionedTopicMetadata,
            lambda metadata: metadata.changed(properties=dict(change(metadata.properties or {}))),
            f"Topic is not partitioned topic: {topic}",
        )

    async def delete_partitioned(self, topic: TopicName) -> None:
        """Forget that a topic is partitioned. Raises NotFound."""
        await self._records.delete(
            paths.partitioned_topic(topic), f"Partitioned Topic not found: {topic} has zero partitions"
        )

    # Topic policies.

    async def topic_policies(self, topic: TopicName, *, everywhere: bool = False) -> TopicPolicies:
        """What is said of a topic, here or on every cluster it is replicated to."""
        record = await self._records.get(paths.topic_policies(topic.base), TopicPoliciesRecord)
        if record is None:
            return TopicPolicies()
        return record.everywhere if everywhere else record.local

    async def update_topic_policies(
        self, topic: TopicName, change: Callable[[TopicPolicies], TopicPolicies], *, everywhere: bool = False
    ) -> None:
        """Raises Conflict (others keep changing it), NotPermitted, and what `change` raises."""
        await self._check_writable()

        def apply(record: TopicPoliciesRecord) -> TopicPoliciesRecord:
            if everywhere:
                return record.changed(everywhere=change(record.everywhere))
            return record.changed(local=change(record.local))

        await self._records.change(paths.topic_policies(topic.base), TopicPoliciesRecord, apply, missing=None)

    async def delete_topic_policies(self, topic: TopicName) -> None:
        """Forget what was said of a topic, if anything was."""
        await self._records.delete(paths.topic_policies(topic.base), missing=None)

    # What holds.

    async def defaults(self) -> PolicyDefaults:
        """The platform's defaults, with what has been changed while it runs."""
        dynamic = await self.dynamic_configuration()
        return dynamic.applied_to(self._defaults)

    async def effective(self, topic: TopicName) -> EffectivePolicies:
        """What holds for a topic. Raises NotFound: its tenant or namespace does not exist."""
        namespace = await self.require_namespace(topic.namespace_name)
        record = await self._records.get(paths.topic_policies(topic.base), TopicPoliciesRecord)
        record = record or TopicPoliciesRecord()
        here = await self.local_policies(topic.namespace_name)
        affinity = here.bookie_affinity_group if here else None
        return resolve(topic, namespace, record.local, record.everywhere, await self.defaults(), affinity)

    # The platform's own settings.

    async def dynamic_configuration(self) -> DynamicConfiguration:
        """What has been changed while the platform runs."""
        stored = await self._records.get(paths.CONFIGURATION, DynamicConfiguration)
        return stored or DynamicConfiguration()

    async def change_configuration(self, key: str, value: str | None) -> None:
        """Set a dynamic setting, or (None) go back to what the files say."""
        await self._records.change(
            paths.CONFIGURATION,
            DynamicConfiguration,
            lambda stored: stored.with_value(key, value),
            missing=None,
        )

    async def _check_writable(self) -> None:
        if await self._records.get(paths.READ_ONLY_FLAG, ReadOnlyFlag) is not None:
            raise NotPermitted("Policies are read-only: the metadata store holds " + paths.READ_ONLY_FLAG)


def _kept_for_ever() -> Policies:
    """For what workers store in topics: no default of the platform may take it from them."""
    return Policies(
        message_ttl_in_seconds=0,
        subscription_expiration_time_minutes=0,
        inactive_topic_policies=InactiveTopicPolicies(delete_while_inactive=False),
        backlog_quota_map={kind: BacklogQuota(policy=_HOLD) for kind in BacklogQuotaType},
    )


def bundles_asked_for(asked: BundlesData | None) -> BundlesData:
    """A namespace's bundles. Raises PreconditionFailed."""
    if asked is None or asked.num_bundles == 0:
        return BundlesData.even(DEFAULT_BUNDLES)
    if not 0 < asked.num_bundles <= BUNDLES_MAX:
        raise PreconditionFailed(f"Invalid number of bundles: choose 1 to {BUNDLES_MAX}")
    return BundlesData.even(asked.num_bundles)
