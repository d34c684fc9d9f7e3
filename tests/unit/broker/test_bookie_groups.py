"""The groups of bookies that a namespace is kept to reach the ledgers of its topics."""

from __future__ import annotations

from magnetar.broker.persistent_topic import ledger_config
from magnetar.broker.settings import BrokerSettings
from magnetar.ledger.groups import NO_GROUPS, BookieGroups
from magnetar.metadata.memory import MemoryEnsemble
from magnetar.naming import NamespaceName, TopicName
from magnetar.policies.effective import PolicyDefaults
from magnetar.policies.resources import Resources
from magnetar.policies.storage import BookieAffinity


async def test_a_namespaces_groups_hold_for_the_ledgers_of_its_topics() -> None:
    resources = Resources(MemoryEnsemble().connect(), PolicyDefaults())
    await resources.bootstrap("standalone", "http://localhost", "pulsar://localhost")
    topic = TopicName("persistent", "public", "default", "t")
    config = ledger_config(await resources.effective(topic), BrokerSettings())
    assert config.bookie_groups == NO_GROUPS
    affinity = BookieAffinity(
        bookkeeper_affinity_group_primary="left, middle", bookkeeper_affinity_group_secondary="right"
    )
    await resources.update_local_policies(
        NamespaceName("public", "default"), lambda said: said.changed(bookie_affinity_group=affinity)
    )
    config = ledger_config(await resources.effective(topic), BrokerSettings())
    assert config.bookie_groups == BookieGroups(("left", "middle"), ("right",))
    resources.close()
