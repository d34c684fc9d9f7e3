"""Clusters, tenants and namespaces: who exists, in which order refusals come, and what deletion leaves."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.unit.admin.conftest import Platform

TENANT = {"adminRoles": ["admin"], "allowedClusters": ["standalone"]}


async def test_clusters_answer_200_where_everything_else_says_204(http: httpx.AsyncClient) -> None:
    data = {"serviceUrl": "http://far:8080", "unknownField": {"deep": [1]}, "brokerClientTlsEnabled": "true"}
    made = await http.put("/admin/v2/clusters/far", json=data)
    assert (made.status_code, made.content) == (200, b"")
    told = (await http.get("/admin/v2/clusters/far")).json()
    assert told["serviceUrl"] == "http://far:8080"
    assert told["brokerClientTlsEnabled"] is True
    assert "unknownField" not in told
    assert (await http.post("/admin/v2/clusters/far", json={"serviceUrl": "http://near"})).status_code == 200
    moved = await http.post("/admin/v2/clusters/far/migrate?migrated=true", json={"serviceUrl": "http://new"})
    assert moved.status_code == 200
    told = (await http.get("/admin/v2/clusters/far/migrate")).json()
    assert told == {"migrated": True, "migratedClusterUrl": {"serviceUrl": "http://new"}}
    assert (await http.post("/admin/v2/clusters/far/peers", json=["far"])).status_code == 412
    assert (await http.post("/admin/v2/clusters/far/peers", json=["standalone"])).status_code == 204
    assert (await http.get("/admin/v2/clusters/far/peers")).json() == ["standalone"]
    assert (await http.delete("/admin/v2/clusters/far")).status_code == 204
    assert (await http.delete("/admin/v2/clusters/far")).status_code == 404
    assert (await http.get("/admin/v2/clusters/far")).status_code == 404
    assert (await http.delete("/admin/v2/clusters/standalone")).status_code == 412


async def test_failure_domains_share_no_broker(http: httpx.AsyncClient) -> None:
    base = "/admin/v2/clusters/standalone/failureDomains"
    assert (await http.get(base)).json() == {}
    assert (await http.post(f"{base}/east", json={"brokers": ["a:8080"]})).status_code == 204
    assert (await http.post(f"{base}/west", json={"brokers": ["a:8080"]})).status_code == 409
    assert (await http.get(f"{base}/east")).json() == {"brokers": ["a:8080"]}
    assert (await http.delete(f"{base}/east")).status_code == 204
    assert (await http.get(f"{base}/east")).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"adminRoles": [], "allowedClusters": ["standalone"]}, 204),
        ({"allowedClusters": []}, 412),
        (None, 412),
        ({"allowedClusters": ["nowhere"]}, 412),
        ({"allowedClusters": "standalone"}, 400),
        (["standalone"], 400),
    ],
)
async def test_a_tenant_needs_clusters_that_exist(http: httpx.AsyncClient, body: object, status: int) -> None:
    answer = await http.put("/admin/v2/tenants/acme", json=body)
    assert answer.status_code == status
    assert (status == 204) == (answer.content == b"")


async def test_tenants_change_and_go(http: httpx.AsyncClient) -> None:
    assert (await http.post("/admin/v2/tenants/acme", json=TENANT)).status_code == 404
    assert (await http.put("/admin/v2/tenants/acme", json=TENANT)).status_code == 204
    assert (await http.get("/admin/v2/tenants/acme")).json() == TENANT
    changed = {**TENANT, "adminRoles": ["x", "y"]}
    assert (await http.post("/admin/v2/tenants/acme", json=changed)).status_code == 204
    assert (await http.get("/admin/v2/tenants/acme")).json() == changed
    assert (await http.put("/admin/v2/namespaces/acme/one")).status_code == 204
    refused = await http.delete("/admin/v2/tenants/acme")
    assert refused.status_code == 409
    assert refused.json() == {"reason": "The tenant still has active namespaces", "code": "conflict"}
    assert (await http.delete("/admin/v2/tenants/acme?force=true")).status_code == 204
    assert (await http.get("/admin/v2/tenants/acme")).status_code == 404


@pytest.mark.parametrize("name", ["a b", "ä", "a%2Fb", "a$"])
async def test_names_that_are_none(http: httpx.AsyncClient, name: str) -> None:
    for path in (
        f"/admin/v2/tenants/{name}",
        f"/admin/v2/clusters/{name}",
        f"/admin/v2/namespaces/public/{name}",
    ):
        request = http.build_request("PUT", path, json=TENANT)
        request.url = request.url.copy_with(
            raw_path=path.encode() if path.isascii() else request.url.raw_path
        )
        answer = await http.send(request)
        assert answer.status_code == 412, path
        assert "name is not valid" in answer.json()["reason"]


async def test_an_unknown_tenant_is_told_before_the_namespace(http: httpx.AsyncClient) -> None:
    for path in ("", "/topics", "/permissions", "/retention", "/bundles"):
        answer = await http.get(f"/admin/v2/namespaces/nobody/nothing{path}")
        assert (answer.status_code, answer.json()) == (
            404,
            {"reason": "Tenant does not exist", "code": "not_found"},
        )
        answer = await http.get(f"/admin/v2/namespaces/public/nothing{path}")
        assert (answer.status_code, answer.json()) == (
            404,
            {"reason": "Namespace does not exist", "code": "not_found"},
        )
    answer = await http.put("/admin/v2/persistent/nobody/nothing/topic")
    assert (answer.status_code, answer.json()) == (
        404,
        {"reason": "Tenant does not exist", "code": "not_found"},
    )
    answer = await http.put("/admin/v2/persistent/public/nothing/topic/partitions", content="3")
    assert (answer.status_code, answer.json()) == (
        404,
        {"reason": "Namespace does not exist", "code": "not_found"},
    )


async def test_a_namespace_with_topics_goes_only_by_force(platform: Platform) -> None:
    http = platform.http
    await http.put("/admin/v2/namespaces/public/full")
    await http.put("/admin/v2/persistent/public/full/plain")
    await http.put("/admin/v2/persistent/public/full/parted/partitions", content="3")
    await http.put("/admin/v2/persistent/public/full/plain/subscription/s")
    await http.post("/admin/v2/persistent/public/full/plain/maxProducers", content="1")
    refused = await http.delete("/admin/v2/namespaces/public/full")
    assert refused.status_code == 409
    assert "non empty" in refused.json()["reason"]
    assert (await http.get("/admin/v2/namespaces/public/full")).status_code == 200
    assert (await http.delete("/admin/v2/namespaces/public/full?force=true")).status_code == 204
    assert (await http.get("/admin/v2/namespaces/public/full")).status_code == 404
    assert (await http.put("/admin/v2/namespaces/public/full")).status_code == 204
    assert (await http.get("/admin/v2/namespaces/public/full/topics")).json() == []
    assert (await http.get("/admin/v2/persistent/public/full/partitioned")).json() == []
    await http.put("/admin/v2/persistent/public/full/plain")
    assert (await http.get("/admin/v2/persistent/public/full/plain/maxProducers")).status_code == 204


async def test_a_deletion_that_went_no_further_can_be_taken_up(platform: Platform) -> None:
    from magnetar.naming import NamespaceName

    name = NamespaceName("public", "halfway")
    await platform.http.put(f"/admin/v2/namespaces/{name}")
    await platform.resources.update_namespace(name, lambda said: said.changed(deleted=True))
    assert (await platform.http.get(f"/admin/v2/namespaces/{name}")).status_code == 404
    assert (await platform.http.delete(f"/admin/v2/namespaces/{name}")).status_code == 204
    assert (await platform.http.put(f"/admin/v2/namespaces/{name}")).status_code == 204


async def test_permissions_are_kept_and_said_not_to_be_enforced(http: httpx.AsyncClient) -> None:
    base = "/admin/v2/namespaces/public/default/permissions"
    answer = await http.post(f"{base}/reader", json=["consume"])
    assert answer.status_code == 204
    assert answer.headers["x-magnetar-policy"] == "not-enforced"
    assert (await http.post(f"{base}/reader", json=["fly"])).status_code == 400
    assert (await http.post(f"{base}/writer", json=["produce", "consume"])).status_code == 204
    assert (await http.get(base)).json() == {"reader": ["consume"], "writer": ["produce", "consume"]}
    assert (await http.delete(f"{base}/reader")).status_code == 204
    assert (await http.get(base)).json() == {"writer": ["produce", "consume"]}
    assert (await http.post(f"{base}/subscription/s", json=["r1", "r2"])).status_code == 204
    assert (await http.get(f"{base}/subscription")).json() == {"s": ["r1", "r2"]}
    assert (await http.delete(f"{base}/s/r1")).status_code == 204
    assert (await http.get(f"{base}/subscription")).json() == {"s": ["r2"]}


async def test_properties(http: httpx.AsyncClient) -> None:
    base = "/admin/v2/namespaces/public/default"
    assert (await http.get(f"{base}/properties")).json() == {}
    assert (await http.put(f"{base}/properties", json={"a": "1", "b": 2})).status_code == 204
    assert (await http.put(f"{base}/property/c/x%2Fy%20z")).status_code == 204
    assert (await http.get(f"{base}/properties")).json() == {"a": "1", "b": "2", "c": "x/y z"}
    assert (await http.get(f"{base}/property/c")).json() == "x/y z"
    assert (await http.delete(f"{base}/property/c")).status_code == 200
    assert (await http.get(f"{base}/property/c")).status_code == 204
    assert (await http.delete(f"{base}/properties")).status_code == 204
    assert (await http.get(f"{base}/properties")).json() == {}


async def test_bundles_are_made_split_and_unloaded(platform: Platform) -> None:
    http = platform.http
    assert (
        await http.put("/admin/v2/namespaces/public/two", json={"bundles": {"numBundles": 2}})
    ).status_code == 204
    bundles = (await http.get("/admin/v2/namespaces/public/two/bundles")).json()
    assert bundles == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert (
        await http.put("/admin/v2/namespaces/public/bad", json={"bundles": {"numBundles": -1}})
    ).status_code == 412
    await http.put("/admin/v2/persistent/public/two/topic")
    text = (await http.get("/lookup/v2/topic/persistent/public/two/topic/bundle")).text
    assert text in ("0x00000000_0x80000000", "0x80000000_0xffffffff")
    assert (await http.put(f"/admin/v2/namespaces/public/two/{text}/split")).status_code == 204
    split = (await http.get("/admin/v2/namespaces/public/two/bundles")).json()
    assert split["numBundles"] == 3
    assert (await http.put(f"/admin/v2/namespaces/public/two/{text}/unload")).status_code == 412
    text = (await http.get("/lookup/v2/topic/persistent/public/two/topic/bundle")).text
    assert (await http.put(f"/admin/v2/namespaces/public/two/{text}/unload")).status_code == 204
    nowhere = await http.put(f"/admin/v2/namespaces/public/two/{text}/unload?destinationBroker=nobody:1")
    assert nowhere.status_code == 412
    positions = (await http.get(f"/admin/v2/namespaces/public/two/{text}/topicHashPositions")).json()
    assert list(positions["hashPositions"]) == ["persistent://public/two/topic"]
    assert (await http.put("/admin/v2/namespaces/public/two/unload")).status_code == 204
    assert (await http.get("/admin/v2/persistent/public/two/topic/stats")).status_code == 200


async def test_read_only_policies_refuse_every_write(platform: Platform) -> None:
    await platform.metadata.put("/admin/flags/policies-readonly", b"")
    for method, path, body in (
        ("PUT", "/admin/v2/tenants/new", TENANT),
        ("PUT", "/admin/v2/namespaces/public/new", None),
        (
            "POST",
            "/admin/v2/namespaces/public/default/retention",
            {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
        ),
    ):
        answer = await platform.http.request(method, path, json=body)
        assert answer.status_code == 403, path
    await platform.metadata.delete("/admin/flags/policies-readonly")
    async with asyncio.timeout(5):
        while (await platform.http.put("/admin/v2/namespaces/public/new")).status_code == 403:
            pass  # Until the watch has told.
    assert (await platform.http.get("/admin/v2/namespaces/public/new")).status_code == 200


async def test_namespaces_of_a_group_that_is_kept_apart(platform: Platform) -> None:
    http = platform.http
    group = "/antiAffinity/g?tenant=public"
    assert (await http.get(f"/admin/v2/namespaces/standalone{group}")).json() == []
    assert (
        await http.post("/admin/v2/namespaces/public/default/antiAffinity", content='"g"')
    ).status_code == 204
    for base in ("/admin/v2/namespaces/standalone", "/admin/namespaces/standalone"):
        assert (await http.get(f"{base}{group}")).json() == ["public/default"]
    assert (await http.get("/admin/v2/namespaces/standalone/antiAffinity/g")).json() == ["public/default"]
    assert (await http.get("/admin/v2/namespaces/standalone/antiAffinity/other")).json() == []
