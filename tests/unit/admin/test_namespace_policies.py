"""Each policy of a namespace is set, read back and removed; what cannot be is refused as clients expect."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.unit.admin.conftest import Platform

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def http(shared: Platform) -> httpx.AsyncClient:
    return shared.http


@pytest.fixture
def base(space: str) -> str:
    return f"/admin/v2/namespaces/{space}"


EMPTY = object()
OVERRIDE = "Invalid configuration for autoTopicCreationOverride. the detail is"

# path, verb to set, body, what GET then says, what GET says when nothing is set, can be removed
CASES: list[tuple[str, str, Any, Any, Any, bool]] = [
    ("retention", "POST", {"retentionTimeInMinutes": "10", "retentionSizeInMB": 20}, {"retentionTimeInMinutes": 10, "retentionSizeInMB": 20}, EMPTY, True),
    ("messageTTL", "POST", "60", 60, EMPTY, True),
    ("deduplication", "POST", "true", True, EMPTY, True),
    ("maxProducersPerTopic", "POST", 1, 1, EMPTY, True),
    ("maxConsumersPerTopic", "POST", 2, 2, EMPTY, True),
    ("maxConsumersPerSubscription", "POST", 3, 3, EMPTY, True),
    ("maxSubscriptionsPerTopic", "POST", 4, 4, EMPTY, True),
    ("maxUnackedMessagesPerConsumer", "POST", 5, 5, EMPTY, True),
    ("maxUnackedMessagesPerSubscription", "POST", 6, 6, EMPTY, True),
    ("maxTopicsPerNamespace", "POST", 7, 7, EMPTY, True),
    ("subscriptionExpirationTime", "POST", 8, 8, EMPTY, True),
    ("persistence", "POST", {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": 1.5}, {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2, "managedLedgerMaxMarkDeleteRate": 1.5}, EMPTY, True),
    ("persistence/bookieAffinity", "POST", {"bookkeeperAffinityGroupPrimary": "a"}, {"bookkeeperAffinityGroupPrimary": "a"}, EMPTY, True),
    ("autoTopicCreation", "POST", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}, EMPTY, True),
    ("autoSubscriptionCreation", "POST", {"allowAutoSubscriptionCreation": True}, {"allowAutoSubscriptionCreation": True}, EMPTY, True),
    ("schemaCompatibilityStrategy", "PUT", "FORWARD", "FORWARD", "UNDEFINED", False),
    ("schemaAutoUpdateCompatibilityStrategy", "PUT", "Backward", "Backward", EMPTY, False),
    ("schemaValidationEnforced", "POST", "true", True, False, False),
    ("isAllowAutoUpdateSchema", "POST", False, False, True, False),
    ("replication", "POST", ["standalone"], ["standalone"], ["standalone"], False),
    ("allowedClusters", "POST", ["standalone"], ["standalone"], [], False),
    ("dispatchRate", "POST", {"dispatchThrottlingRateInMsg": 5}, {"dispatchThrottlingRateInMsg": 5, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": False, "ratePeriodInSecond": 1}, EMPTY, True),
    ("subscriptionDispatchRate", "POST", {"dispatchThrottlingRateInByte": "9", "ratePeriodInSecond": 2}, {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": 9, "relativeToPublishRate": False, "ratePeriodInSecond": 2}, EMPTY, True),
    ("replicatorDispatchRate", "POST", {"relativeToPublishRate": True}, {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": -1, "relativeToPublishRate": True, "ratePeriodInSecond": 1}, EMPTY, True),
    ("publishRate", "POST", {"publishThrottlingRateInMsg": 10}, {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": -1}, EMPTY, True),
    ("subscribeRate", "POST", {"subscribeThrottlingRatePerConsumer": 1}, {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 30}, EMPTY, True),
    ("delayedDelivery", "POST", {"tickTime": 500, "active": False}, {"tickTime": 500, "active": False, "maxDeliveryDelayInMillis": 0}, EMPTY, True),
    ("inactiveTopicPolicies", "POST", {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 9, "deleteWhileInactive": True}, {"inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up", "maxInactiveDurationSeconds": 9, "deleteWhileInactive": True}, EMPTY, True),
    ("compactionThreshold", "PUT", 100, 100, EMPTY, True),
    ("offloadThreshold", "PUT", 100, 100, -1, False),
    ("offloadThresholdInSeconds", "PUT", 100, 100, -1, False),
    ("offloadDeletionLagMs", "PUT", 100, 100, EMPTY, True),
    ("offloadPolicies", "POST", {"managedLedgerOffloadDriver": "s3", "s3ManagedLedgerOffloadBucket": "b"}, {"managedLedgerOffloadDriver": "s3", "s3ManagedLedgerOffloadBucket": "b"}, EMPTY, False),
    ("encryptionRequired", "POST", "true", True, False, False),
    ("subscriptionAuthMode", "POST", "Prefix", "Prefix", "None", False),
    ("subscriptionTypesEnabled", "POST", ["Shared", "Key_Shared"], ["Shared", "Key_Shared"], [], True),
    ("antiAffinity", "POST", "group", "group", EMPTY, True),
    ("deduplicationSnapshotInterval", "POST", 10, 10, EMPTY, True),
    ("dispatcherPauseOnAckStatePersistent", "POST", True, True, False, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "verb", "body", "told", "unset", "removable"), CASES, ids=[case[0] for case in CASES]
)
async def test_set_get_remove(
    http: httpx.AsyncClient,
    base: str,
    path: str,
    verb: str,
    body: Any,
    told: Any,
    unset: Any,
    removable: bool,
) -> None:
    url = f"{base}/{path}"

    async def read() -> Any:
        answer = await http.get(url)
        if unset is EMPTY and answer.status_code == 204:
            assert answer.content == b""
            return EMPTY
        assert answer.status_code == 200
        return answer.json()

    assert await read() == unset
    answer = await http.request(verb, url, json=body)
    assert (answer.status_code, answer.content) == (204, b"")
    assert await read() == told
    if removable:
        assert (await http.delete(url)).status_code == 204
        assert await read() == unset


async def test_null_says_nothing_any_more(http: httpx.AsyncClient, base: str) -> None:
    await http.post(f"{base}/messageTTL", json=5)
    assert (await http.post(f"{base}/messageTTL", content=b"null")).status_code == 204
    assert (await http.get(f"{base}/messageTTL")).status_code == 204


async def test_offload_policies_are_removed_by_another_name(http: httpx.AsyncClient, base: str) -> None:
    await http.post(f"{base}/offloadPolicies", json={"managedLedgerOffloadDriver": "s3"})
    assert (await http.delete(f"{base}/removeOffloadPolicies")).status_code == 204
    assert (await http.get(f"{base}/offloadPolicies")).status_code == 204


async def test_backlog_quotas_as_go_sends_them(http: httpx.AsyncClient, base: str) -> None:
    assert (await http.get(f"{base}/backlogQuotaMap")).json() == {}
    quota = {"limit": "10240", "policy": "producer_request_hold"}
    assert (await http.post(f"{base}/backlogQuota", json=quota)).status_code == 204
    age = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
    assert (await http.post(f"{base}/backlogQuota?backlogQuotaType=message_age", json=age)).status_code == 204
    told = (await http.get(f"{base}/backlogQuotaMap")).json()
    assert told["destination_storage"]["limitSize"] == 10240
    assert told["destination_storage"]["limit"] == 10240
    assert told["message_age"]["limitTime"] == 60
    assert (await http.delete(f"{base}/backlogQuota")).status_code == 204
    assert list((await http.get(f"{base}/backlogQuotaMap")).json()) == ["message_age"]
    both = (await http.get(f"{base}/backlogQuotaMap?applied=true")).json()
    assert set(both) == {"message_age", "destination_storage"}
    assert (await http.post(f"{base}/backlogQuota?backlogQuotaType=x", json=quota)).status_code == 400
    assert (await http.post(f"{base}/backlogQuota", json={"limit": 1, "policy": "?"})).status_code == 400


async def test_a_backlog_quota_stays_below_retention(http: httpx.AsyncClient, base: str) -> None:
    retention = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 10}
    assert (await http.post(f"{base}/retention", json=retention)).status_code == 204
    quota = {"limitSize": 10 * 1024 * 1024, "policy": "producer_exception"}
    assert (await http.post(f"{base}/backlogQuota", json=quota)).status_code == 412
    quota["limitSize"] = 9 * 1024 * 1024
    assert (await http.post(f"{base}/backlogQuota", json=quota)).status_code == 204
    retention["retentionSizeInMB"] = 9
    assert (await http.post(f"{base}/retention", json=retention)).status_code == 412


@pytest.mark.parametrize(
    ("path", "verb", "body", "status", "reason"),
    [
        ("messageTTL", "POST", -1, 412, "Invalid value for message TTL"),
        ("maxTopicsPerNamespace", "POST", -1, 412, "maxTopicsPerNamespace must be 0 or more"),
        ("maxProducersPerTopic", "POST", -5, 412, "maxProducersPerTopic must be 0 or more"),
        ("subscriptionExpirationTime", "POST", -1, 412, "Invalid value for subscription expiration time"),
        ("retention", "POST", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 1}, 412, ""),
        ("retention", "POST", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 1}, 412, ""),
        (
            "persistence",
            "POST",
            {"bookkeeperEnsemble": 1, "bookkeeperWriteQuorum": 2, "bookkeeperAckQuorum": 2},
            400,
            "",
        ),
        (
            "persistence",
            "POST",
            {"bookkeeperEnsemble": 0, "bookkeeperWriteQuorum": 0, "bookkeeperAckQuorum": 0},
            400,
            "",
        ),
        (
            "autoTopicCreation",
            "POST",
            {"allowAutoTopicCreation": True, "topicType": "partitioned"},
            412,
            f"{OVERRIDE} [defaultNumPartitions] cannot be null when the type is partitioned.",
        ),
        (
            "autoTopicCreation",
            "POST",
            {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 0},
            412,
            f"{OVERRIDE} [defaultNumPartitions] cannot be less than 1 for partition type.",
        ),
        (
            "autoTopicCreation",
            "POST",
            {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": 3},
            412,
            f"{OVERRIDE} [defaultNumPartitions] is not allowed to be set when the type is non-partition.",
        ),
        ("autoTopicCreation", "POST", {"topicType": "partitioned", "defaultNumPartitions": 10**9}, 406, ""),
        ("replication", "POST", [], 412, ""),
        ("replication", "POST", ["global"], 412, ""),
        ("replication", "POST", ["nowhere"], 403, ""),
        ("schemaCompatibilityStrategy", "PUT", "SIDEWAYS", 400, ""),
        ("deduplication", "POST", "perhaps", 400, ""),
        ("deduplication", "POST", {}, 400, ""),
        ("maxProducersPerTopic", "POST", "many", 400, ""),
        ("maxProducersPerTopic", "POST", 2**31, 400, ""),
        ("maxProducersPerTopic", "POST", 10**400, 400, ""),
        ("compactionThreshold", "PUT", 2**63, 400, ""),
        ("retention", "POST", {"retentionTimeInMinutes": "soon"}, 400, ""),
        ("retention", "POST", [1, 2], 400, ""),
        ("resourcegroup/nobody", "POST", None, 412, ""),
        ("antiAffinity", "POST", " ", 412, ""),
    ],
)
async def test_what_makes_no_sense_is_refused(
    http: httpx.AsyncClient, base: str, path: str, verb: str, body: Any, status: int, reason: str
) -> None:
    before = (await http.get(base)).json()
    answer = await http.request(verb, f"{base}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert reason in answer.json()["reason"]
    assert answer.json()["reason"]
    assert (await http.get(base)).json() == before


async def test_the_whole_says_what_its_parts_were_set_to(http: httpx.AsyncClient, base: str) -> None:
    await http.post(f"{base}/messageTTL", json=7)
    await http.post(f"{base}/dispatchRate", json={"dispatchThrottlingRateInMsg": 3})
    told = (await http.get(base)).json()
    assert told["message_ttl_in_seconds"] == 7
    assert told["topicDispatchRate"]["standalone"]["dispatchThrottlingRateInMsg"] == 3
    assert "retention_policies" not in told, "what is not set is left out"
    assert told["subscriptionDispatchRate"] == {}, "maps are told even if empty"


async def test_resource_groups_are_named_by_namespaces(http: httpx.AsyncClient, base: str) -> None:
    groups = "/admin/v2/resourcegroups"
    assert (await http.put(f"{groups}/gold", json={"publishRateInMsgs": 100})).status_code == 204
    assert (await http.get(groups)).json() == ["gold"]
    assert (await http.get(f"{groups}/gold")).json() == {"publishRateInMsgs": 100}
    assert (await http.post(f"{base}/resourcegroup/gold")).status_code == 204
    assert (await http.get(f"{base}/resourcegroup")).json() == "gold"
    assert (await http.delete(f"{groups}/gold")).status_code == 409
    assert (await http.delete(f"{base}/resourcegroup")).status_code == 204
    assert (await http.delete(f"{groups}/gold")).status_code == 204
    assert (await http.get(f"{groups}/gold")).status_code == 404


async def test_setting_the_pause_without_a_body_means_yes(http: httpx.AsyncClient, base: str) -> None:
    """So do Java's clients."""
    url = f"{base}/dispatcherPauseOnAckStatePersistent"
    assert (await http.post(url)).status_code == 204
    assert (await http.get(url)).json() is True


@pytest.mark.parametrize("body", [b"apart", b'"apart"', b" apart\n"])
async def test_a_group_may_come_without_quotes(http: httpx.AsyncClient, base: str, body: bytes) -> None:
    """Java's clients send none."""
    headers = {"Content-Type": "application/json"}
    assert (await http.post(f"{base}/antiAffinity", content=body, headers=headers)).status_code == 204
    assert (await http.get(f"{base}/antiAffinity")).json() == "apart"


@pytest.mark.parametrize(("body", "status"), [(b"", 412), (b"\xff", 400), (b"[1]", 400), (b'"open', 400)])
async def test_a_group_must_be_one_string(
    http: httpx.AsyncClient, base: str, body: bytes, status: int
) -> None:
    assert (await http.post(f"{base}/antiAffinity", content=body)).status_code == status
    assert (await http.get(f"{base}/antiAffinity")).status_code == 204


@pytest.mark.parametrize(
    ("write_quorum", "ack_quorum", "told"),
    [
        (1, 1, "one copy"),
        (2, 1, "one bookie alone"),
        (5, 2, "less than the majority"),
        (2, 2, ""),
        (3, 2, ""),
    ],
)
async def test_quorums_that_one_failure_defeats_are_warned_of(
    http: httpx.AsyncClient, write_quorum: int, ack_quorum: int, told: str
) -> None:
    sizes = {
        "bookkeeperEnsemble": 5,
        "bookkeeperWriteQuorum": write_quorum,
        "bookkeeperAckQuorum": ack_quorum,
        "managedLedgerMaxMarkDeleteRate": 1.0,
    }
    answer = await http.post("/admin/v2/namespaces/public/default/persistence", json=sizes)
    assert answer.status_code == 204
    warning = answer.headers.get("x-magnetar-warning", "")
    assert told in warning
    assert bool(warning) == bool(told)
