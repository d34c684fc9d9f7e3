"""Each policy of a topic is set, read back and removed, and falls back to the namespace where asked."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests.unit.admin.conftest import Platform

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def http(shared: Platform) -> httpx.AsyncClient:
    return shared.http


@pytest.fixture
def topic(space: str) -> str:
    return f"/admin/v2/persistent/{space}/t"


# path, verb, body, what GET then says, what holds when nothing is said
CASES: list[tuple[str, str, Any, Any, Any]] = [
    ("retention", "POST", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 6}, None, {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    ("persistence", "POST", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 0.5}, None, {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 1, "bookkeeperAckQuorum": 1, "managedLedgerMaxMarkDeleteRate": 1.0}),
    ("maxProducers", "POST", 1, None, 0),
    ("maxConsumers", "POST", 2, None, 0),
    ("maxConsumersPerSubscription", "POST", 3, None, 0),
    ("maxSubscriptionsPerTopic", "POST", 4, None, 0),
    ("maxUnackedMessagesOnConsumer", "POST", 5, None, 50_000),
    ("maxUnackedMessagesOnSubscription", "POST", 6, None, 200_000),
    ("maxMessageSize", "POST", 2048, None, 0),
    ("delayedDelivery", "POST", {"tickTime": 5, "active": True, "maxDeliveryDelayInMillis": 9}, None, {"tickTime": 1000, "active": True, "maxDeliveryDelayInMillis": 0}),
    ("dispatchRate", "POST", {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 2, "relativeToPublishRate": True, "ratePeriodInSecond": 3}, None, {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}),
    ("subscriptionDispatchRate", "POST", {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 2, "relativeToPublishRate": True, "ratePeriodInSecond": 3}, None, {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}),
    ("replicatorDispatchRate", "POST", {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 2, "relativeToPublishRate": True, "ratePeriodInSecond": 3}, None, {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}),
    ("publishRate", "POST", {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": 2}, None, {"publishThrottlingRateInMsg": -1, "publishThrottlingRateInByte": -1}),
    ("subscribeRate", "POST", {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 2}, None, {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 30}),
    ("deduplicationEnabled", "POST", True, None, False),
    ("deduplicationSnapshotInterval", "POST", 7, None, 120),
    ("compactionThreshold", "POST", 8, None, 0),
    ("inactiveTopicPolicies", "POST", {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 3, "deleteWhileInactive": True}, None, {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 60, "deleteWhileInactive": True}),
    ("replication", "POST", ["standalone"], None, ["standalone"]),
    ("offloadPolicies", "POST", {"managedLedgerOffloadDriver": "x"}, None, None),
    ("schemaCompatibilityStrategy", "PUT", "BACKWARD", None, "FULL"),
    ("schemaValidationEnforced", "POST", True, None, False),
    ("autoSubscriptionCreation", "POST", {"allowAutoSubscriptionCreation": False}, None, {"allowAutoSubscriptionCreation": True}),
    ("subscriptionTypesEnabled", "POST", ["Shared"], None, ["Exclusive", "Shared", "Failover", "Key_Shared"]),
    ("dispatcherPauseOnAckStatePersistent", "POST", True, None, False),
    ("s1/dispatchRate", "POST", {"dispatchThrottlingRateInMsg": 1, "dispatchThrottlingRateInByte": 2, "relativeToPublishRate": True, "ratePeriodInSecond": 3}, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "verb", "body", "told", "holds"), CASES, ids=[case[0] for case in CASES])
async def test_set_get_remove(
    http: httpx.AsyncClient, topic: str, path: str, verb: str, body: Any, told: Any, holds: Any
) -> None:
    await http.put(topic)
    url = f"{topic}/{path}"
    unset = await http.get(url)
    assert (unset.status_code, unset.content) == (204, b"")
    applied = await http.get(f"{url}?applied=true")
    assert (applied.json() if applied.content else None) == holds
    answer = await http.request(verb, url, json=body)
    assert (answer.status_code, answer.content) == (204, b"")
    assert (await http.get(url)).json() == (body if told is None else told)
    if holds is not None:
        assert (await http.get(f"{url}?applied=true")).json() == (
            body if path != "dispatcherPauseOnAckStatePersistent" else False
        )
    assert (await http.delete(url)).status_code == 204
    assert (await http.get(url)).status_code == 204


async def test_message_ttl_is_in_the_query(http: httpx.AsyncClient, topic: str) -> None:
    await http.put(topic)
    assert (await http.post(f"{topic}/messageTTL?messageTTL=100")).status_code == 204
    assert (await http.get(f"{topic}/messageTTL")).json() == 100
    assert (await http.post(f"{topic}/messageTTL?messageTTL=-1")).status_code == 412
    assert (await http.delete(f"{topic}/messageTTL?messageTTL=0")).status_code == 204
    assert (await http.get(f"{topic}/messageTTL")).status_code == 204


async def test_the_namespace_holds_where_the_topic_is_silent(
    http: httpx.AsyncClient, space: str, topic: str
) -> None:
    await http.put(topic)
    await http.post(f"/admin/v2/namespaces/{space}/maxProducersPerTopic", json=7)
    url = f"{topic}/maxProducers"
    assert (await http.get(url)).status_code == 204
    assert (await http.get(f"{url}?applied=true")).json() == 7
    await http.post(f"{url}?isGlobal=true", json=8)
    assert (await http.get(f"{url}?applied=true")).json() == 8
    await http.post(url, json=9)
    assert (await http.get(f"{url}?applied=true")).json() == 9
    assert (await http.get(f"{url}?isGlobal=true")).json() == 8
    await http.delete(url)
    assert (await http.get(f"{url}?applied=true")).json() == 8


async def test_partitions_share_what_is_said_of_their_topic(http: httpx.AsyncClient, topic: str) -> None:
    await http.put(f"{topic}/partitions", content="2")
    assert (await http.post(f"{topic}/maxConsumers", json=3)).status_code == 204
    assert (await http.get(f"{topic}-partition-1/maxConsumers")).json() == 3


async def test_backlog_quotas(http: httpx.AsyncClient, topic: str) -> None:
    await http.put(topic)
    assert (await http.get(f"{topic}/backlogQuotaMap")).json() == {}
    quota = {"limit": "5", "policy": "producer_exception"}
    assert (await http.post(f"{topic}/backlogQuota", json=quota)).status_code == 204
    told = (await http.get(f"{topic}/backlogQuotaMap")).json()
    assert told["destination_storage"]["limitSize"] == 5
    applied = (await http.get(f"{topic}/backlogQuotaMap?applied=true")).json()
    assert set(applied) == {"destination_storage", "message_age"}
    assert (await http.delete(f"{topic}/backlogQuota")).status_code == 204
    assert (await http.get(f"{topic}/backlogQuotaMap")).json() == {}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("maxProducers", -1, 412),
        ("maxMessageSize", 2**30, 412),
        ("maxMessageSize", -1, 412),
        ("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 0}, 412),
        ("persistence", {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 1}, 400),
        ("deduplicationEnabled", "yes", 400),
        ("replication", "standalone", 400),
        ("subscriptionTypesEnabled", ["Sharing"], 400),
    ],
)
async def test_what_makes_no_sense_is_refused(
    http: httpx.AsyncClient, topic: str, path: str, body: Any, status: int
) -> None:
    await http.put(topic)
    answer = await http.post(f"{topic}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert (await http.get(f"{topic}/{path}")).status_code == 204


async def test_topics_that_are_not_there_have_none(http: httpx.AsyncClient, topic: str) -> None:
    assert (await http.get(f"{topic}/retention")).status_code == 404
    assert (await http.post(f"{topic}/retention", json={})).status_code == 404
    assert (await http.get(f"{topic.replace('persistent', 'non-persistent')}/retention")).status_code == 405
    refused = (await http.get("/admin/v2/persistent/public/nothing/t/retention")).json()
    assert (refused["reason"], refused["code"]) == ("Namespace does not exist", "not_found")


async def test_what_is_set_is_enforced_on_topics_that_are_loaded(
    shared: Platform, space: str, topic: str
) -> None:
    """Deduplication turned on over HTTP is on in the topic soon after."""
    http = shared.http
    await shared.publish(f"{space}/t", b"x")
    assert (await http.get(f"{topic}/stats")).json()["deduplicationStatus"] == "Disabled"
    await http.post(f"{topic}/deduplicationEnabled", json=True)
    async with asyncio.timeout(10):
        while (await http.get(f"{topic}/stats")).json()["deduplicationStatus"] != "Enabled":
            pass
    await http.delete(topic)
    await http.put(topic)
    assert (await http.get(f"{topic}/stats")).json()["deduplicationStatus"] == "Disabled", (
        "policies went with it"
    )


async def test_setting_the_pause_without_a_body_means_yes(http: httpx.AsyncClient, topic: str) -> None:
    """So do Java's clients."""
    await http.put(topic)
    url = f"{topic}/dispatcherPauseOnAckStatePersistent"
    assert (await http.post(url)).status_code == 204
    assert (await http.get(url)).json() is True
