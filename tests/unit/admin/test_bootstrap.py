"""What official test scripts do before their first test."""

from __future__ import annotations

import httpx


async def test_metrics_answer_in_the_text_format(http: httpx.AsyncClient) -> None:
    for path in ("/metrics", "/metrics/"):
        answer = await http.get(path, follow_redirects=True)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert "pulsar_active_connections{" in answer.text


async def test_the_sequence_of_the_official_scripts(http: httpx.AsyncClient) -> None:
    cluster = {
        "serviceUrl": "http://localhost:8080",
        "serviceUrlTls": "https://localhost:8443",
        "brokerServiceUrl": "pulsar://localhost:6650",
        "brokerServiceUrlTls": "pulsar+ssl://localhost:6651",
    }
    assert (await http.put("/admin/v2/clusters/standalone", json=cluster)).status_code == 409
    public = {"adminRoles": ["anonymous"], "allowedClusters": ["standalone"]}
    assert (await http.put("/admin/v2/tenants/public", json=public)).status_code == 409
    private = {"adminRoles": [], "allowedClusters": ["standalone"]}
    assert (await http.put("/admin/v2/tenants/private", json=private)).status_code == 204
    assert (await http.put("/admin/v2/tenants/private", json=private)).status_code == 409
    policies = {
        "bundles": {
            "boundaries": ["0x00000000", "0x40000000", "0x80000000", "0xc0000000", "0xffffffff"],
            "numBundles": 4,
        },
        "auth_policies": {"namespace_auth": {"anonymous": ["produce", "consume"]}},
        "replication_clusters": ["standalone"],
    }
    for name, status in (
        ("default", 409),
        ("default-2", 204),
        ("default-3", 204),
        ("test-backlog-quotas", 204),
    ):
        answer = await http.put(f"/admin/v2/namespaces/public/{name}", json=policies)
        assert answer.status_code == status, answer.text
    encrypted = {**policies, "encryption_required": True}
    assert (await http.put("/admin/v2/namespaces/public/default-4", json=encrypted)).status_code == 204
    told = (await http.get("/admin/v2/namespaces/public/default-4")).json()
    assert told["encryption_required"] is True
    assert told["bundles"]["numBundles"] == 4
    roles = {"token-principal": ["produce", "consume"], "chained-client": ["produce", "consume"]}
    auth = {"auth_policies": {"namespace_auth": roles}, "replication_clusters": ["standalone"]}
    headers = {"Authorization": "Bearer eyJ.e30.x"}
    answer = await http.put("/admin/v2/namespaces/private/auth", json=auth, headers=headers)
    assert answer.status_code == 204
    assert (await http.get("/admin/v2/namespaces/private/auth/permissions")).json() == roles


async def test_what_a_platform_alone_begins_with(http: httpx.AsyncClient) -> None:
    assert (await http.get("/admin/v2/clusters")).json() == ["standalone"]
    assert (await http.get("/admin/v2/tenants")).json() == ["public", "pulsar"]
    assert (await http.get("/admin/v2/namespaces/public")).json() == ["public/default", "public/functions"]


async def test_creation_without_a_body(http: httpx.AsyncClient) -> None:
    """Clients send no body, an empty one, or `null`, as their library happens to."""
    headers = {"content-type": "application/json"}
    for name, body in (("a", b""), ("b", b"null"), ("c", b"  ")):
        answer = await http.put(f"/admin/v2/namespaces/public/{name}", content=body, headers=headers)
        assert answer.status_code == 204, answer.text
        answer = await http.put(f"/admin/v2/persistent/public/{name}/topic", content=body, headers=headers)
        assert answer.status_code == 204, answer.text
