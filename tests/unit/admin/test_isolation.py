"""Which brokers namespaces are kept on, as it is said."""

from __future__ import annotations

from tests.unit.admin.conftest import Platform

BASE = "/admin/v2/clusters/standalone/namespaceIsolationPolicies"
SAID = {
    "namespaces": ["public/.*"],
    "primary": ["127[.]0[.]0[.].*"],
    "secondary": ["other"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
}


async def test_is_said_told_and_taken_back(platform: Platform) -> None:
    http, me = platform.http, f"127.0.0.1:{platform.port}"
    assert (await http.get(BASE)).json() == {}
    assert (await http.get(f"{BASE}/p")).status_code == 404
    answer = await http.post(f"{BASE}/p", json=SAID)
    assert (answer.status_code, answer.headers["x-magnetar-policy"]) == (204, "not-enforced")
    assert (await http.get(f"{BASE}/p")).json() == SAID
    assert (await http.get(BASE)).json() == {"p": SAID}
    told = {
        "brokerName": me,
        "policyName": "p",
        "primary": True,
        "isPrimary": True,
        "namespaceRegex": ["public/.*"],
    }
    assert (await http.get(f"{BASE}/brokers")).json() == [told]
    assert (await http.get(f"{BASE}/brokers/{me}")).json() == told
    assert (await http.get(f"{BASE}/brokers/nobody:1")).status_code == 404
    assert (await http.delete(f"{BASE}/p")).status_code == 204
    assert (await http.delete(f"{BASE}/p")).status_code == 404


async def test_what_cannot_be_meant_is_refused(platform: Platform) -> None:
    for wrong in (
        {},
        {**SAID, "namespaces": []},
        {**SAID, "primary": []},
        {**SAID, "namespaces": ["("]},
        {**SAID, "auto_failover_policy": None},
        {**SAID, "auto_failover_policy": {"policy_type": "other", "parameters": {}}},
        {**SAID, "auto_failover_policy": {"policy_type": "min_available", "parameters": {"min_limit": "1"}}},
    ):
        answer = await platform.http.post(f"{BASE}/p", json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_request"), wrong
    elsewhere = BASE.replace("standalone", "nowhere")
    assert (await platform.http.post(f"{elsewhere}/p", json=SAID)).status_code == 404
