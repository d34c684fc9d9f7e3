"""Brokers, their settings and statistics, and lookups over HTTP."""

from __future__ import annotations

from urllib.parse import quote

from tests.unit.admin.conftest import Platform

BASE = "/admin/v2/brokers"


async def test_who_is_there(platform: Platform) -> None:
    http = platform.http
    me = f"127.0.0.1:{platform.port}"
    assert (await http.get(BASE)).json() == [me]
    assert (await http.get(f"{BASE}/standalone")).json() == [me]
    assert (await http.get(f"{BASE}/leaderBroker")).json() == {"brokerId": me, "serviceUrl": f"http://{me}"}
    for path, text in (("ready", "ok"), ("health", "ok"), ("health?topicVersion=V2", "ok")):
        answer = await http.get(f"{BASE}/{path}")
        assert (answer.status_code, answer.text) == (200, text)
    assert (await http.get(f"{BASE}/health?brokerId=other:1")).status_code == 404
    assert (await http.get(f"{BASE}/version")).text
    assert (await http.get("/status.html")).text == "OK"
    assert (await http.get(f"{BASE}/backlog-quota-check")).status_code == 204
    owned = (await http.get(f"{BASE}/standalone/{me}/ownedNamespaces")).json()
    assert any(bundle.startswith("pulsar/system/") for bundle in owned)
    (bookie,) = (await http.get("/admin/v2/bookies/all")).json()["bookies"]
    assert bookie["bookieId"]


async def test_quotas_of_backlogs_are_looked_at_when_somebody_asks(platform: Platform) -> None:
    http, topic = platform.http, "/admin/v2/persistent/public/default/full"
    await platform.publish("full", b"first")
    assert (
        await http.put(f"{topic}/subscription/s", json={"ledgerId": -1, "entryId": -1})
    ).status_code == 204
    quota = {"limitSize": 10, "limit": 10, "policy": "consumer_backlog_eviction"}
    said = await http.post("/admin/v2/namespaces/public/default/backlogQuota", json=quota)
    assert said.status_code == 204
    await platform.publish("full", b"x" * 100)
    assert (await http.get(f"{BASE}/backlog-quota-check")).status_code == 204
    told = (await http.get(f"{topic}/stats")).json()
    assert told["subscriptions"]["s"]["msgBacklog"] == 0


async def test_where_bookies_stand_is_said_and_forgotten(platform: Platform) -> None:
    http, base = platform.http, "/admin/v2/bookies/racks-info"
    assert (await http.get(base)).json() == {}
    assert (await http.get(f"{base}/b:3181")).status_code == 404
    assert (await http.post(f"{base}/b:3181", json={"rack": "/r"})).status_code == 412, "no group"
    said = {"rack": "/north/1", "hostname": "b"}
    assert (await http.post(f"{base}/b:3181?group=left", json=said)).status_code == 204
    assert (await http.get(base)).json() == {"left": {"b:3181": {"rack": "/north/1", "hostname": None}}}
    assert (await http.get(f"{base}/b:3181")).json()["rack"] == "/north/1"
    assert (await http.delete(f"{base}/b:3181")).status_code == 204
    assert (await http.get(base)).json() == {}


async def test_a_broker_is_let_to_end_by_whoever_started_it(platform: Platform) -> None:
    answer = await platform.http.post(f"{BASE}/shutdown")
    assert (answer.status_code, answer.json()["code"]) == (501, "not_implemented")
    told: list[str] = []
    platform.site.admin.shutdown = lambda: told.append("end")
    assert (await platform.http.post(f"{BASE}/shutdown?maxConcurrentUnloadPerSec=5")).status_code == 204
    assert told == ["end"]


async def test_memory_and_pending_writes_by_their_owners(platform: Platform) -> None:
    http = platform.http
    await platform.publish("t", b"x")
    for name, used in (("default", True), ("ml-cache", False)):
        told = (await http.get(f"/admin/v2/broker-stats/allocator-stats/{name}")).json()
        assert (told["usedHeapMemory"] > 0) is used, "nothing is cached for nobody"
        assert told["directArenas"] == []
    assert (await http.get("/admin/v2/broker-stats/allocator-stats/other")).status_code == 412
    pending = (await http.get("/admin/v2/broker-stats/bookieops")).json()
    assert pending["public/default"]["persistent://public/default/t"]["pendingAddEntries"] == 0
    refused = await http.get("/admin/v2/broker-stats/broker-resource-availability/public/default")
    assert refused.status_code == 409


async def test_settings_that_change_while_it_runs(platform: Platform) -> None:
    http = platform.http
    for path in ("configuration", "configuration/"):
        assert "allowAutoSubscriptionCreation" in (await http.get(f"{BASE}/{path}")).json()
    assert (await http.get(f"{BASE}/configuration/values")).json() == {}
    key = "allowAutoTopicCreation"
    assert (await http.post(f"{BASE}/configuration/{key}/false")).status_code == 200
    assert (await http.get(f"{BASE}/configuration/values")).json() == {key: "false"}
    assert (await http.get(f"{BASE}/configuration/runtime")).json()[key] == "false"
    assert (await http.get("/lookup/v2/topic/persistent/public/default/new")).status_code == 404
    assert (await http.delete(f"{BASE}/configuration/{key}")).status_code == 204
    assert (await http.get("/lookup/v2/topic/persistent/public/default/new")).status_code == 200
    odd = '{"a": "../b/c", "d": [1]}'
    assert (await http.post(f"{BASE}/configuration/{key}/{quote(odd, safe='')}")).status_code == 200
    assert (await http.get(f"{BASE}/configuration/values")).json() == {key: odd}
    assert (await http.get("/lookup/v2/topic/persistent/public/default/new")).status_code == 200
    assert (await http.post(f"{BASE}/configuration/zookeeperServers/x")).status_code == 412
    runtime = (await http.get(f"{BASE}/configuration/runtime")).json()
    assert all(isinstance(value, str) for value in runtime.values())
    assert "metadataStoreUrl" in (await http.get(f"{BASE}/internal-configuration")).json()


async def test_lookup(platform: Platform) -> None:
    http = platform.http
    answer = await http.get("/lookup/v2/topic/persistent/public/default/topic%20x?authoritative=false")
    told = answer.json()
    assert told["brokerUrl"] == platform.broker.service_url
    assert told["httpUrl"] == platform.broker.web_service_url
    assert told["brokerUrlTls"] == told["brokerUrlSsl"] == ""
    assert (await http.get("/lookup/v2/topic/persistent/public/nothing/t")).status_code == 404
    assert (await http.get("/lookup/v2/topic/other/public/default/t")).status_code == 404
    elsewhere = await http.get("/lookup/v2/topic/persistent/public/default/t?listenerName=outside")
    assert elsewhere.status_code == 404
    assert "outside" in elsewhere.json()["reason"]
    bundle = await http.get("/lookup/v2/topic/persistent/public/default/t/bundle")
    assert bundle.text.startswith("0x")
    assert len(bundle.text) == 21
    assert (await http.get("/admin/v2/persistent/public/default")).json() == [], "a lookup makes no topic"


async def test_everything_at_once(platform: Platform) -> None:
    http = platform.http
    await platform.publish("t", b"x")
    await http.put("/admin/v2/persistent/public/default/u/subscription/s")
    told = (await http.get("/admin/v2/broker-stats/topics")).json()
    topics = {
        name: stats
        for bundle in told["public/default"].values()
        for name, stats in bundle["persistent"].items()
    }
    assert set(topics) == {"persistent://public/default/t", "persistent://public/default/u"}
    assert topics["persistent://public/default/t"]["msgInCounter"] == 1
    report = (await http.get("/admin/v2/broker-stats/load-report")).json()
    assert report["numTopics"] == 2
    assert report["pulsarServiceUrl"] == platform.broker.service_url
    metrics = (await http.get("/admin/v2/broker-stats/metrics")).json()
    assert any("pulsar_storage_size" in each["metrics"] for each in metrics)
    page = (await http.get("/metrics")).text
    assert (
        'pulsar_in_messages_total{cluster="standalone",namespace="public/default",topic="persistent://public/default/t"} 1'
        in page
    )
    assert "process_resident_memory_bytes" in page
