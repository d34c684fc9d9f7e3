"""Resources: what exists, kept by compare-and-set, remembered until told otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.metadata.memory import MemoryEnsemble, MemoryStore
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies import paths
from magnetar.policies.cluster import ClusterData
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.errors import (
    BadValue,
    Conflict,
    LimitExceeded,
    NewerFormat,
    NotFound,
    NotPermitted,
    PreconditionFailed,
)
from magnetar.policies.namespace import BundlesData, Policies
from magnetar.policies.resources import Resources, Subject
from magnetar.policies.tenant import TenantInfo

SPACE = NamespaceName("public", "default")
TOPIC = TopicName.parse("persistent://public/default/topic")


@pytest.fixture
def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
async def store(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryStore]:
    store = ensemble.connect()
    yield store
    await store.close()


@pytest.fixture
async def resources(store: MemoryStore) -> AsyncIterator[Resources]:
    resources = Resources(store)
    await resources.bootstrap("standalone", "http://here:8080", "pulsar://here:6650")
    yield resources
    resources.close()


async def told(condition: Callable[[], bool]) -> None:
    """Wait until the store's notifications have come so far."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # It is the loop's turns that bring them.
            await asyncio.sleep(0)


async def test_bootstrap_changes_nothing_but_addresses_the_second_time(resources: Resources) -> None:
    await resources.update_namespace(SPACE, lambda said: said.changed(message_ttl_in_seconds=5))
    await resources.bootstrap("standalone", "http://here:9090", "pulsar://here:7750")
    assert await resources.clusters() == ["standalone"]
    cluster = await resources.cluster("standalone")
    assert cluster is not None
    assert (cluster.service_url, cluster.broker_service_url) == ("http://here:9090", "pulsar://here:7750")
    assert await resources.tenants() == ["public", "pulsar"]
    assert await resources.namespaces("public") == [SPACE, NamespaceName("public", "functions")]
    policies = await resources.namespace_policies(SPACE)
    assert policies is not None
    assert policies.message_ttl_in_seconds == 5
    assert policies.replication_clusters == ["standalone"]
    assert policies.bundles == BundlesData.even(4)


async def test_unknown_tenants_are_told_before_namespaces(resources: Resources) -> None:
    with pytest.raises(NotFound, match="Tenant does not exist"):
        await resources.require_namespace(NamespaceName("nobody", "nothing"))
    with pytest.raises(NotFound, match="Namespace does not exist"):
        await resources.effective(TopicName.parse("persistent://public/nothing/t"))
    with pytest.raises(NotFound, match="Tenant"):
        await resources.create_namespace(NamespaceName("nobody", "x"), Policies())
    with pytest.raises(NotFound):
        await resources.update_tenant("nobody", TenantInfo(allowed_clusters=["standalone"]))
    with pytest.raises(NotFound):
        await resources.update_cluster("nowhere", lambda data: data)


async def test_limits_of_tenants_and_namespaces(store: MemoryStore) -> None:
    resources = Resources(store, PolicyDefaults(max_tenants=3, max_namespaces_per_tenant=3))
    await resources.bootstrap("standalone", "", "")
    info = TenantInfo(allowed_clusters=["standalone"])
    await resources.create_tenant("third", info)
    with pytest.raises(PreconditionFailed, match="maximum number of tenants"):
        await resources.create_tenant("fourth", info)
    await resources.create_namespace(NamespaceName("public", "third"), Policies())
    with pytest.raises(PreconditionFailed, match="maximum number of namespace"):
        await resources.create_namespace(NamespaceName("public", "fourth"), Policies())
    with pytest.raises(Conflict):
        await resources.create_namespace(SPACE, Policies())
    resources.close()


async def test_clusters_hold_on_to_their_namespaces(resources: Resources) -> None:
    await resources.create_cluster("east", ClusterData())
    with pytest.raises(NotPermitted, match="allowed clusters"):
        await resources.create_namespace(
            NamespaceName("public", "e"), Policies(replication_clusters=["east"])
        )
    await resources.update_tenant("public", TenantInfo(allowed_clusters=["standalone", "east"]))
    await resources.create_namespace(NamespaceName("public", "e"), Policies(replication_clusters=["east"]))
    with pytest.raises(PreconditionFailed, match="not empty"):
        await resources.delete_cluster("east")
    with pytest.raises(Conflict, match="active namespaces"):
        await resources.update_tenant("public", TenantInfo(allowed_clusters=["standalone"]))
    await resources.delete_namespace(NamespaceName("public", "e"))
    await resources.delete_cluster("east")
    assert await resources.clusters() == ["standalone"]


async def test_partitioned_topics(resources: Resources) -> None:
    assert await resources.partitions(TOPIC) is None
    for number, error in (
        (0, LimitExceeded),
        (-1, LimitExceeded),
        (1025, LimitExceeded),
        (10**9, LimitExceeded),
    ):
        with pytest.raises(error):
            await resources.create_partitioned(TOPIC, number)
    with pytest.raises(PreconditionFailed):
        await resources.create_partitioned(TOPIC.partition_name(0), 1)
    odd = TopicName.parse("persistent://public/default/..")
    await resources.create_partitioned(TOPIC, 3, {"a": "b"})
    await resources.create_partitioned(odd, 1024)
    with pytest.raises(Conflict):
        await resources.create_partitioned(TOPIC, 3)
    assert await resources.list_partitioned(SPACE) == [odd, TOPIC]
    assert await resources.update_partitions(TOPIC, 5) == 3
    assert await resources.update_partitions(TOPIC, 5) == 5
    with pytest.raises(LimitExceeded, match="never removed"):
        await resources.update_partitions(TOPIC, 4)
    metadata = await resources.partitioned(TOPIC)
    assert metadata is not None
    assert (metadata.partitions, metadata.properties) == (5, {"a": "b"})
    await resources.delete_partitioned(TOPIC)
    assert await resources.partitions(TOPIC) is None
    with pytest.raises(NotFound):
        await resources.update_partitions(TOPIC, 6)
    with pytest.raises(NotFound):
        await resources.delete_partitioned(TOPIC)


async def test_the_limit_of_partitions_can_be_changed_while_it_runs(resources: Resources) -> None:
    await resources.change_configuration("maxNumPartitionsPerPartitionedTopic", "2")
    with pytest.raises(LimitExceeded):
        await resources.create_partitioned(TOPIC, 3)
    await resources.change_configuration("maxNumPartitionsPerPartitionedTopic", "0")
    await resources.create_partitioned(TOPIC, 100_000)
    await resources.change_configuration("maxNumPartitionsPerPartitionedTopic", "nonsense")
    assert (await resources.defaults()).max_partitions_per_topic == 1024


async def test_changes_made_elsewhere_are_seen(ensemble: MemoryEnsemble, resources: Resources) -> None:
    """Two brokers, one metadata store."""
    heard: list[Subject] = []
    resources.on_change(heard.append)
    other_store = ensemble.connect()
    other = Resources(other_store)
    assert (await resources.effective(TOPIC)).max_producers_per_topic == 0
    await other.update_namespace(SPACE, lambda said: said.changed(max_producers_per_topic=7))
    await told(lambda: SPACE in heard)
    assert (await resources.effective(TOPIC)).max_producers_per_topic == 7
    await other.update_topic_policies(
        TOPIC.partition_name(3), lambda own: own.changed(max_producer_per_topic=8)
    )
    await told(lambda: TOPIC in heard)
    assert (await resources.effective(TOPIC)).max_producers_per_topic == 8
    await other.change_configuration("maxConsumersPerTopic", "9")
    await told(lambda: None in heard)
    assert (await resources.effective(TOPIC)).max_consumers_per_topic == 9
    await other.create_tenant("new", TenantInfo(allowed_clusters=["standalone"]))
    async with asyncio.timeout(5):
        while "new" not in await resources.tenants():  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert heard.count(None) == 1, "a tenant's record concerns no topic"
    other.close()
    await other_store.close()


async def test_a_lost_session_makes_everything_doubtful(store: MemoryStore, resources: Resources) -> None:
    heard: list[Subject] = []
    await resources.effective(TOPIC)
    resources.on_change(heard.append)
    store.expire()
    assert None in heard
    assert (await resources.effective(TOPIC)).max_producers_per_topic == 0


async def test_concurrent_changes_all_take_effect(resources: Resources) -> None:

    async def add(name: str) -> None:
        await resources.update_namespace(
            SPACE, lambda said: said.changed(properties={**said.properties, name: ""})
        )

    await asyncio.gather(*(add(str(n)) for n in range(10)))
    policies = await resources.namespace_policies(SPACE)
    assert policies is not None
    assert set(policies.properties) == {str(n) for n in range(10)}


async def test_what_others_have_written_is_read(store: MemoryStore, resources: Resources) -> None:
    """Records of Pulsar's have no version of ours."""
    await store.put(
        "/admin/policies/public/imported", b'{"message_ttl_in_seconds": 9, "lease": null, "x": 1}'
    )
    assert (await resources.effective(TopicName.parse("public/imported/t"))).message_ttl_s == 9
    await store.put("/admin/policies/public/newer", b'{"version": 2, "message_ttl_in_seconds": 9}')
    with pytest.raises(NewerFormat, match="upgrade"):
        await resources.effective(TopicName.parse("public/newer/t"))
    for value in (b"{", b"[]", b"\xff"):
        await store.put("/admin/policies/public/damaged", value)
        resources.records.forget("/admin/policies/public/damaged")
        with pytest.raises(BadValue, match="damaged"):
            await resources.effective(TopicName.parse("public/damaged/t"))


def test_paths_tell_whom_they_concern() -> None:
    for text in ("persistent://t/n/a b", "persistent://t/n/..", "non-persistent://t/n/ü%2F"):
        topic = TopicName.parse(text)
        assert paths.subject(paths.topic_policies(topic)) == topic
        assert paths.subject(paths.partitioned_topic(topic)) == topic
    assert paths.subject(paths.namespace(SPACE)) == SPACE
    assert paths.subject(paths.local_policies(SPACE)) == SPACE
    assert paths.subject("/admin/clusters/x") is None
    assert paths.subject("") is None
