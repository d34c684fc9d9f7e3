"""What is told of policies is true: those called enforced are read by the broker, the others by nobody."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path

import httpx

from magnetar.admin.enforcement import ENFORCED, KEPT_ONLY, REFUSED, is_enforced
from magnetar.admin.routes.namespace_policies import POLICIES as OF_NAMESPACES
from magnetar.admin.routes.topic_policies import POLICIES as OF_TOPICS
from magnetar.policies.effective import EffectivePolicies

ROOT = Path(__file__).resolve().parents[3]
BROKER = ROOT / "platform" / "magnetar" / "broker"
DOCUMENTATION = ROOT / "docs" / "admin.md"


def read_by_the_broker() -> set[str]:
    """Attributes of anything called policies, anywhere in the broker."""
    names = set()
    for path in BROKER.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and "policies" in ast.unparse(node.value).rpartition(".")[2]:
                names.add(node.attr)
    return names


def test_what_is_called_enforced_is_read() -> None:
    read = read_by_the_broker()
    for policy, names in ENFORCED.items():
        assert set(names) <= read, f"{policy} is called enforced, but the broker does not read {names}"


def test_what_is_called_kept_only_is_not() -> None:
    read = read_by_the_broker()
    for policy, names in KEPT_ONLY.items():
        assert not set(names) & read, (
            f"{policy} is called not enforced, but the broker reads {names}: move its row"
        )


def test_every_policy_stands_in_one_list() -> None:
    assert len({*ENFORCED, *KEPT_ONLY, *REFUSED}) == len(ENFORCED) + len(KEPT_ONLY) + len(REFUSED)
    named = {name for names in (*ENFORCED.values(), *KEPT_ONLY.values()) for name in names}
    assert {field.name for field in fields(EffectivePolicies)} == named
    for policy in (*OF_NAMESPACES, *OF_TOPICS):
        told_as = policy.told_as or policy.path
        assert told_as in {*ENFORCED, *KEPT_ONLY, *REFUSED}, f"{told_as} stands in no list"


def test_the_documentation_says_the_same() -> None:
    told = DOCUMENTATION.read_text()
    for policy in (*ENFORCED, *KEPT_ONLY, *REFUSED):
        row = next(line for line in told.splitlines() if line.startswith(f"| `{policy}`"))
        assert ("| enforced |" in row) == is_enforced(policy), row
        assert ("| refused |" in row) == (policy in REFUSED), row


async def test_what_is_refused_says_so_and_can_be_read_and_taken_back(http: httpx.AsyncClient) -> None:
    namespace, topic = "/admin/v2/namespaces/public/default", "/admin/v2/persistent/public/default/refusing"
    assert (await http.put(topic)).status_code == 204
    refused = await http.put(f"{topic}/shadowTopics", json=["persistent://public/default/shadow"])
    assert (refused.status_code, refused.json()["reason"]) == (501, REFUSED["shadowTopics"])
    assert (await http.get(f"{topic}/shadowTopics")).json() == []
    assert (await http.delete(f"{topic}/shadowTopics")).status_code == 204
    refused = await http.post(f"{namespace}/migration", params={"migrated": "true"})
    assert (refused.status_code, refused.json()["reason"]) == (501, REFUSED["migration"])
    assert (await http.post(f"{namespace}/migration", params={"migrated": "false"})).status_code == 204


async def test_filters_that_the_broker_does_not_have_are_refused(http: httpx.AsyncClient) -> None:
    topic = "/admin/v2/persistent/public/default/filtering"
    assert (await http.put(topic)).status_code == 204
    for path in ("/admin/v2/namespaces/public/default/entryFilters", f"{topic}/entryFilters"):
        refused = await http.post(path, json={"entryFilterNames": "nobody"})
        assert refused.status_code == 412
        assert "nobody" in refused.json()["reason"]
        assert (await http.post(path, json={"entryFilterNames": ""})).status_code == 204
        assert (await http.delete(path)).status_code == 204
