"""Topics over HTTP: made, listed, looked at, deleted; partitioned and not."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest

from tests.unit.admin.conftest import Platform

BASE = "/admin/v2/persistent/public/default"
LATEST = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}
EARLIEST = {"ledgerId": -1, "entryId": -1}


async def test_a_topic_is_made_once(http: httpx.AsyncClient) -> None:
    made = await http.put(f"{BASE}/one", json={"owner": "me"})
    assert (made.status_code, made.content) == (204, b"")
    again = await http.put(f"{BASE}/one")
    assert (again.status_code, again.json()) == (
        409,
        {"reason": "This topic already exists", "code": "conflict"},
    )
    assert (await http.get(f"{BASE}/one/properties")).json() == {"owner": "me"}
    assert (await http.get(BASE)).json() == ["persistent://public/default/one"]
    assert (await http.get("/admin/v2/namespaces/public/default/topics")).json() == [
        "persistent://public/default/one"
    ]
    assert (await http.put(f"{BASE}/one/partitions", content="2")).status_code == 409


@pytest.mark.parametrize(
    "local", ["späße", "a b", "a+b", "ü/%".replace("/", "|"), "日本", "..", ".", "a:b", "x%2Fy", "topics"]
)
async def test_any_name_goes_through_encoded_once(http: httpx.AsyncClient, local: str) -> None:
    """Also names that look encoded, or that paths would otherwise resolve."""
    encoded = quote(local, safe="").replace(".", "%2E")
    assert (await http.put(f"{BASE}/{encoded}")).status_code == 204
    assert (await http.get(BASE)).json() == [f"persistent://public/default/{local}"]
    assert (await http.get(f"{BASE}/{encoded}/stats")).status_code == 200
    assert (await http.put(f"{BASE}/{encoded}/subscription/{encoded}")).status_code == 204
    assert (await http.get(f"{BASE}/{encoded}/subscriptions")).json() == [local]
    assert (await http.post(f"{BASE}/{encoded}/maxProducers", json=1)).status_code == 204
    assert (await http.get(f"{BASE}/{encoded}/maxProducers")).json() == 1
    assert (await http.delete(f"{BASE}/{encoded}")).status_code == 204
    assert (await http.get(BASE)).json() == []


@pytest.mark.parametrize("local", ["a%2Fb", "%00", "a%0Ab", "%20", "%FF", "%C3"])
async def test_names_no_topic_can_have(http: httpx.AsyncClient, local: str) -> None:
    for method, path in (("PUT", ""), ("GET", "/stats"), ("PUT", "/partitions"), ("GET", "/partitions")):
        answer = await http.request(
            method, f"{BASE}/{local}{path}", content="3" if path == "/partitions" else b""
        )
        assert answer.status_code == 412, (method, path, answer.text)
        assert "ame is not valid" in answer.json()["reason"]


async def test_partition_like_names(http: httpx.AsyncClient) -> None:
    assert (await http.put(f"{BASE}/x-partition-0")).status_code == 412
    assert (await http.put(f"{BASE}/x-partition-1/partitions", content="3")).status_code == 412
    await http.put(f"{BASE}/x/partitions", content="2")
    assert (await http.put(f"{BASE}/x-partition-1")).status_code == 204, "it was missing"
    assert (await http.put(f"{BASE}/x-partition-1")).status_code == 409
    assert (await http.put(f"{BASE}/x-partition-2")).status_code == 412


async def test_partitioned_topics(http: httpx.AsyncClient) -> None:
    assert (await http.put(f"{BASE}/p/partitions", content=b"3")).status_code == 204
    assert (await http.put(f"{BASE}/p/partitions", content=b"3")).status_code == 409
    vendor = {"content-type": "application/vnd.partitioned-topic-metadata+json"}
    body = b'{"partitions":2,"properties":{"k":"v"}}'
    assert (await http.put(f"{BASE}/q/partitions", content=body, headers=vendor)).status_code == 204
    assert (await http.get(f"{BASE}/p/partitions")).json() == {"partitions": 3, "deleted": False}
    assert (await http.get(f"{BASE}/q/partitions")).json() == {
        "partitions": 2,
        "deleted": False,
        "properties": {"k": "v"},
    }
    assert (await http.get(f"{BASE}/partitioned")).json() == [
        "persistent://public/default/p",
        "persistent://public/default/q",
    ]
    names = [
        f"persistent://public/default/{base}-partition-{n}"
        for base, count in (("p", 3), ("q", 2))
        for n in range(count)
    ]
    assert (await http.get(BASE)).json() == names
    assert (await http.get(f"{BASE}/p/stats")).status_code == 404
    assert (await http.put(f"{BASE}/p")).status_code == 409
    assert (await http.delete(f"{BASE}/p")).status_code == 412
    assert (await http.put(f"{BASE}/p/subscription/s")).status_code == 204
    assert (await http.post(f"{BASE}/p/partitions", content="5")).status_code == 204
    assert (await http.get(f"{BASE}/p/partitions")).json()["partitions"] == 5
    assert (await http.get(f"{BASE}/p-partition-4/subscriptions")).json() == ["s"]
    assert (await http.post(f"{BASE}/p/partitions", content="4")).status_code == 406
    assert (await http.post(f"{BASE}/nothing/partitions", content="4")).status_code == 404
    assert (await http.delete(f"{BASE}/p/partitions")).status_code == 204
    assert (await http.delete(f"{BASE}/p/partitions")).status_code == 404
    assert (await http.get(f"{BASE}/p/partitions")).status_code == 404
    assert (await http.get(BASE)).json() == names[3:]


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"0", 406), (b"-1", 406), (b"1000000000", 406), (b"1025", 406), (b"1e400", 400), (b"", 400), (b"null", 400),
     (b"many", 400), (b'"3"', 204), (b"{}", 406), (b"[3]", 400), (b'{"partitions":"x"}', 400), (b"9" * 5000, 400)],
)  # fmt: skip
async def test_numbers_of_partitions(http: httpx.AsyncClient, body: bytes, status: int) -> None:
    answer = await http.put(f"{BASE}/p/partitions", content=body)
    assert answer.status_code == status, answer.text
    if status == 406 and body != b"{}":
        assert "Number of partitions" in answer.json()["reason"]
    assert (await http.get(f"{BASE}/partitioned")).json() == (
        ["persistent://public/default/p"] if status == 204 else []
    )


async def test_asking_for_partitions_may_make_a_topic(http: httpx.AsyncClient) -> None:
    auto = {"checkAllowAutoCreation": "true"}
    assert (await http.get(f"{BASE}/new/partitions")).status_code == 404
    assert (await http.get(f"{BASE}/new/partitions", params=auto)).json()["partitions"] == 0
    assert (await http.get(f"{BASE}/new/partitions")).status_code == 404, (
        "a plain topic is made by its first client"
    )
    override = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 2}
    await http.post("/admin/v2/namespaces/public/default/autoTopicCreation", json=override)
    assert (await http.get(f"{BASE}/new/partitions", params=auto)).json()["partitions"] == 2
    assert (await http.get(f"{BASE}/new/partitions")).json()["partitions"] == 2
    await http.post(
        "/admin/v2/namespaces/public/default/autoTopicCreation", json={"allowAutoTopicCreation": False}
    )
    assert (await http.get(f"{BASE}/other/partitions", params=auto)).status_code == 404
    assert (await http.get("/lookup/v2/topic/persistent/public/default/other")).status_code == 404


async def test_a_namespace_has_room_for_so_many_topics(http: httpx.AsyncClient) -> None:
    await http.post("/admin/v2/namespaces/public/default/maxTopicsPerNamespace", json=2)
    assert (await http.put(f"{BASE}/a")).status_code == 204
    assert (await http.put(f"{BASE}/p/partitions", content="2")).status_code == 412
    assert (await http.put(f"{BASE}/b")).status_code == 204
    refused = await http.put(f"{BASE}/c")
    assert refused.status_code == 412
    assert "maximum number of topics" in refused.json()["reason"]


async def test_statistics(platform: Platform) -> None:
    http = platform.http
    await http.put(f"{BASE}/t/subscription/s", json=EARLIEST)
    await platform.publish("t", b"one", b"two", b"three")
    told = (await http.get(f"{BASE}/t/stats")).json()
    assert told["msgInCounter"] == 3
    assert told["subscriptions"]["s"]["msgBacklog"] == 3
    assert told["storageSize"] > 0
    internal = (await http.get(f"{BASE}/t/internalStats")).json()
    assert internal["numberOfEntries"] == 3
    assert internal["cursors"]["s"]["markDeletePosition"].endswith(":-1")
    info = (await http.get(f"{BASE}/t/internal-info")).json()
    assert sum(ledger["entries"] for ledger in info["ledgers"]) == 3
    assert "s" in info["cursors"]
    assert (await http.get(f"{BASE}/t/lastMessageId")).json()["entryId"] == 2
    assert (await http.get(f"{BASE}/t/backlog")).json()["messageBacklog"] == 3
    size = (await http.put(f"{BASE}/t/backlogSize", json=EARLIEST)).json()
    assert size == told["storageSize"]
    for path in ("stats", "internalStats", "internal-info", "lastMessageId", "subscriptions"):
        assert (await http.get(f"{BASE}/nothing/{path}")).status_code == 404, path


async def test_statistics_of_partitions_are_sums(platform: Platform) -> None:
    http = platform.http
    await http.put(f"{BASE}/p/partitions", content="3")
    await http.put(f"{BASE}/p/subscription/s", json=EARLIEST)
    for index in range(3):
        await platform.publish(f"persistent://public/default/p-partition-{index}", *[b"x"] * (index + 1))
    told = (await http.get(f"{BASE}/p/partitioned-stats")).json()
    assert told["msgInCounter"] == 6
    assert told["subscriptions"]["s"]["msgBacklog"] == 6
    assert told["metadata"] == {"partitions": 3, "deleted": False}
    assert {name[-1]: each["msgInCounter"] for name, each in told["partitions"].items()} == {
        "0": 1,
        "1": 2,
        "2": 3,
    }
    sums = (await http.get(f"{BASE}/p/partitioned-stats?perPartition=false")).json()
    assert sums["partitions"] == {}
    internal = (await http.get(f"{BASE}/p/partitioned-internalStats")).json()
    assert [each["numberOfEntries"] for each in internal["partitions"].values()] == [1, 2, 3]
    await http.put(f"{BASE}/plain")
    assert (await http.get(f"{BASE}/plain/partitioned-stats")).status_code == 404


async def test_a_busy_topic_goes_only_by_force(platform: Platform) -> None:
    from magnetar.client.client import Client

    http = platform.http
    client = Client(platform.broker.service_url)
    try:
        producer = await client.create_producer("busy")
        await producer.send(b"x")
        refused = await http.delete(f"{BASE}/busy")
        assert refused.status_code == 412
        assert "active producers" in refused.json()["reason"]
        told = (await http.get(f"{BASE}/busy/stats")).json()["publishers"]
        assert len(told) == 1
        assert "127.0.0.1" in told[0]["address"]
        assert (await http.delete(f"{BASE}/busy?force=true")).status_code == 204
    finally:
        await client.close()


async def test_termination(platform: Platform) -> None:
    http = platform.http
    await platform.publish("ended", b"last")
    told = (await http.post(f"{BASE}/ended/terminate")).json()
    assert set(told) >= {"ledgerId", "entryId", "partitionIndex"}
    assert (await http.get(f"{BASE}/ended/internalStats")).json()["state"] == "Terminated"
    await http.put(f"{BASE}/p/partitions", content="2")
    assert (await http.post(f"{BASE}/p/terminate")).status_code == 405
    assert set((await http.post(f"{BASE}/p/terminate/partitions")).json()) == {"0", "1"}
    assert (await http.post(f"{BASE}/nothing/terminate")).status_code == 404


async def test_unloading_keeps_everything(platform: Platform) -> None:
    http = platform.http
    await http.put(f"{BASE}/u/subscription/s", json=EARLIEST)
    await platform.publish("u", b"kept")
    assert (await http.put(f"{BASE}/u/unload")).status_code == 204
    assert (await http.get(f"{BASE}/u/stats")).json()["subscriptions"]["s"]["msgBacklog"] == 1
    assert (await http.put(f"{BASE}/nothing/unload")).status_code == 404
    await http.put(f"{BASE}/p/partitions", content="2")
    assert (await http.put(f"{BASE}/p/unload")).status_code == 204


async def test_properties_of_topics(http: httpx.AsyncClient) -> None:
    for name in ("plain", "parted"):
        await (
            http.put(f"{BASE}/plain")
            if name == "plain"
            else http.put(f"{BASE}/parted/partitions", content="2")
        )
        url = f"{BASE}/{name}/properties"
        assert (await http.get(url)).json() == {}
        assert (await http.put(url, json={"a": "1"})).status_code == 204
        assert (await http.put(url, json={"b": "2"})).status_code == 204
        assert (await http.get(url)).json() == {"a": "1", "b": "2"}
        assert (await http.delete(url, params={"key": "a"})).status_code == 204
        assert (await http.get(url)).json() == {"b": "2"}
        assert (await http.put(url, json={"magnetar.topic-epoch": "9"})).status_code == 412
        assert (await http.delete(url)).status_code == 400
    assert (await http.get(f"{BASE}/nothing/properties")).status_code == 404


async def test_topic_permissions_add_to_the_namespace(http: httpx.AsyncClient) -> None:
    await http.put(f"{BASE}/p/partitions", content="2")
    await http.post("/admin/v2/namespaces/public/default/permissions/all", json=["produce"])
    url = f"{BASE}/p/permissions"
    assert (await http.delete(f"{url}/one")).status_code == 412
    assert (await http.post(f"{url}/one", json=["consume"])).status_code == 204
    assert (await http.get(url)).json() == {"all": ["produce"], "one": ["consume"]}
    assert (await http.get(f"{BASE}/p-partition-1/permissions")).json()["one"] == ["consume"]
    assert (await http.delete(f"{url}/one")).status_code == 204
    assert (await http.get(url)).json() == {"all": ["produce"]}


async def test_non_persistent_topics_store_nothing(http: httpx.AsyncClient) -> None:
    base = "/admin/v2/non-persistent/public/default"
    assert (await http.put(f"{base}/n")).status_code == 204
    assert (await http.get(base)).json() == ["non-persistent://public/default/n"]
    assert (await http.get(f"{base}/n/stats")).status_code == 200
    for method, path in (
        ("GET", "internalStats"),
        ("POST", "terminate"),
        ("DELETE", "truncate"),
        ("PUT", "subscription/s"),
    ):
        assert (await http.request(method, f"{base}/n/{path}")).status_code == 405, path
    assert (await http.put(f"{base}/np/partitions", content="2")).status_code == 204
    assert (await http.get(f"{base}/np/partitions")).json()["partitions"] == 2
    assert (await http.get(f"{base}/partitioned")).json() == ["non-persistent://public/default/np"]
    topics = "/admin/v2/namespaces/public/default/topics"
    assert (await http.get(topics)).json() == []
    assert len((await http.get(f"{topics}?mode=NON_PERSISTENT")).json()) == 3
    assert len((await http.get(f"{topics}?mode=ALL")).json()) == 3
    assert (await http.get(f"{topics}?mode=SOME")).status_code == 400
    assert (await http.delete(f"{base}/n")).status_code == 204


async def test_truncation_lets_everything_go(platform: Platform) -> None:
    http = platform.http
    await http.put(f"{BASE}/t/subscription/s", json=EARLIEST)
    await platform.publish("t", b"a", b"b")
    assert (await http.delete(f"{BASE}/t/truncate")).status_code == 204
    told = (await http.get(f"{BASE}/t/stats")).json()
    assert told["subscriptions"]["s"]["msgBacklog"] == 0
    assert told["storageSize"] == 0


async def test_what_is_not_done_yet_is_said(http: httpx.AsyncClient) -> None:
    await http.put(f"{BASE}/t")
    assert (await http.put(f"{BASE}/t/offload", json=EARLIEST)).status_code == 501
    assert (await http.get("/admin/v3/packages/function/public/default")).status_code == 503


async def test_a_topic_that_cannot_be_loaded_goes_by_force(platform: Platform) -> None:
    """Its policy wants more bookies than there are."""
    http = platform.http
    await platform.publish("t", b"x")
    wanted = {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
    await http.post("/admin/v2/namespaces/public/default/persistence", json=wanted)
    await http.put(f"{BASE}/t/unload")
    refused = await http.get(f"{BASE}/t/stats")
    assert refused.status_code == 503
    assert "bookies are needed" in refused.json()["reason"]
    assert (await http.delete(f"{BASE}/t")).status_code == 503
    assert (await http.delete(f"{BASE}/t?force=true")).status_code == 204
    assert (await http.get(BASE)).json() == []


async def test_topics_of_a_bundle_and_a_bundle_deleted(platform: Platform) -> None:
    http = platform.http
    await platform.publish("t", b"x")
    bundle = (await http.get("/lookup/v2/topic/persistent/public/default/t/bundle")).text
    told = await http.get(f"/admin/v2/persistent/public/default/{bundle}")
    assert told.json() == ["persistent://public/default/t"]
    assert (await http.get(f"/admin/v2/non-persistent/public/default/{bundle}")).json() == []
    assert (await http.get("/admin/v2/persistent/public/default/t")).status_code == 405
    assert (await http.delete(f"/admin/v2/namespaces/public/default/{bundle}")).status_code == 409
    assert (await http.delete(f"/admin/v2/namespaces/public/default/{bundle}?force=true")).status_code == 204
    assert (await http.get("/admin/v2/persistent/public/default")).json() == []
    assert (await http.delete("/admin/v2/namespaces/public/default/0x0_0x1")).status_code == 412


async def test_what_nobody_needs_is_deleted_at_once_when_asked(platform: Platform) -> None:
    http, topic = platform.http, "/admin/v2/persistent/public/default/t"
    await platform.publish("t", b"x")
    await platform.broker.topics.loaded()[0].ledger.roll()  # type: ignore[attr-defined]
    assert (await http.post(f"{topic}/trim")).status_code == 204
    assert (await http.get(f"{topic}/internalStats")).json()["numberOfEntries"] == 0


async def test_all_policies_of_a_topic_are_taken_back_at_once(platform: Platform) -> None:
    http, topic = platform.http, "/admin/v2/persistent/public/default/t"
    assert (await http.put(topic)).status_code == 204
    assert (await http.post(f"{topic}/maxProducers", json=3)).status_code == 204
    assert (await http.delete(f"{topic}/policies")).status_code == 204
    assert (await http.get(f"{topic}/maxProducers")).content == b""
    assert (await http.get(f"{topic}/shadowTopics")).json() == []
