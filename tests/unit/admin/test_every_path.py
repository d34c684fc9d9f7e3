"""Every path that Pulsar's clients and tools know of is served, or refused with a status that says why."""

from __future__ import annotations

import pytest

from magnetar.admin.errors import Refused
from magnetar.admin.routes import all_routes
from magnetar.admin.routing import Table
from tests.unit.admin.conftest import Platform

C, T, N = "/admin/v2/clusters", "/admin/v2/tenants", "/admin/v2/namespaces"
NS = f"{N}/public/default"
D = "/admin/v2/persistent/public/default"
P, S = f"{D}/x", f"{D}/x/subscription/s"
SC, B, BS = "/admin/v2/schemas/public/default/x", "/admin/v2/brokers", "/admin/v2/broker-stats"
X = "/admin/v3/transactions"
BUNDLE = "0x00000000_0x40000000"

SET = "GET POST DELETE"
OF_NAMESPACES = [
    "retention",
    "messageTTL",
    "deduplication",
    "maxProducersPerTopic",
    "maxConsumersPerTopic",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesPerConsumer",
    "maxUnackedMessagesPerSubscription",
    "maxTopicsPerNamespace",
    "subscriptionExpirationTime",
    "persistence",
    "persistence/bookieAffinity",
    "autoTopicCreation",
    "autoSubscriptionCreation",
    "dispatchRate",
    "subscriptionDispatchRate",
    "replicatorDispatchRate",
    "publishRate",
    "subscribeRate",
    "delayedDelivery",
    "inactiveTopicPolicies",
    "subscriptionTypesEnabled",
    "antiAffinity",
    "entryFilters",
    "dispatcherPauseOnAckStatePersistent",
]
OF_TOPICS = [
    "messageTTL",
    "retention",
    "persistence",
    "maxProducers",
    "maxConsumers",
    "maxConsumersPerSubscription",
    "maxSubscriptionsPerTopic",
    "maxUnackedMessagesOnConsumer",
    "maxUnackedMessagesOnSubscription",
    "maxMessageSize",
    "delayedDelivery",
    "dispatchRate",
    "subscriptionDispatchRate",
    "s/dispatchRate",
    "replicatorDispatchRate",
    "publishRate",
    "subscribeRate",
    "deduplicationEnabled",
    "deduplicationSnapshotInterval",
    "compactionThreshold",
    "inactiveTopicPolicies",
    "replication",
    "offloadPolicies",
    "schemaValidationEnforced",
    "autoSubscriptionCreation",
    "subscriptionTypesEnabled",
    "entryFilters",
    "dispatcherPauseOnAckStatePersistent",
]

PATHS: dict[str, str] = {
    C: "GET",
    f"{C}/c": "PUT GET POST DELETE",
    f"{C}/c/migrate": "POST GET",
    f"{C}/c/peers": "GET POST",
    f"{C}/c/failureDomains": "GET",
    f"{C}/c/failureDomains/d": SET,
    f"{C}/c/namespaceIsolationPolicies": "GET",
    f"{C}/c/namespaceIsolationPolicies/p": SET,
    f"{C}/c/namespaceIsolationPolicies/brokers": "GET",
    f"{C}/c/namespaceIsolationPolicies/brokers/b": "GET",
    T: "GET",
    f"{T}/t": "GET PUT POST DELETE",
    f"{N}/public": "GET",
    NS: "GET PUT DELETE",
    f"{NS}/topics": "GET",
    f"{NS}/{BUNDLE}": "DELETE",
    f"{NS}/bundles": "GET",
    f"{NS}/unload": "PUT",
    f"{NS}/{BUNDLE}/unload": "PUT",
    f"{NS}/{BUNDLE}/split": "PUT",
    f"{NS}/{BUNDLE}/topicHashPositions": "GET",
    f"{N}/c/antiAffinity/g": "GET",
    f"{NS}/permissions": "GET",
    f"{NS}/permissions/r": "POST DELETE",
    f"{NS}/permissions/subscription": "GET",
    f"{NS}/permissions/subscription/s": "POST",
    f"{NS}/permissions/s/r": "DELETE",
    **{f"{NS}/{policy}": SET for policy in OF_NAMESPACES},
    f"{NS}/backlogQuotaMap": "GET",
    f"{NS}/backlogQuota": "POST DELETE",
    f"{NS}/schemaCompatibilityStrategy": "GET PUT",
    f"{NS}/schemaAutoUpdateCompatibilityStrategy": "GET PUT",
    f"{NS}/schemaValidationEnforced": "GET POST",
    f"{NS}/isAllowAutoUpdateSchema": "GET POST",
    f"{NS}/properties": "GET PUT DELETE",
    f"{NS}/property/k": "GET DELETE",
    f"{NS}/property/k/v": "PUT",
    f"{NS}/replication": "GET POST",
    f"{NS}/allowedClusters": "GET POST",
    f"{NS}/compactionThreshold": "GET PUT DELETE",
    f"{NS}/offloadThreshold": "GET PUT",
    f"{NS}/offloadThresholdInSeconds": "GET PUT",
    f"{NS}/offloadDeletionLagMs": "GET PUT DELETE",
    f"{NS}/offloadPolicies": "GET POST",
    f"{NS}/removeOffloadPolicies": "DELETE",
    f"{NS}/scanOffloadedLedgers": "GET",
    f"{NS}/encryptionRequired": "GET POST",
    f"{NS}/subscriptionAuthMode": "GET POST",
    f"{NS}/resourcegroup": "GET DELETE",
    f"{NS}/resourcegroup/g": "POST",
    f"{NS}/deduplicationSnapshotInterval": "GET POST",
    f"{NS}/migration": "POST",
    f"{NS}/clearBacklog": "POST",
    f"{NS}/clearBacklog/s": "POST",
    f"{NS}/{BUNDLE}/clearBacklog": "POST",
    f"{NS}/{BUNDLE}/clearBacklog/s": "POST",
    f"{NS}/unsubscribe/s": "POST",
    f"{NS}/{BUNDLE}/unsubscribe/s": "POST",
    D: "GET",
    f"{D}/partitioned": "GET",
    f"{D}/{BUNDLE}": "GET",
    P: "PUT DELETE",
    f"{P}/partitions": "PUT POST GET DELETE",
    f"{P}/stats": "GET",
    f"{P}/partitioned-stats": "GET",
    f"{P}/internalStats": "GET",
    f"{P}/partitioned-internalStats": "GET",
    f"{P}/internal-info": "GET",
    f"{P}/lastMessageId": "GET",
    f"{P}/messageid/1": "GET",
    f"{P}/backlog": "GET",
    f"{P}/backlogSize": "PUT",
    f"{P}/subscriptions": "GET",
    f"{P}/ledger/1/entry/1": "GET",
    f"{P}/examinemessage": "GET",
    f"{P}/properties": "GET PUT DELETE",
    f"{P}/unload": "PUT",
    f"{P}/terminate": "POST",
    f"{P}/terminate/partitions": "POST",
    f"{P}/compaction": "GET PUT",
    f"{P}/offload": "GET PUT",
    f"{P}/truncate": "DELETE",
    f"{P}/trim": "POST",
    f"{P}/createMissedPartitions": "POST",
    f"{P}/permissions": "GET",
    f"{P}/permissions/r": "POST DELETE",
    S: "PUT DELETE",
    f"{S}/properties": "GET PUT",
    f"{S}/resetcursor/1": "POST",
    f"{S}/resetcursor": "POST",
    f"{S}/skip_all": "POST",
    f"{S}/skip/1": "POST",
    f"{S}/skipByMessageIds": "POST",
    f"{S}/expireMessages/1": "POST",
    f"{S}/expireMessages": "POST",
    f"{P}/all_subscription/expireMessages/1": "POST",
    f"{S}/position/1": "GET",
    f"{S}/analyzeBacklog": "POST",
    f"{S}/replicatedSubscriptionStatus": "GET POST",
    **{f"{P}/{policy}": SET for policy in OF_TOPICS},
    f"{P}/backlogQuotaMap": "GET",
    f"{P}/backlogQuota": "POST DELETE",
    f"{P}/schemaCompatibilityStrategy": "GET PUT DELETE",
    f"{P}/shadowTopics": "GET PUT DELETE",
    f"{P}/policies": "DELETE",
    f"{SC}/schema": SET,
    f"{SC}/schema/0": "GET",
    f"{SC}/schemas": "GET",
    f"{SC}/compatibility": "POST",
    f"{SC}/version": "POST",
    f"{SC}/metadata": "GET",
    B: "GET",
    f"{B}/c": "GET",
    f"{B}/leaderBroker": "GET",
    f"{B}/c/b:1/ownedNamespaces": "GET",
    f"{B}/configuration": "GET",
    f"{B}/configuration/": "GET",
    f"{B}/configuration/values": "GET",
    f"{B}/configuration/runtime": "GET",
    f"{B}/configuration/k/v": "POST",
    f"{B}/configuration/k": "DELETE",
    f"{B}/internal-configuration": "GET",
    f"{B}/health": "GET",
    f"{B}/ready": "GET",
    f"{B}/version": "GET",
    f"{B}/backlog-quota-check": "GET",
    f"{B}/shutdown": "POST",
    f"{BS}/metrics": "GET",
    f"{BS}/mbeans": "GET",
    f"{BS}/topics": "GET",
    f"{BS}/load-report": "GET",
    f"{BS}/allocator-stats/default": "GET",
    f"{BS}/allocator-stats/ml-cache": "GET",
    f"{BS}/bookieops": "GET",
    f"{BS}/broker-resource-availability/public/default": "GET",
    "/admin/v2/resource-quotas": "GET POST",
    f"/admin/v2/resource-quotas/public/default/{BUNDLE}": SET,
    "/admin/v2/resourcegroups": "GET",
    "/admin/v2/resourcegroups/g": "GET PUT DELETE",
    "/admin/v2/bookies/all": "GET",
    "/admin/v2/bookies/racks-info": "GET",
    "/admin/v2/bookies/racks-info/b:1": SET,
    f"{X}/transactionMetadata/1/2": "GET",
    f"{X}/coordinatorStats": "GET",
    f"{X}/transactionInBufferStats/public/default/x/1/2": "GET",
    f"{X}/transactionInPendingAckStats/public/default/x/s/1/2": "GET",
    f"{X}/transactionBufferStats/public/default/x": "GET",
    f"{X}/pendingAckStats/public/default/x/s": "GET",
    f"{X}/slowTransactions/1": "GET",
    f"{X}/coordinatorInternalStats/0": "GET",
    f"{X}/pendingAckInternalStats/public/default/x/s": "GET",
    f"{X}/coordinators": "GET",
    f"{X}/abortTransaction/1/2": "POST",
    f"{X}/transactionCoordinator/replicas": "POST",
    "/admin/v3/packages/function/public/default": "GET",
    "/lookup/v2/topic/persistent/public/default/x": "GET",
    "/lookup/v2/topic/persistent/public/default/x/bundle": "GET",
    "/metrics": "GET",
    "/metrics/": "GET",
    "/status.html": "GET",
}
ROWS = [(method, path) for path, methods in PATHS.items() for method in methods.split()]
NOT_HERE = ("There is nothing at", "is not possible here, only")


def test_a_row_stands_for_each() -> None:
    table = Table(all_routes())
    missing = []
    for method, path in ROWS:
        try:
            found = table.match(method, path)
        except Refused as refused:
            missing.append(f"{method} {path}: {refused}")
        else:
            if found is None:
                missing.append(f"{method} {path}")
    assert not missing
    assert len(ROWS) > 380, "the table has shrunk"


@pytest.mark.parametrize("topic_is_there", [True, False])
async def test_whatever_is_asked_without_a_body_is_answered_as_one_knows_it(
    platform: Platform, topic_is_there: bool
) -> None:
    """Most of these are refused for want of something; none by a fault of ours, and all with reason and code."""
    if topic_is_there:
        assert (await platform.http.put(f"{S}")).status_code == 204
    for method, path in ROWS:
        if method == "DELETE" and path in (NS, P):
            continue  # What comes after them is to be asked of something.
        answer = await platform.http.request(method, path)
        assert answer.status_code != 500, (method, path, answer.text)
        if answer.status_code >= 400:
            told = answer.json()
            assert told["reason"], (method, path, told)
            assert told["code"], (method, path, told)
            assert not any(each in told["reason"] for each in NOT_HERE), (method, path, told)
